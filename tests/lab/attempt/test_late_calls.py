"""Calls that outlive their turn are recorded: background commands, interrupted ones, sub-agents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, conduct, document, lines, plan, serving_model, toml

from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.reports.explain import explain
from proofbox.lab.reports.validation import validate
from proofbox.lab.run.ledger import Attempt, Ledger
from proofbox.lab.run.plan import Plan, ledger_path

pytestmark = pytest.mark.needs("bubblewrap", "codex")

ISOLATIONS = ("process", "shared")
FAKE = Path(__file__).parents[2] / "agents" / "fake_codex.py"


@pytest.fixture
def model() -> Iterator[str]:
    with serving_model() as url:
        yield url


def mission(id: str, prompt: str, **fields: Any) -> str:
    fields = {"prompt": prompt, "expect": {"claimed": "success"}, **fields}
    return f'[[mission]]\nid = "{id}"\n' + "".join(f"{name} = {toml(value)}\n" for name, value in fields.items())


def codex(source: str, out: Path, model: str, **options: Any) -> Plan:
    said = {"base_url": model, "model": "fake-model"}
    return plan(HEAD + source, out, out.parent, chain="codex_app_server!", flags=said, **options)


def background(command: str) -> str:
    """Run a command that moves to the background after a second."""
    return f"[[call exec_command {json.dumps({'cmd': command, 'yield_time_ms': 1000})}]]"


def spawn(prompt: str) -> str:
    """Spawn a sub-agent. Its directives are escaped, so that the parent does not follow them."""
    message = json.dumps({"message": prompt}).replace("[", "\\u005b").replace("]", "\\u005d")
    return f"[[call multi_agent_v1.spawn_agent {message}]]"


def wait_for(file: str) -> str:
    """Wait for a file. Codex moves a command to the background after 10 seconds if no time is given."""
    command = f"until [ -e {file} ]; do sleep 0.05; done".replace("[", "\\u005b").replace("]", "\\u005d")
    return f'[[call exec_command {{"cmd": "{command}", "yield_time_ms": 30000}}]]'


def calls(out: Path, made: Plan, attempt: Attempt) -> list[tuple[str, str, bool]]:
    found = lines(out, made, attempt, "tool.calls.jsonl")
    return [(each["command"], each["status"], each["late"]) for each in found]


def unmet(out: Path, made: Plan, attempt: Attempt) -> list[str]:
    return [each["condition"] for each in document(out, made, attempt, "attempt.json")["verification"]["unmet"]]


def findings(run: Path) -> list[tuple[str, str]]:
    assert verify(run).ok
    return [(each.code, each.path) for each in validate(load_bundle(run), strict=True)]


ALIVE = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '^sleep 300[.]125\\|[^a-z]sleep 300[.]125' > alive.txt"


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_background_command_counts_and_ends_with_its_attempt(out: Path, model: str, isolation: str) -> None:
    expect = {"no_commands": ["300.125"], "max_tool_calls": 0, "claimed": "success"}
    source = mission("first", background("(setsid sleep 300.125 &); sleep 300.125") + "[[say done]]", expect=expect)
    look = {"file": [{"path": "alive.txt", "contains": "0"}]}
    source += mission("second", f"[[run {ALIVE}]] [[say done]]", expect=look)
    made = codex(source, out, model, isolation=isolation, concurrency=1)
    run = conduct(made, out)
    first, second = attempts(made, out).values()
    [(command, status, late)] = calls(out, made, first)
    assert ("sleep 300.125" in command, status, late) == (True, "failed", True)
    assert [line for line in explain(first, run / first.path) if "still running at the end of the turn" in line]
    assert unmet(out, made, first) == ["max_tool_calls", "no_commands"]
    assert (first.result and first.result.verified) == "failed"
    assert unmet(out, made, second) == []
    assert findings(run) == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_timed_out_and_interrupted_commands_are_recorded(out: Path, model: str, isolation: str) -> None:
    source = mission("slow", "[[run sleep 301.125]] [[say done]]", timeout=3.0)
    source += mission("stopped", "[[run sleep 302.125]] [[say done]]")
    made = codex(source, out, model, isolation=isolation)

    def stop(event: dict[str, Any]) -> None:
        if event["attempt_id"] == "stopped.1" and event.get("activity") == "sleep 302.125":
            ledger = Ledger(ledger_path(out, made.run_id))
            ledger.interrupt("stopped.1")
            ledger.close()

    run = conduct(made, out, stop)
    found = attempts(made, out)
    for id, command, reason in (
        ("slow.1", "sleep 301.125", "timed_out"),
        ("stopped.1", "sleep 302.125", "interrupted"),
    ):
        result = found[id].result
        assert result is not None
        assert result.reason == reason
        [(line, status, _)] = calls(out, made, found[id])  # Codex reports its end before or after the end of the turn
        assert line == command
        assert status != "completed"
    assert findings(run) == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_command_that_kills_codex_is_recorded(out: Path, model: str, isolation: str) -> None:
    kill = "for p in /proc/[0-9]*; do grep -qz '[a]pp-server' $p/cmdline && kill -9 ${p#/proc/}; done; sleep 9"
    made = codex(mission("kills", f"[[run {kill}]] [[say done]]"), out, model, isolation=isolation, retries=0)
    run = conduct(made, out)
    [attempt] = attempts(made, out).values()
    assert attempt.result is not None
    # In a shared session, another attempt may have ended the program.
    expected = ("RUNTIME_CRASH", "none") if isolation == "shared" else (None, "failed")
    assert (attempt.result.infra, attempt.result.verified) == expected
    assert calls(out, made, attempt) == [(kill, "abandoned", False)]
    assert findings(run) == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_sub_agents_calls_count(out: Path, model: str, isolation: str) -> None:
    prompt = spawn("[[run touch by-sub.txt]] [[run touch reported]] [[say ok]]") + wait_for("reported")
    expect = {"no_commands": ["^touch by-sub"], "claimed": "success"}
    made = codex(mission("spawns", prompt + "[[say done]]", expect=expect), out, model, isolation=isolation)
    run = conduct(made, out)
    [attempt] = attempts(made, out).values()
    assert ("touch by-sub.txt", "completed", False) in calls(out, made, attempt)
    assert unmet(out, made, attempt) == ["no_commands"]
    assert findings(run) == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_sub_agent_that_outlives_the_turn_is_ended_and_recorded(out: Path, model: str, isolation: str) -> None:
    prompt = spawn("[[run touch begun; sleep 300.125]] [[say ok]]") + wait_for("begun")
    look = {"file": [{"path": "alive.txt", "contains": "0"}]}
    source = mission("spawns", prompt + "[[say done]]") + mission("looks", f"[[run {ALIVE}]] [[say done]]", expect=look)
    made = codex(source, out, model, isolation=isolation, concurrency=1)
    run = conduct(made, out)
    spawns, looks = attempts(made, out).values()
    statuses = {command: status for command, status, _ in calls(out, made, spawns)}
    assert statuses["touch begun; sleep 300.125"] != "completed"
    assert unmet(out, made, looks) == []
    assert findings(run) == []


def test_shared_session_that_crashed_too_often_is_replaced(out: Path, model: str) -> None:
    kill = "for p in /proc/[0-9]*; do grep -qz '[a]pp-server' $p/cmdline && kill -9 ${p#/proc/}; done; sleep 9"
    source = "".join(mission(f"m{n}", f"[[run {kill}]]") for n in range(5)) + mission("m5", "[[say done]]")
    made = codex(source, out, model, isolation="shared", concurrency=1, retries=0)
    conduct(made, out)
    found = attempts(made, out)
    assert [each.result and (each.result.infra, each.result.verified) for each in found.values()] == [
        *[("RUNTIME_CRASH", "none")] * 5,
        (None, "passed"),
    ]


@pytest.mark.parametrize(
    ("isolation", "mode", "code"),
    [
        ("process", "twice", "ITEM_ENDED_TWICE"),
        ("process", "garbage", "GARBAGE_ON_STREAM"),
        ("shared", "stray", "CALL_UNATTRIBUTED"),
    ],
)
def test_conditions_on_calls_fail_if_calls_may_be_missing(out: Path, isolation: str, mode: str, code: str) -> None:
    expect = {"no_commands": ["^rm "], "max_tool_calls": 9, "min_tool_calls": 0, "claimed": "none"}
    source = HEAD + mission("odd", "do it", expect=expect, env=[f"FAKE_MODE={mode}"])
    said = {"base_url": "http://127.0.0.1:9/v1", "binary": str(FAKE)}
    made = plan(source, out, out.parent, chain="codex_app_server!", flags=said, isolation=isolation)
    run = conduct(made, out)
    [attempt] = attempts(made, out).values()
    assert (attempt.result and attempt.result.verified) == "failed"
    assert unmet(out, made, attempt) == ["min_tool_calls", "max_tool_calls", "no_commands"]
    found = document(out, made, attempt, "attempt.json")["verification"]["unmet"]
    assert all(code in each["found"] for each in found)
    assert code in {each for each, _ in findings(run)}


def test_detached_child_of_a_process_ends_with_its_attempt_in_a_shared_session(out: Path) -> None:
    detach = "setsid sleep 300.125 >/dev/null 2>&1 & until grep -qz '^sleep$' /proc/$!/cmdline; do :; done; echo done"
    look = {"file": [{"path": "alive.txt", "contains": "0"}]}
    source = HEAD + mission("detaches", detach) + mission("looks", f"{ALIVE}; echo done", expect=look)
    agent = {"process": {"command": ["/bin/sh", "-s"]}}
    made = plan(source, out, out.parent, chain="process!", runtimes=agent, isolation="shared", concurrency=1)
    run = conduct(made, out)
    detaches, looks = attempts(made, out).values()
    assert (detaches.result and detaches.result.verified) == "passed"
    assert unmet(out, made, looks) == []
    assert findings(run) == []
