"""Real Claude Code attempts against a fake model: concurrent ones, and the same evidence as Codex and an ACP agent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from acp_lab import fake_settings
from conftest import SOAK
from suites import HEAD, attempts, conduct, document, lines, plan, serving_model

from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.attempt import trace
from proofbox.lab.reports.validation import validate
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import Plan, ledger_path

pytestmark = pytest.mark.needs("bubblewrap", "claude")
LOOK = "cat /proc/[0-9]*/environ /run/*/home/* 2>/dev/null | tr '\\0' '\\n'"
"""Shows the environments of all processes in the box, and what their agent stores."""
FOREVER = "while :; do sleep 0.2; done"


def prompt(id: str, text: str, **fields: Any) -> str:
    more = "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
    verifier = 'verify = { commands = ["grep -qx 42 answer.txt"] }\n'
    return f"[[mission]]\nid = {json.dumps(id)}\nprompt = {json.dumps(text)}\n{more}{verifier}"


@pytest.fixture
def model() -> Iterator[str]:
    with serving_model() as url:
        yield url


def made(source: str, out: Path, model: str, **options: Any) -> Plan:
    said = {"base_url": model.removesuffix("/v1")}
    return plan(source, out, out.parent, chain="claude_code!", flags=said, **options)


def test_concurrent_attempts_have_separate_sessions_and_traces(
    tmp_path: Path, model: str, rounds: Callable[[int, int], int]
) -> None:
    count = rounds(2, 18)
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


MISSIONS = (
    # The numbers make its output and its diff large on every runtime, so that both are files.
    f"[[run {LOOK} > seen.txt; grep -m 1 PATH= seen.txt; cat seen.txt; seq 999 | tee numbers; echo 42 > answer.txt]]"
    " [[run exit 3]] [[say done]]",
    "[[run echo 41 > answer.txt]] [[run exit 3]] [[say done]]",
    "[[think hm]] [[run echo 42 > answer.txt]] [[run exit 3]] [[say done]]",
    "[[usage input=70 output=3]] [[run echo 42 > answer.txt]] [[run exit 3]] [[say done]]",
    "[[run echo 42 > answer.txt; mkdir d; touch d/e]] [[run exit 3]] [[wait 0.1]] [[say done]]",
)


REAL_ACP = [pytest.mark.needs("opencode"), pytest.mark.skipif(not SOAK, reason="its starts take long: scripts/soak")]


@pytest.mark.needs("codex")
@pytest.mark.parametrize("acp_agent", ["fake", pytest.param("opencode", marks=REAL_ACP)])
def test_missions_have_the_same_evidence_on_every_runtime_and_no_key(
    tmp_path: Path, model: str, acp_agent: str, rounds: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-ant-" + "kQ7" * 13
    monkeypatch.setenv("MISSION_MODEL_KEY", key)
    source = HEAD + "".join(prompt(f"m{n}", text) for n, text in enumerate(MISSIONS[: rounds(1, 5)]))
    shapes: dict[str, Any] = {}
    for strategy in ("claude_code", "codex_app_server", "acp"):
        out = tmp_path / strategy
        flags = {"base_url": model.removesuffix("/v1") if strategy == "claude_code" else model}
        flags["api_key_env"] = "MISSION_MODEL_KEY"
        if strategy == "acp":
            flags |= fake_settings(model) if acp_agent == "fake" else {"model": "fake-model"}
        planned = plan(source, out, tmp_path, chain=f"{strategy}!", flags=flags)
        run = conduct(planned, out)
        assert [each.code for each in validate(load_bundle(run), strict=True)] == []
        shapes[strategy] = {}
        for id, attempt in attempts(planned, out).items():
            calls = [each for each in lines(out, planned, attempt, "events.jsonl") if each["event"] == "tool_call"]
            assert [each["exit_code"] for each in calls] == [0, 3]
            assert attempt.result is not None
            documents = ("runner.ref.json", "attempt.json", "outcome.json", "attempt.report.json")
            shapes[strategy][id] = (
                attempt.result.verified,
                sorted(calls[0]),
                [sorted(step) for step in lines(out, planned, attempt, "steps.jsonl")],
                {name: sorted(document(out, planned, attempt, name)) for name in documents},
            )
            if id == "m0.1":
                assert "PATH=" in calls[0]["output"]  # it saw environments
        files = [Path(folder) / name for folder, _, names in os.walk(out) for name in names]
        assert [path for path in files if key.encode() in path.read_bytes()] == []
        assert [path for path in files if path.name == trace.EXCHANGES or "bodies" in path.parts] == []
    assert shapes["claude_code"] == shapes["codex_app_server"] == shapes["acp"]
