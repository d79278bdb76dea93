"""The public functions take the flags of their commands, return the documents that these print, and are documented."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from suites import HEAD, mission, say, write

import proofbox
from proofbox.cli import main
from proofbox.cli.describe import CommandFacts, commands
from proofbox.core.results import Document
from proofbox.lab.run.running import in_thread

FUNCTIONS: dict[str, Callable[..., Document]] = {
    "suite lint": proofbox.lint_suite,
    "suite run": proofbox.run_suite,
    "suite resume": proofbox.resume_suite,
    "suite report": proofbox.load_run,
    "suite status": proofbox.suite_status,
    "campaign run": proofbox.run_campaign,
    "campaign canary": proofbox.run_canary,
    "campaign resume": proofbox.resume_campaign,
    "campaign status": proofbox.campaign_status,
    "campaign lint": proofbox.lint_campaign,
    "campaign plan": proofbox.plan_campaign,
    "campaign compare": proofbox.compare_campaigns,
    "campaign publish-check": proofbox.check_publishable,
    "campaign regrade": proofbox.regrade_campaign,
    "new suite": proofbox.new_suite,
    "new campaign": proofbox.new_campaign,
    "doctor": proofbox.doctor,
    "validate": proofbox.validate,
    "report": proofbox.report,
    "attempt explain": proofbox.explain_attempt,
    "gc": proofbox.collect_garbage,
    "deliver plan": proofbox.plan_delivery,
    "deliver init": proofbox.deliver_repository,
    "deliver pr": proofbox.deliver_pull_request,
}
CALLBACKS = {"on_event", "on_check", "on_plan", "stop"}
BACKEND = {"backend_url", "allow_http", "timeout"}
"""Flags that are one argument in Python: `BackendSettings`."""
PRESENTATION = ("--json", "--jsonl", "--html", "--view", "--report")
"""Flags that only decide how or where a result is written; in Python, `export_html` writes the HTML file."""
PLURALS = {
    "command": "commands",
    "mission": "missions",
    "resource": "resources",
    "set": "settings",
    "tag": "tags",
}
ANSWER = {"commands": ["grep -qx 42 answer.txt"]}


@pytest.fixture(scope="module")
def facts() -> dict[str, CommandFacts]:
    return commands()


def test_every_coroutine_function_leaves_the_event_loop_free() -> None:
    """Those that `in_thread` makes run in a thread; a test runs a ticker beside the others."""
    code = in_thread(print, stoppable=False, doc="").__code__
    names = {name for name in proofbox.__all__ if inspect.iscoroutinefunction(getattr(proofbox, name))}
    assert {name for name in names if getattr(proofbox, name).__code__ is not code} == {
        *("explore_attempt_async", "fork_attempt_async", "run_attempt_async")  # tests/lab/attempt/adhoc/test_explore.py
    }


@pytest.mark.parametrize("command", FUNCTIONS)
def test_keywords_are_the_flags_of_the_command_with_the_same_defaults(
    command: str, facts: dict[str, CommandFacts]
) -> None:
    parameters = inspect.signature(FUNCTIONS[command]).parameters.values()
    keywords = {
        each.name: None if each.default is each.empty else each.default or None
        for each in parameters
        if each.name not in CALLBACKS | {"backend"}
    }
    flags = {
        each.name.removeprefix("--").replace("-", "_").lower(): each.default
        for each in facts[command].parameters
        if each.name not in PRESENTATION
    }
    if "backend" in inspect.signature(FUNCTIONS[command]).parameters:
        assert flags.keys() >= BACKEND
        flags = {name: default for name, default in flags.items() if name not in BACKEND}
    # A flag that can be repeated has a singular name, and its keyword the plural.
    flags = {PLURALS.get(name, name): default for name, default in flags.items()}
    assert keywords == flags
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters), "an unknown keyword is a TypeError"


@pytest.mark.parametrize("name", [name for name in proofbox.__all__ if name != "errors"])
def test_every_public_name_is_documented_with_an_example(name: str) -> None:
    value = getattr(proofbox, name)
    assert not isinstance(value, ModuleType)
    assert re.search(rf"^For example.*:\n\n(    .*\n)*    .*\bproofbox\.(\w+\()?{name}\b", _text(value), re.MULTILINE)


def _text(value: Any) -> str:
    return inspect.cleandoc(value.__doc__ or "")


@pytest.fixture
def run(out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed run in the current directory, with one mission that passes and one that fails."""
    monkeypatch.chdir(out.parent)
    works = mission("answer", write("answer.txt", "42\n"), say("done"), verify=ANSWER)
    Path("suite.toml").write_text(HEAD + works + mission("lies", say("done"), verify=ANSWER))
    return out / proofbox.run_suite("suite.toml", provider="bubblewrap").run_id


@pytest.mark.needs("bubblewrap")
def test_functions_return_what_their_commands_print(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "attempts/lies.1.e1/feedback.json").write_bytes(b"{}")
    cases: list[tuple[Document, list[str], int]] = [
        (proofbox.load_run(), ["suite", "report"], 1),
        (proofbox.suite_status(), ["suite", "status"], 0),
        (proofbox.explain_attempt("lies.1"), ["attempt", "explain", "lies.1"], 0),
        (proofbox.validate(run / "attempts/answer.1.e1"), ["validate", f"{run}/attempts/answer.1.e1"], 0),
        (proofbox.report(run / "attempts/answer.1.e1"), ["report", f"{run}/attempts/answer.1.e1"], 0),
        (proofbox.collect_garbage("out", dry_run=True), ["gc", "out", "--dry-run"], 0),
    ]
    for result, words, code in cases:
        assert main([*words, "--json"]) == code, words
        assert json.loads(capsys.readouterr().out) == json.loads(msgspec.json.encode(result))
    assert next(each.path for each in proofbox.load_run().findings) == "attempts/lies.1.e1/feedback.json"
    assert proofbox.explain_attempt("lies.1").evidence_problem is not None


@pytest.mark.needs("bubblewrap")
def test_doctor_reports_every_check_as_it_finishes() -> None:
    done: list[tuple[str, int, int]] = []
    found = proofbox.doctor(
        provider="bubblewrap",
        quick=True,
        on_check=lambda check: done.append((check.provider, check.number, check.total)),
    )
    report = found.providers["bubblewrap"].report
    assert report is not None
    assert done == [("bubblewrap", number + 1, len(report.results)) for number in range(len(report.results))]
    assert found.ok
    assert {each.strategy for each in found.runtimes} >= {"scripted", "process"}


def test_unavailable_provider_is_an_error_of_the_report() -> None:
    found = proofbox.doctor(provider="apple-vm", quick=True)
    assert (found.ok, found.error and found.error.code) == (False, "SANDBOX_UNAVAILABLE")
