"""Listeners may fail and workers may die: the run stops in order and can be resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, command, conduct, mission, patch_workers, plan, say, write

from proofbox.core.clock import SystemClock
from proofbox.errors import WorkerLost
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.reports.totals import final_attempts
from proofbox.lab.run.conductor import Conductor
from proofbox.lab.run.crews.contract import EventForwarder
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import find_run, ledger_path

pytestmark = pytest.mark.needs("bubblewrap")

ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
WORKS = mission("answer", write("answer.txt", "42\n"), say("done"), verify=ANSWER, replicates=3)
WAITS = mission("waits", command("sleep 600"), verify=ANSWER)


def go_on(out: Path, run_id: str) -> dict[str, str]:
    """Conduct the run to its end, interrupting what would never end; return the verdict of each result."""

    def hear(event: dict[str, Any]) -> None:
        if event["event"] == "running" and event["mission_id"] == "waits":
            with Ledger(ledger_path(out, run_id)) as ledger:
                ledger.interrupt(event["attempt_id"])

    conductor = Conductor(out, run_id, on_event=hear)
    run = conductor.conduct()
    conductor.close()
    assert verify(run).ok
    with Ledger(ledger_path(out, run_id)) as ledger:
        ended = ledger.attempts()
    assert {each.result and each.result.infra for each in ended} <= {None, "ATTEMPT_WORKER_LOST"}
    return {f"{it.mission}{it.replicate}": it.result.verified for it in final_attempts(ended) if it.result is not None}


DONE = {"answer1": "passed", "answer2": "passed", "answer3": "passed", "waits1": "failed"}


def test_failing_listener_stops_the_run_and_it_can_be_resumed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = plan(HEAD + WAITS + WORKS, out, tmp_path, concurrency=2)
    received: list[dict[str, Any]] = []

    def leave(event: dict[str, Any]) -> None:
        received.append(event)
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        conduct(made, out, leave)
    assert len(received) == 1, "no more events are forwarded"
    assert "claimed" not in {each.state for each in attempts(made, out).values()}, "running attempts are closed"
    assert go_on(out, made.run_id) == DONE


def test_run_is_resumed_after_a_reader_stops_at_the_first_event(tmp_path: Path) -> None:
    """`suite run --jsonl | head -1`"""
    (tmp_path / "suite.toml").write_text(HEAD + WAITS + WORKS)
    argv = [sys.executable, "-m", "proofbox", "suite", "run", "suite.toml", "--jsonl", "--provider", "bubblewrap"]
    run = subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stderr is not None
    assert json.loads(run.stdout.readline())["event"] == "preparing"
    run.stdout.close()
    output = run.stderr.read()
    run.stderr.close()
    assert run.wait() == 141, "the run is not complete"
    assert "Traceback" not in output
    assert "proofbox suite resume" in output
    assert go_on(*find_run(tmp_path / "out")) == DONE


def test_interrupted_run_prints_a_json_document(tmp_path: Path) -> None:
    """Ctrl-C with --json: the document says how to resume."""
    (tmp_path / "suite.toml").write_text(HEAD + WAITS)
    argv = [sys.executable, "-m", "proofbox", "suite", "run", "suite.toml", "--json", "--provider", "bubblewrap"]
    run = subprocess.Popen(
        argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until_claimed(tmp_path / "out", run)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: its workers receive it as well
    output, beside = run.communicate(timeout=60)
    assert run.returncode == 130
    assert beside.startswith("interrupted; resume with: ")
    assert beside.count("\n") == 1
    out, run_id = find_run(tmp_path / "out")
    error = json.loads(output)["error"]
    assert (error["code"], error["fix_hints"]) == (
        "RUN_INTERRUPTED",
        [f"resume with: proofbox suite resume out/{run_id}"],
    )
    assert go_on(out, run_id) == {"waits1": "failed"}


def until_claimed(out: Path, run: subprocess.Popen[str]) -> None:
    """Wait until an attempt of the run is running."""
    while run.poll() is None:
        ledgers = list(out.glob("*.ledger"))
        if ledgers:
            with Ledger(ledgers[0]) as ledger:
                if ledger.counts()["claimed"]:
                    return
        time.sleep(0.02)
    raise AssertionError("it ended before anything was under way")


def test_worker_without_a_listener_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    patch_workers(monkeypatch, "r, w = os.pipe(); os.close(r); os.dup2(w, 1)")
    made = plan(HEAD + WORKS, out, tmp_path)
    conduct(made, out)
    assert [each.result and each.result.verified for each in attempts(made, out).values()] == ["passed"] * 3


def test_other_worker_output_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    patch_workers(monkeypatch, r"os.write(1, b'\xff\n[]\n{\n' + b'[' * 9999 + b'\n')")
    made = plan(HEAD + WORKS, out, tmp_path)
    events: list[dict[str, Any]] = []
    conduct(made, out, events.append)
    assert sum(each["event"] == "ended" for each in events) == 3


def test_run_starts_no_more_workers_than_it_has_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "started"
    patch_workers(monkeypatch, f"print('worker', file=open({str(started)!r}, 'a'))")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    made = plan(HEAD + mission("answer", write("answer.txt", "42\n"), verify=ANSWER), tmp_path / "out", tmp_path)
    conduct(made, tmp_path / "out")
    assert started.read_text() == "worker\n"


def test_workers_that_die_at_start_end_the_run_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    made = plan(HEAD + WORKS, out, tmp_path)
    with monkeypatch.context() as patch:
        patch_workers(patch, "sys.exit(3)")
        with pytest.raises(WorkerLost, match="before they start an attempt"):
            conduct(made, out)
    conduct(made, out)
    assert [each.result and each.result.verified for each in attempts(made, out).values()] == ["passed"] * 3


def test_first_forwarding_failure_is_raised() -> None:
    def fail(event: dict[str, Any]) -> None:
        raise ValueError(event["event"])

    telling = EventForwarder(fail, SystemClock())
    telling.check()
    for event in ("first", "second"):
        telling({"event": event})
    with pytest.raises(ValueError, match="first"):
        telling.check()
    EventForwarder(None, SystemClock())({"event": "without a listener"})
