"""Runs: attempts end independently, a kill loses nothing, and the results match the plan."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, command, conduct, document, lines, mission, patch_workers, plan, results, say, write

from proofbox.agents.environment import is_secret
from proofbox.core.clock import ManualClock
from proofbox.errors import RunBusy, RunUnknown, SuiteInvalid
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.attempt.artifacts import EXPECTED
from proofbox.lab.run import conductor as run_module
from proofbox.lab.run.conductor import Conductor
from proofbox.lab.run.ledger import Ended, Ledger
from proofbox.lab.run.plan import Plan, find_run, ledger_path
from proofbox.lab.suite.harbor.task_tree import tree_sha256

pytestmark = pytest.mark.needs("bubblewrap")

ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
DOES_IT = (write("answer.txt", "42\n"), say("done"))


def test_the_smallest_run_leaves_everything_and_can_be_promoted(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in filter(is_secret, list(os.environ)):  # the evidence names each one
        monkeypatch.delenv(name)
    made = plan(HEAD + mission("answer", *DOES_IT, verify=ANSWER), out, tmp_path)
    run = conduct(made, out)
    assert results(made, out) == {"answer.1": ("success", "passed", None, "completed")}
    bundle = load_bundle(run)
    (nested,) = bundle.nested.values()
    assert set(EXPECTED) <= set(nested.artifacts)
    sizes = [path.stat().st_size for path in Path(nested.path).rglob("*") if path.is_file()]
    assert len(sizes) == 12, "every file takes a block and a sync"
    assert sum(sizes) <= 10_000
    assert bundle.index.status == nested.index.status == "ok"
    assert emit_promotion(run).promotable
    attempt = attempts(made, out)["answer.1"]
    assert emit_promotion(run / attempt.path).promotable
    step, end = (each.get("step") or each["turn_end"] for each in lines(out, made, attempt, "steps.jsonl"))
    assert end["last_step"] == step["n"] == 1
    final = document(out, made, attempt, "attempt.json")["final"]
    assert step["snapshot_before"] == final["given"]
    assert step["snapshot_after"] == final["snapshot"]
    assert "+42" in final["diff"]
    feedback = document(out, made, attempt, "feedback.json")
    assert feedback["result"] == "done"
    states = [each["state"] for each in document(out, made, attempt, "attempt.json")["states"]]
    assert states == ["claimed", "preparing", "running", "stopping", "verifying", "committing"]


def test_each_attempt_ends_for_its_own_reason_and_no_other_is_disturbed(out: Path, tmp_path: Path) -> None:
    source = HEAD + "".join(
        [
            mission("good", *DOES_IT, verify=ANSWER, replicates=3),
            mission("slow", command("sleep 600"), say("done"), verify=ANSWER, timeout=0.5),
            mission("greedy", *[write("a", str(n)) for n in range(9)], say("done"), budget={"tool_calls": 3}),
            mission("unset", setup=["exit 5"], verify=ANSWER),
            mission("unverified", say("done")),
            mission("expected", *DOES_IT, expect={"claimed": "success", "min_tool_calls": 1}),
            mission("gives-up", say("failed: too hard"), verify=ANSWER),
        ]
    )
    made = plan(source, out, tmp_path)
    run = conduct(made, out)
    good = ("success", "passed", None, "completed")
    assert results(made, out) == {
        "good.1": good,
        "good.2": good,
        "good.3": good,
        "slow.1": ("none", "failed", None, "timed_out"),
        "greedy.1": ("none", "none", None, "budget_exceeded"),
        "unset.1": ("none", "none", "ATTEMPT_SETUP_FAILED", "setup_failed"),
        "unverified.1": ("success", "none", None, "completed"),
        "expected.1": good,
        "gives-up.1": ("failure", "failed", None, "completed"),
    }
    assert verify(out).ok
    assert load_bundle(run).index.status == "partial", "one attempt had an infrastructure failure"
    sessions = [document(out, made, each, "runner.ref.json").get("session_id") for each in attempts(made, out).values()]
    named = [session for session in sessions if session]
    assert len(set(named)) == len(named) == 8


def test_usage_limit_without_a_reset_ends_after_its_retries(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "pause", lambda _: 0.0)

    def hear(event: dict[str, Any]) -> None:
        assert event["attempt_id"] in ("limited.1", "limited.1.r1")

    made = plan(HEAD + mission("limited", {"fault": "usage_limit"}), out, tmp_path, retries=1)
    conduct(made, out, hear)
    met = ("none", "none", "RUNTIME_USAGE_LIMIT", "infra_failed")
    assert results(made, out) == {"limited.1": met, "limited.1.r1": met}


def test_run_reports_once_that_it_waits_for_a_retry(out: Path, tmp_path: Path) -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    events: list[dict[str, Any]] = []
    made = plan(HEAD + mission("limited", say("done")), out, tmp_path)
    conductor = Conductor(out, made.run_id, on_event=events.append, clock=clock)
    with contextlib.closing(conductor), Ledger(ledger_path(out, made.run_id), clock=clock) as ledger:
        attempt = ledger.claim("w", 0, 60)
        assert attempt is not None
        met = Ended(
            claimed="none",
            verified="none",
            infra="RUNTIME_USAGE_LIMIT",
            reason="infra_failed",
            strategy="scripted",
            index_sha256="",
            retry_after=7200.0,
        )
        ledger.end(attempt, met)
        conductor._plan_retries()
        for _ in range(3):
            conductor._waiting.report(0, 1)
    (event,) = events
    assert event == {
        "event": "waiting",
        "attempt_id": "limited.1.r1",
        "mission_id": "limited",
        "until": "2026-01-01T02:00:00.000000Z",
        "message": "limited.1.r1 is retried after RUNTIME_USAGE_LIMIT at 2026-01-01T02:00:00.000000Z",
        "at": "2026-01-01T00:00:00.000000Z",
    }


def test_interrupted_attempt_does_not_affect_others(out: Path, tmp_path: Path) -> None:
    source = HEAD + mission("waits", command("sleep 600"), verify=ANSWER) + mission("good", *DOES_IT, verify=ANSWER)
    made = plan(source, out, tmp_path)

    def stop_it(event: dict[str, Any]) -> None:
        if event["attempt_id"] == "waits.1" and event["event"] == "running":
            ledger = Ledger(ledger_path(out, made.run_id))
            ledger.interrupt("waits.1")
            ledger.close()

    conduct(made, out, stop_it)
    assert results(made, out) == {
        "waits.1": ("none", "failed", None, "interrupted"),
        "good.1": ("success", "passed", None, "completed"),
    }


def test_activity_is_reported_when_it_starts(out: Path, tmp_path: Path) -> None:
    source = HEAD + mission("waits", write("a", "b"), command("sleep 20 #\x1b[31m\n# more"), verify=ANSWER)
    made = plan(source, out, tmp_path)
    reported: list[str] = []

    def hear(event: dict[str, Any]) -> None:
        if event["event"] == "activity":
            reported.append(event["activity"])
            if "sleep" in reported[-1]:
                with Ledger(ledger_path(out, made.run_id)) as ledger:
                    ledger.interrupt("waits.1")

    conduct(made, out, hear)
    assert reported == ['write_file {"path":"a","content":"b"}', "sleep 20 #\\x1b[31m # more"]
    assert results(made, out) == {"waits.1": ("none", "failed", None, "interrupted")}


def test_infra_failure_is_retried_with_its_parent_named(out: Path, tmp_path: Path) -> None:
    made = plan(HEAD + mission("falls", {"fault": "crash"}, verify=ANSWER), out, tmp_path, retries=1)
    conduct(made, out)
    found = attempts(made, out)
    assert [(each.id, each.parent) for each in found.values()] == [("falls.1", None), ("falls.1.r1", "falls.1")]
    assert all(each.result is not None and each.result.infra == "RUNTIME_CRASH" for each in found.values())
    schedule = [json.loads(line) for line in (out / made.run_id / "schedule.jsonl").read_text().splitlines()]
    assert [each.get("parent") for each in schedule if each["kind"] == "planned"] == [None, "falls.1"]


def test_schedule_records_event_times_not_write_time(out: Path, tmp_path: Path) -> None:
    made = plan(HEAD + mission("falls", {"fault": "crash"}, verify=ANSWER), out, tmp_path, retries=1)
    run = conduct(made, out)
    entries = [json.loads(line) for line in (run / "schedule.jsonl").read_text().splitlines()]
    at = {(each["kind"], each.get("attempt", "")): each["at"] for each in entries}
    order = [
        *((kind, "falls.1") for kind in ("planned", "started", "finished")),
        *((kind, "falls.1.r1") for kind in ("planned", "started", "finished")),
        ("closed", ""),
    ]
    assert sorted(at, key=lambda each: at[each]) == order
    assert len(set(at.values())) == len(order)
    for id, each in attempts(made, out).items():
        record = document(out, made, each, "attempt.json")
        assert at["started", id] <= record["states"][0]["at"] <= record["written_at"] <= at["finished", id]


def test_program_that_gives_up_is_not_an_infra_failure(out: Path, tmp_path: Path) -> None:
    settings = {"process": {"command": ["sh", "-c", "echo 42 > answer.txt; echo failed: too hard; exit 3"]}}
    source = HEAD + mission("quits", verify=ANSWER)
    made = plan(source, out, tmp_path, chain="process!", runtimes=settings)
    conduct(made, out)
    assert results(made, out) == {"quits.1": ("failure", "passed", None, "turn_failed")}


def test_failed_mission_is_not_retried(out: Path, tmp_path: Path) -> None:
    made = plan(HEAD + mission("fails", say("done"), verify=ANSWER), out, tmp_path, retries=5)
    conduct(made, out)
    assert list(attempts(made, out)) == ["fails.1"]


def test_pauses_for_past_resets_grow(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(HEAD + mission("asks", say("done")), out, tmp_path)
    clock = ManualClock()
    waits: list[float] = []
    used_up = Ended(
        claimed="none",
        verified="none",
        infra="RUNTIME_USAGE_LIMIT",
        reason="infra_failed",
        strategy="process",
        index_sha256="",
        retry_after=1.0,
        reset_named=True,
    )

    def work(self: Conductor) -> None:
        for _ in range(5):
            attempt = self._ledger.claim("worker", self._epoch, 60.0)
            assert attempt is not None
            self._ledger.end(attempt, used_up)
            self._plan_retries()
            waits.append((self._ledger.next_time() or 0.0) - clock.now().timestamp())
            clock.advance(waits[-1])

    monkeypatch.setattr(Conductor, "_work", work)
    conductor = Conductor(out, made.run_id, clock=clock)
    conductor.conduct()
    conductor.close()
    assert waits == [1, 2, 4, 8, 16]


def stop_often(made: Plan, out: Path, times: int, how: str) -> None:
    """Stop the run this often, each time while its attempt is running."""

    def stop(self: Conductor) -> None:
        self._ledger.claim("worker", self._epoch, 60.0)
        if how == "killed":  # then it closes nothing
            patch.setattr(self, "_close_torn", lambda **_: None)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Conductor, "_work", stop)
        for _ in range(times):
            with pytest.raises(KeyboardInterrupt):
                conduct(made, out)


@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_a_run_that_is_stopped_ten_times_is_still_completed(out: Path, tmp_path: Path, how: str) -> None:
    made = plan(HEAD + mission("answer", *DOES_IT, verify=ANSWER), out, tmp_path)
    stop_often(made, out, 10, how)
    run = conduct(made, out)
    assert results(made, out) == {
        **{
            f"answer.1{f'.r{n}' if n else ''}": ("none", "none", "ATTEMPT_WORKER_LOST", "worker_lost")
            for n in range(10)
        },
        "answer.1.r10": ("success", "passed", None, "completed"),
    }
    assert verify(run).ok


@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_attempt_that_always_kills_its_conductor_is_given_up(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(run_module, "MAX_STOPPED", 5)
    made = plan(HEAD + mission("answer", *DOES_IT, verify=ANSWER), out, tmp_path)
    stop_often(made, out, 8, how)
    conduct(made, out)
    assert [each[2] for each in results(made, out).values()] == ["ATTEMPT_WORKER_LOST"] * 6


def test_a_stop_does_not_excuse_an_attempt_that_kills_its_worker(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(HEAD + mission("kills", *DOES_IT, verify=ANSWER), out, tmp_path)
    stop_often(made, out, 2, "killed")
    patch_workers(monkeypatch, "worker.run_attempt = lambda *_: os.kill(os.getpid(), 9)")
    conduct(made, out)
    found = [each.result.stopped for each in attempts(made, out).values() if each.result is not None]
    assert found == [True, True, False, False, False, False]


CONDUCT = """
import sys
from pathlib import Path
from proofbox.lab.run.conductor import Conductor
Conductor(Path(sys.argv[1]), sys.argv[2], on_event=lambda e: print(e["event"], flush=True)).conduct()
"""


def start(made: Plan, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CONDUCT, str(out), made.run_id], stdout=subprocess.PIPE, text=True, process_group=0
    )


def descendants(of: int) -> set[int]:
    found, pending = set(), [of]
    while pending:
        parent = pending.pop()
        for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                pending += (children := [int(each) for each in tasks.read_text().split()])
            except OSError:
                continue
            found.update(children)
    return found


def gone(pids: set[int], patience: float = 60.0) -> bool:
    end = time.monotonic() + patience
    while any(Path(f"/proc/{pid}").exists() and _state(pid) != "Z" for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.timeout(3600)
def test_run_killed_at_any_point_resumes_to_the_same_result(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    source = HEAD + "".join(
        [
            mission("good", *DOES_IT, verify=ANSWER, replicates=4),
            mission("lies", say("done"), verify=ANSWER, replicates=2),
            mission("works", command("sleep 0.05; echo 42 > answer.txt"), say("done"), verify=ANSWER, replicates=2),
        ]
    )
    expected = {"good": ("success", "passed"), "lies": ("success", "failed"), "works": ("success", "passed")}
    for number in range(rounds(2, 100)):
        out = tmp_path / f"out-{number}"
        made = plan(source, out, tmp_path)
        seed = random.randrange(1 << 30)  # noqa: S311
        wait = random.Random(seed).random() * 1.5  # noqa: S311
        for _ in range(2):
            conductor = start(made, out)
            end = time.monotonic() + wait
            while time.monotonic() < end and conductor.poll() is None:
                time.sleep(0.005)
            conductor.send_signal(signal.SIGSTOP)  # it starts no worker between the check and its death
            below = descendants(conductor.pid)
            conductor.kill()  # it may have ended already
            conductor.communicate()
            assert gone(below), f"seed {seed}: processes outlived their conductor"
        conduct(made, out)
        found = attempts(made, out)
        parents = {each.parent for each in found.values()}
        final = {id: each for id, each in found.items() if id not in parents}
        assert len(final) == 8, seed
        for id, each in final.items():
            assert each.result is not None
            assert (each.result.claimed, each.result.verified) == expected[each.mission], (seed, id)
            assert each.result.infra is None, (seed, id)
        for each in found.values():
            assert each.id in {one.id for one in final.values()} or (
                each.result is not None and each.result.infra == "ATTEMPT_WORKER_LOST"
            ), seed
        report = verify(out)
        assert report.ok, (seed, report.findings)
        assert not (out / ".work" / made.run_id).exists()


def test_run_killed_while_committing_can_be_resumed(out: Path, tmp_path: Path) -> None:
    made = plan(HEAD + mission("answer", *DOES_IT, verify=ANSWER), out, tmp_path)
    code = (
        "import os, sys, pathlib, proofbox.lab.run.conductor as run\n"
        "run.summarize = lambda *_: os.kill(os.getpid(), 9)\n"
        "run.Conductor(pathlib.Path(sys.argv[1]), sys.argv[2]).conduct()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(out), made.run_id], check=False)
    assert done.returncode == -9
    assert (out / made.run_id / "suite.toml").exists()
    run = conduct(made, out)
    assert load_bundle(run).index.status == "ok"
    assert verify(run).ok


def test_suite_files_are_used_as_of_planning(tmp_path: Path) -> None:
    base, out = tmp_path / "suite", tmp_path / "out"
    for name in ("hidden", "start"):
        (base / name).mkdir(parents=True)
    (base / "hidden/check.sh").write_text("grep -qx 42 answer.txt\n")
    (base / "start/answer.txt").write_text("41\n")
    (base / "prompt.txt").write_text("as planned")
    verify_it = {"files": "hidden", "commands": ["sh check.sh"]}
    text = mission("answer", *DOES_IT, verify=verify_it, workspace="start", prompt_file="prompt.txt")
    archive = Path(shutil.make_archive(str(base / "given"), "tar", base / "start"))
    (base / "start/out").symlink_to("/nowhere")
    os.mkfifo(base / "start/pipe")
    started, archived = tree_sha256(base / "start", trusted=True), hashlib.sha256(archive.read_bytes()).hexdigest()
    text += mission("archived", *DOES_IT, verify=ANSWER, workspace="given.tar")
    made = plan(HEAD + text.replace('prompt = "do it"\n', "", 1), out, base)
    shutil.rmtree(base)
    run = conduct(made, out)
    good = ("success", "passed", None, "completed")
    assert results(made, out) == {"answer.1": good, "archived.1": good}
    assert (run / "attempts/answer.1.e1/prompt.txt").read_text() == "as planned"
    inputs = json.loads((run / "environment.json").read_bytes())["inputs"]
    assert sorted(inputs) == ["given.tar", "hidden", "prompt.txt", "start"]
    assert inputs["prompt.txt"] == hashlib.sha256(b"as planned").hexdigest()
    assert inputs["given.tar"] == archived
    assert inputs["start"] == started


@pytest.mark.parametrize("kind", ["tar", "gztar", "xztar", "zip"])
def test_a_workspace_may_be_an_archive(out: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "start/deep").mkdir(parents=True)
    (tmp_path / "start/deep/given.txt").write_text("42\n")
    (tmp_path / "start/run.sh").write_text("cat deep/given.txt > answer.txt\n")
    (tmp_path / "start/run.sh").chmod(0o755)
    archive = Path(shutil.make_archive(str(tmp_path / "given"), kind, tmp_path / "start"))
    text = mission("answer", command("./run.sh"), say("done"), verify=ANSWER, workspace=archive.name)
    made = plan(HEAD + text, out, tmp_path)
    conduct(made, out)
    assert results(made, out) == {"answer.1": ("success", "passed", None, "completed")}


@pytest.mark.parametrize("content", [b"", b"no archive at all", b"\x1f\x8b\x08\x00torn", b"PK\x05\x06" + bytes(9)])
def test_archive_that_cannot_be_unpacked_plans_nothing(out: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "given.tar.gz").write_bytes(content)
    with pytest.raises(SuiteInvalid, match=r"given\.tar\.gz cannot be unpacked") as caught:
        plan(HEAD + mission("answer", *DOES_IT, workspace="given.tar.gz"), out, tmp_path)
    assert caught.value.fix_hints
    assert [each for each in out.rglob("*") if each.is_file()] == []


def test_one_conductor_at_a_time(out: Path, tmp_path: Path) -> None:
    made = plan(HEAD + mission("waits", command("sleep 600")), out, tmp_path)
    conductor = start(made, out)
    assert conductor.stdout is not None
    assert conductor.stdout.readline()
    try:
        with pytest.raises(RunBusy):
            conduct(made, out)
    finally:
        below = descendants(conductor.pid)
        conductor.kill()
        conductor.communicate()
        assert gone(below)


def test_conducting_a_committed_run_again_changes_nothing(out: Path, tmp_path: Path) -> None:
    made = plan(HEAD + mission("answer", *DOES_IT, verify=ANSWER), out, tmp_path)
    run = conduct(made, out)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert conduct(made, out) == run
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_run_is_found_by_output_directory_run_directory_and_ledger(out: Path, tmp_path: Path) -> None:
    made = plan(HEAD + mission("answer", *DOES_IT), out, tmp_path)
    for place in (out, out / made.run_id, out / f"{made.run_id}.ledger"):
        assert find_run(place) == (out, made.run_id)
    with pytest.raises(RunUnknown):
        find_run(tmp_path)
    with pytest.raises(RunUnknown):
        Conductor(out, "run-none")
