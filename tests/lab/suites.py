"""Helpers that run suites in tests, through the functions that the command line uses."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from proofbox.agents.event_log import completed
from proofbox.agents.events import Event
from proofbox.agents.fakemodel import FakeModel
from proofbox.agents.fakemodel.script import ResponseRule
from proofbox.core.ids import IdSource
from proofbox.lab.attempt.artifacts import ATTEMPT, REPORT
from proofbox.lab.attempt.documents import AttemptRecord, AttemptReport, StepEntry, ToolCallEntry
from proofbox.lab.attempt.reward import Reward
from proofbox.lab.attempt.trace import CALLS, EVENTS, STEPS
from proofbox.lab.run.conductor import Conductor, create_run
from proofbox.lab.run.crews import local
from proofbox.lab.run.crews.contract import OnEvent
from proofbox.lab.run.ledger import Attempt, Ledger
from proofbox.lab.run.plan import Plan, ledger_path

KINDS: dict[str, Any] = {
    ATTEMPT: AttemptRecord,
    REPORT: AttemptReport,
    CALLS: ToolCallEntry,
    STEPS: StepEntry,
    EVENTS: Event,
}
HEAD = '[suite]\nid = "test"\n'
DIES_AT_FIRST = """
real = worker.run_attempt
worker.run_attempt = lambda each, *rest: real(each, *rest) if each.parent else os.kill(os.getpid(), 9)
"""  # for `patch_workers`: the worker of each attempt dies, and that of its replacement does not


def mission(id: str, *steps: dict[str, Any], **fields: Any) -> str:
    """Return a mission as TOML, with a script."""
    lines = ["[[mission]]", f'id = "{id}"', 'prompt = "do it"', *(f"{name} = {toml(v)}" for name, v in fields.items())]
    for step in steps:
        lines += ["[[mission.script.step]]", *(f"{name} = {toml(value)}" for name, value in step.items())]
    return "\n".join(lines) + "\n"


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def command(line: str) -> dict[str, Any]:
    return {"tool": "run_command", "args": {"command": line}}


def write(path: str, content: str) -> dict[str, Any]:
    return {"tool": "write_file", "args": {"path": path, "content": content}}


def say(text: str) -> dict[str, Any]:
    return {"say": text}


def plan(source: str, out: Path, base: Path, *, trust: bool = False, **options: Any) -> Plan:
    """Plan a run; `trust` gives consent to what the suite requests beyond the defaults."""
    fields: dict[str, Any] = {"concurrency": 4, "provider": "bubblewrap", "chain": "scripted", **options}
    made = Plan(
        run_id=IdSource().new_id("run"),
        suite_name="suite",
        suite_source=source,
        base=str(base),
        chain_origin="flag",
        **fields,
    )
    create_run(made, out, trust=trust)
    return made


def conduct(made: Plan, out: Path, on_event: OnEvent | None = None) -> Path:
    conductor = Conductor(out, made.run_id, on_event=on_event)
    try:
        return conductor.conduct()
    finally:
        conductor.close()


@contextlib.contextmanager
def serving(*argv: str) -> Iterator[str]:
    """Run a Python program that prints its address, for the duration of the block."""
    server = subprocess.Popen([sys.executable, *argv], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.communicate()


@contextlib.contextmanager
def serving_model(rules: Sequence[ResponseRule] = ()) -> Iterator[str]:
    """Serve a fake model in a thread, which starts faster than a process, for the duration of the block."""
    model = FakeModel(rules)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(model.listening()) as url:
        yield url


def one_worker_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all concurrent attempts of a run in one worker process, because each takes a while to start."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def patch_workers(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Make every worker of a run execute `code` first; `worker` is the module."""
    start = subprocess.Popen

    def hire(argv: list[str], **options: Any) -> subprocess.Popen[Any]:
        at = argv.index("proofbox.lab.run.worker")
        source = f"import os, sys\nfrom proofbox.lab.run import worker\n{code}\nworker.main(sys.argv[1:])"
        return start([sys.executable, "-c", source, *argv[at + 1 :]], **options)

    monkeypatch.setattr(local, "Popen", hire)


def attempts(made: Plan, out: Path) -> dict[str, Attempt]:
    ledger = Ledger(ledger_path(out, made.run_id))
    try:
        return {each.id: each for each in ledger.attempts()}
    finally:
        ledger.close()


def results(made: Plan, out: Path) -> dict[str, tuple[str, str, str | None, str]]:
    """Return claimed, verified, infra and reason of every attempt; all must have ended."""
    found: dict[str, tuple[str, str, str | None, str]] = {}
    for id, each in attempts(made, out).items():
        assert each.result is not None, id
        found[id] = (each.result.claimed, each.result.verified, each.result.infra, each.result.reason)
    return found


def document(out: Path, made: Plan, attempt: Attempt, name: str) -> Any:
    """Return a document of an attempt, with the members that are absent because they have their default value."""
    return _with_defaults(name, json.loads((out / made.run_id / attempt.path / name).read_bytes()))


def lines(out: Path, made: Plan, attempt: Attempt, name: str) -> list[dict[str, Any]]:
    """Return the entries of a log of an attempt, with the members that are absent."""
    entries = map(json.loads, (out / made.run_id / attempt.path / name).read_text().splitlines())
    return [_with_defaults(name, entry) for entry in (completed(entries) if name == EVENTS else entries)]


def _with_defaults(name: str, found: dict[str, Any]) -> dict[str, Any]:
    return {**found, **_members(msgspec.convert(found, KINDS[name]))} if name in KINDS else found


def _members(value: Any) -> Any:
    if isinstance(value, Reward):
        return msgspec.to_builtins(value)  # it states only what was written
    if isinstance(value, msgspec.Struct):
        stated = {name: getattr(value, name) for name in value.__struct_fields__}
        return {name: _members(each) for name, each in stated.items() if each is not msgspec.UNSET}
    if isinstance(value, dict):
        return {name: _members(each) for name, each in value.items()}
    return [*map(_members, value)] if isinstance(value, list | tuple) else value
