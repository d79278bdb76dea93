"""The conformance suite of crews: every engine runs attempts, loses workers, interrupts and stops in the same way."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ray_cluster import RayCluster, worker_processes
from suites import HEAD, attempts, command, mission, plan, results, say, write

from proofbox.config.engine import EngineSettings
from proofbox.errors import RunInterrupted
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.reports.totals import final_attempts
from proofbox.lab.run.closing import lost
from proofbox.lab.run.conductor import Conductor
from proofbox.lab.run.crews import local
from proofbox.lab.run.crews.contract import Crew
from proofbox.lab.run.crews.local import LocalCrew
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import Plan, ledger_path

pytestmark = [pytest.mark.needs("bubblewrap"), pytest.mark.timeout(600)]

ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
WORKS = mission("answer", write("answer.txt", "42\n"), say("done"), verify=ANSWER, replicates=4)
WAITS = mission("waits", command("until test -e go; do sleep 0.1; done"), verify={"commands": ["test -e go"]})
LOST = {"ATTEMPT_WORKER_LOST"}


class Watched:
    """A conducted run, with its events; a callback may act on each of them."""

    def __init__(self, made: Plan, out: Path) -> None:
        self.made, self.out = made, out
        self.events: list[dict[str, Any]] = []
        self.stop = threading.Event()
        self._conductor = Conductor(out, made.run_id, on_event=self._hear, stop=self.stop)
        self.crew: Crew = self._conductor._crew

    def _hear(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.hear(event)

    def hear(self, event: dict[str, Any]) -> None:
        """Act on an event; tests replace it."""

    def conduct(self) -> Path:
        try:
            return self._conductor.conduct()
        finally:
            self._conductor.close()

    def interrupt(self, attempt: str) -> None:
        with Ledger(ledger_path(self.out, self.made.run_id)) as ledger:
            ledger.interrupt(attempt)


class Engine(NamedTuple):
    """An engine under test."""

    options: dict[str, Any]
    """The plan's fields that select it."""
    kill: Callable[[Crew, str], None]
    """Kill the process of a worker, as the kernel or an administrator would."""


def kill_process(crew: Crew, name: str) -> None:
    assert isinstance(crew, LocalCrew)
    crew._workers[name].kill()


def kill_remote(token: str) -> None:
    for pid in worker_processes(token):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=["local", pytest.param("ray", marks=[pytest.mark.needs("ray"), pytest.mark.xdist_group("ray")])])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "local":
        return Engine({}, kill_process)
    cluster: RayCluster = request.getfixturevalue("cluster")
    settings = EngineSettings(name=f"ray:{cluster.address}", per_node=2)
    return Engine({"engine": settings}, lambda *_: kill_remote(cluster.token))


def test_every_attempt_ends_once_within_the_concurrency(tmp_path: Path, out: Path, engine: Engine) -> None:
    made = plan(HEAD + WORKS, out, tmp_path, concurrency=2, **engine.options)
    run = Watched(made, out)
    claimed: list[int] = []

    def count(event: dict[str, Any]) -> None:
        with Ledger(ledger_path(out, made.run_id)) as ledger:
            claimed.append(ledger.counts()["claimed"])

    run.hear = count  # type: ignore[method-assign]
    assert verify(run.conduct()).ok
    assert max(claimed) <= 2
    assert {found[1:] for found in results(made, out).values()} == {("passed", None, "completed")}
    states = ["preparing", "running", "stopping", "verifying", "committing", "ended"]
    for id in attempts(made, out):
        seen = [each["event"] for each in run.events if each["attempt_id"] == id and each["event"] in states]
        assert seen == states, id


def test_attempt_of_a_killed_worker_is_retried_by_the_ledger(tmp_path: Path, out: Path, engine: Engine) -> None:
    made = plan(HEAD + WAITS + WORKS, out, tmp_path, concurrency=2, **engine.options)
    run = Watched(made, out)

    def act(event: dict[str, Any]) -> None:
        if event["event"] == "running" and event["attempt_id"] == "waits.1":
            worker = attempts(made, out)["waits.1"].worker
            engine.kill(run.crew, worker or "")
        elif event["event"] == "running" and event["mission_id"] == "waits":
            run.interrupt(event["attempt_id"])

    run.hear = act  # type: ignore[method-assign]
    assert verify(run.conduct()).ok
    found = attempts(made, out)
    lost = {id for id, each in found.items() if each.result is not None and each.result.infra is not None}
    assert "waits.1" in lost
    assert {found[id].result.infra for id in lost} <= LOST  # type: ignore[union-attr]
    assert found["waits.1.r1"].parent == "waits.1"
    assert Counter(each.mission for each in final_attempts(list(found.values()))) == {"answer": 4, "waits": 1}
    passed = [each for each in found.values() if each.result is not None and each.result.verified == "passed"]
    assert Counter(each.mission for each in passed) == {"answer": 4}


