"""Who watches a run may leave, and workers may die: the run stops in order, and can be gone on with."""

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

from proofbox.errors import WorkerLost
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.reports.totals import final_attempts
from proofbox.lab.run.conductor import Conductor, find_run
from proofbox.lab.run.crew import EventForwarder
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import ledger_path

pytestmark = pytest.mark.needs("bubblewrap")

ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
WORKS = mission("answer", write("answer.txt", "42\n"), say("done"), verify=ANSWER, replicates=3)
WAITS = mission("waits", command("sleep 600"), verify=ANSWER)


def go_on(out: Path, run_id: str) -> dict[str, str]:
    """Conduct it to its end, with what would never end interrupted; of each result what the verifier found."""

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


def test_whoever_stops_listening_stops_the_run_in_order_and_it_is_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = plan(HEAD + WAITS + WORKS, out, tmp_path, concurrency=2)
    heard: list[dict[str, Any]] = []

    def leave(event: dict[str, Any]) -> None:
        heard.append(event)
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        conduct(made, out, leave)
    assert len(heard) == 1, "nothing more is told"
    assert "claimed" not in {each.state for each in attempts(made, out).values()}, "what was under way is closed"
    assert go_on(out, made.run_id) == DONE


def test_events_are_read_up_to_the_first_and_the_run_is_resumed(tmp_path: Path) -> None:
    """`suite run --jsonl | head -1`"""
    (tmp_path / "suite.toml").write_text(HEAD + WAITS + WORKS)
    argv = [sys.executable, "-m", "proofbox", "suite", "run", "suite.toml", "--jsonl", "--provider", "bubblewrap"]
    run = subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stderr is not None
    assert json.loads(run.stdout.readline())["event"] == "preparing"
    run.stdout.close()
    said = run.stderr.read()
    run.stderr.close()
    assert run.wait() == 141, "the run is not done"
    assert "Traceback" not in said
    assert "proofbox suite resume" in said
    assert go_on(*find_run(tmp_path / "out")) == DONE


def test_an_interrupted_run_has_a_document_too(tmp_path: Path) -> None:
    """Ctrl-C, with --json: what is told is how to go on."""
    (tmp_path / "suite.toml").write_text(HEAD + WAITS)
    argv = [sys.executable, "-m", "proofbox", "suite", "run", "suite.toml", "--json", "--provider", "bubblewrap"]
    run = subprocess.Popen(
        argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until_claimed(tmp_path / "out", run)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: its workers hear it as well
    said, beside = run.communicate(timeout=60)
    assert run.returncode == 130
    assert beside.startswith("interrupted; go on with: ")
    assert beside.count("\n") == 1
    out, run_id = find_run(tmp_path / "out")
    error = json.loads(said)["error"]
    assert (error["code"], error["fix_hints"]) == (
        "RUN_INTERRUPTED",
        [f"resume with: proofbox suite resume out/{run_id}"],
    )
    assert go_on(out, run_id) == {"waits1": "failed"}


def until_claimed(out: Path, run: subprocess.Popen[str]) -> None:
    """Until an attempt of the run is under way."""
    while run.poll() is None:
        ledgers = list(out.glob("*.ledger"))
        if ledgers:
            with Ledger(ledgers[0]) as ledger:
                if ledger.counts()["claimed"]:
                    return
        time.sleep(0.02)
    raise AssertionError("it ended before anything was under way")


def test_a_worker_that_nobody_hears_works_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    patch_workers(monkeypatch, "r, w = os.pipe(); os.close(r); os.dup2(w, 1)")
    made = plan(HEAD + WORKS, out, tmp_path)
    conduct(made, out)
    assert [each.result and each.result.verified for each in attempts(made, out).values()] == ["passed"] * 3


def test_what_else_a_worker_writes_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    patch_workers(monkeypatch, r"os.write(1, b'\xff\n[]\n{\n' + b'[' * 9999 + b'\n')")
    made = plan(HEAD + WORKS, out, tmp_path)
    events: list[dict[str, Any]] = []
    conduct(made, out, events.append)
    assert sum(each["event"] == "ended" for each in events) == 3


def test_workers_that_die_before_they_begin_anything_end_the_run_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    made = plan(HEAD + WORKS, out, tmp_path)
    with monkeypatch.context() as patch:
        patch_workers(patch, "sys.exit(3)")
        with pytest.raises(WorkerLost, match="before they have done anything"):
            conduct(made, out)
    conduct(made, out)
    assert [each.result and each.result.verified for each in attempts(made, out).values()] == ["passed"] * 3


def test_the_first_failure_to_tell_is_the_one_that_is_raised() -> None:
    def fail(event: dict[str, Any]) -> None:
        raise ValueError(event["event"])

    telling = EventForwarder(fail)
    telling.check()
    for event in ("first", "second"):
        telling({"event": event})
    with pytest.raises(ValueError, match="first"):
        telling.check()
    EventForwarder(None)({"event": "for nobody"})
