"""Real Claude Code attempts against a fake model: concurrent ones, and evidence with the same shape as Codex's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, conduct, document, lines, plan, serving

from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.reports.validation import validate
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import Plan, ledger_path

pytestmark = pytest.mark.needs("bubblewrap", "claude")
FOREVER = "while :; do sleep 0.2; done"


def prompt(id: str, text: str, **fields: Any) -> str:
    more = "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
    verifier = 'verify = { commands = ["grep -qx 42 answer.txt"] }\n'
    return f"[[mission]]\nid = {json.dumps(id)}\nprompt = {json.dumps(text)}\n{more}{verifier}"


@pytest.fixture
def model() -> Iterator[str]:
    with serving("-m", "proofbox.agents.fakemodel") as url:
        yield url


def made(source: str, out: Path, model: str, strategy: str = "claude_code", **options: Any) -> Plan:
    said = {"base_url": model.removesuffix("/v1")} if strategy == "claude_code" else {"base_url": model}
    return plan(source, out, out.parent, chain=f"{strategy}!", flags=said, **options)


def test_concurrent_attempts_have_separate_sessions_and_traces(
    tmp_path: Path, model: str, rounds: Callable[[int, int], int]
) -> None:
    count = rounds(3, 18)
    source = HEAD + "".join(
        prompt(f"m{n}", f"[[run echo marker-{n}-marker; echo 42 > answer.txt]] [[say done marker-{n}-marker]]")
        for n in range(count)
    )
    source += prompt("slow", f"[[run {FOREVER}]]", timeout=4.0) + prompt("stopped", f"[[run {FOREVER}]]")
    out = tmp_path / "out"
    planned = made(source, out, model, concurrency=count + 2)

    def stop_one(event: dict[str, Any]) -> None:
        if event["attempt_id"] == "stopped.1" and event["event"] == "activity":
            ledger = Ledger(ledger_path(out, planned.run_id))
            ledger.interrupt("stopped.1")
            ledger.close()

    run = conduct(planned, out, stop_one)
    found = attempts(planned, out)
    for n in range(count):
        attempt = found[f"m{n}.1"]
        assert attempt.result is not None
        assert (attempt.result.claimed, attempt.result.verified, attempt.result.infra) == ("success", "passed", None)
        text = "".join(json.dumps(each) for each in lines(out, planned, attempt, "events.jsonl"))
        assert f"marker-{n}-marker" in text
        assert not any(f"marker-{other}-marker" in text for other in range(count) if other != n)
    reasons = {id: each.result.reason for id, each in found.items() if each.result is not None}
    assert (reasons["slow.1"], reasons["stopped.1"]) == ("timed_out", "interrupted")
    runners = [document(out, planned, each, "runner.ref.json") for each in found.values()]
    assert len({each["session_id"] for each in runners}) == len({each["thread_id"] for each in runners}) == count + 2
    assert verify(out).ok
    assert [each.code for each in validate(load_bundle(run), strict=True)] == []


@pytest.mark.needs("codex")
def test_evidence_has_the_same_shape_as_that_of_codex(tmp_path: Path, model: str) -> None:
    source = HEAD + prompt("m", "[[run echo 42 > answer.txt]] [[run exit 3]] [[say done]]")
    shapes = {}
    for strategy in ("claude_code", "codex_app_server"):
        out = tmp_path / strategy
        planned = made(source, out, model, strategy)
        run = conduct(planned, out)
        attempt = attempts(planned, out)["m.1"]
        assert [each.code for each in validate(load_bundle(run), strict=True)] == []
        calls = [each for each in lines(out, planned, attempt, "events.jsonl") if each["event"] == "tool_call"]
        assert [each["exit_code"] for each in calls] == [0, 3]
        documents = ("runner.ref.json", "attempt.json", "outcome.json", "runner.metrics.json")
        shapes[strategy] = (
            sorted(calls[0]),
            [sorted(step) for step in lines(out, planned, attempt, "steps.jsonl")],
            {name: sorted(document(out, planned, attempt, name)) for name in documents},
        )
    assert shapes["claude_code"] == shapes["codex_app_server"]