def test_worker_that_is_suspended_before_its_first_attempt_is_replaced(
    tmp_path: Path, out: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "SUSPENDED_TIMEOUT", 0.5)
    made = plan(HEAD + WORKS, out, tmp_path, concurrency=2, **engine.options)
    run = Watched(made, out)
    assert isinstance(run.crew, LocalCrew)
    start_workers = run.crew.start_workers
    suspended: set[str] = set()

    def start_suspended(left: int, epoch: int) -> None:
        start_workers(left, epoch)
        if not suspended:  # they have just been started, and are still importing their modules
            suspended.update(run.crew)
            for name in suspended:
                run.crew._workers[name].send_signal(signal.SIGSTOP)  # type: ignore[attr-defined]

    monkeypatch.setattr(run.crew, "start_workers", start_suspended)
    assert verify(run.conduct()).ok
    found = attempts(made, out).values()
    assert {each.result and each.result.infra for each in found} == {None}
    assert not suspended & {each.worker for each in found}


def test_requested_interrupt_reaches_a_running_attempt(tmp_path: Path, out: Path, engine: Engine) -> None:
    made = plan(HEAD + WAITS, out, tmp_path, concurrency=1, **engine.options)
    run = Watched(made, out)

    def act(event: dict[str, Any]) -> None:
        if event["event"] == "running":
            run.interrupt(event["attempt_id"])

    run.hear = act  # type: ignore[method-assign]
    run.conduct()
    assert results(made, out) == {"waits.1": ("none", "failed", None, "interrupted")}


def test_stopped_run_leaves_no_claimed_attempt_and_is_resumed(tmp_path: Path, out: Path, engine: Engine) -> None:
    made = plan(HEAD + WAITS + WORKS, out, tmp_path, concurrency=2, **engine.options)
    run = Watched(made, out)

    def act(event: dict[str, Any]) -> None:
        if event["event"] == "running" and event["mission_id"] == "waits":
            run.stop.set()

    run.hear = act  # type: ignore[method-assign]
    with pytest.raises(RunInterrupted):
        run.conduct()
    assert not list(run.crew)
    assert "claimed" not in {each.state for each in attempts(made, out).values()}

    again = Watched(made, out)

    def interrupt(event: dict[str, Any]) -> None:
        if event["event"] == "running" and event["mission_id"] == "waits":
            again.interrupt(event["attempt_id"])

    again.hear = interrupt  # type: ignore[method-assign]
    assert verify(again.conduct()).ok
    ended = {
        each.mission + str(each.replicate): each.result for each in final_attempts(list(attempts(made, out).values()))
    }
    assert {id: each and each.reason for id, each in ended.items()} == {
        **{f"answer{number}": "completed" for number in (1, 2, 3, 4)},
        "waits1": "interrupted",
    }


def test_result_of_an_attempt_that_was_taken_over_is_refused(tmp_path: Path, out: Path, engine: Engine) -> None:
    """As after a suspended machine: the lease has expired, and another process has ended the attempt.

    It is verified long enough for that: a result that is already being stored would not be kept apart.
    """
    made = plan(
        HEAD + mission("answer", say("done"), verify={"commands": ["sleep 1"]}),
        out,
        tmp_path,
        concurrency=1,
        **engine.options,
    )
    run = Watched(made, out)

    def take(event: dict[str, Any]) -> None:
        if event["event"] == "verifying" and event["attempt_id"] == "answer.1":
            with Ledger(ledger_path(out, made.run_id)) as ledger:
                mine = ledger.take_over(ledger.attempt("answer.1"), "another process", 60)
                ledger.end(mine, lost(""))

    run.hear = take  # type: ignore[method-assign]
    run.conduct()
    found = results(made, out)
    assert found["answer.1"] == ("none", "none", "ATTEMPT_WORKER_LOST", "worker_lost"), "the late result is refused"
    assert found["answer.1.r1"][1:] == ("passed", None, "completed")
    assert [each["attempt_id"] for each in run.events if each["event"] == "lost"] == ["answer.1"]
    kept = out / f"{made.run_id}.refused" / "answer.1.e1"
    assert kept.exists() == bool(engine.options), "a bundle from a node is kept next to the run"
