"""The ledger stays correct with concurrent processes and after kills."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from proofbox.core.clock import ManualClock
from proofbox.errors import AttemptUnknown, CorruptError, IoFailed, LeaseLost, RunUnknown
from proofbox.lab.run import ledger as module
from proofbox.lab.run.ledger import Attempt, Ended, Ledger, PlannedAttempt

LEASE = 10.0


def ended(reason: str = "completed") -> Ended:
    return Ended(
        claimed="success", verified="passed", infra=None, reason=reason, strategy="scripted", index_sha256="0" * 64
    )


def make(path: Path, count: int = 3, clock: ManualClock | None = None) -> Ledger:
    planned = [PlannedAttempt(f"att-{number}", "m", number) for number in range(count)]
    return Ledger.create(path, {"run_id": "run-1"}, planned, clock=clock)


class TheLedger(RuleBasedStateMachine):
    """Workers claim, end, lose and take over attempts; a plain dictionary is the model."""

    workers = Bundle("workers")
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._clock = ManualClock()
        self._path = Path(self._directory.name) / "ledger"
        self._ledger = make(self._path, 0, self._clock)
        self._epoch = self._ledger.begin_epoch()
        self._model: dict[str, str] = {}
        self._owner: dict[str, str] = {}
        self._due: dict[str, float] = {}
        self._until: dict[str, float] = {}
        self._made = 0

    def teardown(self) -> None:
        self._ledger.close()
        self._directory.cleanup()

    def _now(self) -> float:
        return self._clock.now().timestamp()

    @rule(target=workers)
    def hire(self) -> tuple[str, int]:
        self._made += 1
        return f"worker-{self._made}", self._epoch

    @rule(delay=st.sampled_from([0.0, 5.0]))
    def plan(self, delay: float) -> None:
        self._made += 1
        name = f"att-{self._made}"
        for _ in range(2):
            self._ledger.plan(PlannedAttempt(name, "m", 1, None, self._now() + delay))
        self._model[name] = "planned"
        self._due[name] = self._now() + delay

    @rule(target=held, worker=workers)
    def claim(self, worker: tuple[str, int]) -> object:
        name, epoch = worker
        if epoch != self._epoch:
            with pytest.raises(LeaseLost):
                self._ledger.claim(name, epoch, LEASE)
            return multiple()
        got = self._ledger.claim(name, epoch, LEASE)
        due = [each for each, state in self._model.items() if state == "planned" and self._due[each] <= self._now()]
        if got is None:
            assert not due
            return multiple()
        assert got.id in due
        assert self._due[got.id] == min(self._due[each] for each in due)
        self._model[got.id] = "claimed"
        self._owner[got.id] = name
        self._until[got.id] = self._now() + LEASE
        return got

    @rule(attempt=held)
    def end(self, attempt: Attempt) -> None:
        if self._model[attempt.id] == "ended" and self._ledger.attempt(attempt.id).result == ended():
            self._ledger.end(attempt, ended())
        elif self._model[attempt.id] == "claimed" and self._owner[attempt.id] == attempt.worker:
            self._ledger.end(attempt, ended())
            self._model[attempt.id] = "ended"
        else:
            with pytest.raises(LeaseLost):
                self._ledger.end(attempt, ended())

    @rule(worker=workers)
    def beat(self, worker: tuple[str, int]) -> None:
        self._ledger.heartbeat(worker[0], LEASE)
        for name, owner in self._owner.items():
            if owner == worker[0]:
                self._until[name] = self._now() + LEASE

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self._clock.advance(seconds)

    @rule()
    def resume(self) -> None:
        self._epoch = self._ledger.begin_epoch()

    @precondition(lambda self: "claimed" in self._model.values())
    @rule(target=held)
    def take_over(self) -> object:
        torn = self._ledger.torn(alive=self._owner.values())
        assert {each.id for each in torn} == {
            name for name, state in self._model.items() if state == "claimed" and self._until[name] < self._now()
        }
        if not torn:
            return multiple()
        taken = self._ledger.take_over(torn[0], "conductor", LEASE)
        assert taken.path == torn[0].path
        self._owner[taken.id] = "conductor"
        self._until[taken.id] = self._now() + LEASE
        return taken

    @rule()
    def reopen(self) -> None:
        self._ledger.close()
        self._ledger = Ledger(self._path, clock=self._clock)

    @invariant()
    def says_what_happened(self) -> None:
        assert {each.id: each.state for each in self._ledger.attempts()} == self._model


TestTheLedger = TheLedger.TestCase

CLAIMER = """
import sys, pathlib
from proofbox.lab.run.ledger import Ledger
ledger = Ledger(pathlib.Path(sys.argv[1]))
while (attempt := ledger.claim(sys.argv[2], 1, 60.0)) is not None:
    print(attempt.id, flush=True)
"""


def test_concurrent_processes_never_claim_the_same_attempt(tmp_path: Path) -> None:
    ledger = make(tmp_path / "ledger", 200)
    ledger.begin_epoch()
    ledger.close()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMER, tmp_path / "ledger", f"w{n}"], stdout=subprocess.PIPE, text=True
        )
        for n in range(8)
    ]
    got = [line for worker in workers for line in worker.communicate(timeout=120)[0].split()]
    assert sorted(got) == sorted(f"att-{n}" for n in range(200))


def test_killed_claimer_leaves_a_usable_ledger(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    with make(tmp_path / "ledger", 5000) as ledger:
        ledger.begin_epoch()
        for number in range(rounds(3, 50)):
            argv = [sys.executable, "-c", CLAIMER, str(tmp_path / "ledger"), f"w{number}"]
            worker = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
            assert worker.stdout is not None
            seen = {worker.stdout.readline().strip() for _ in range(20 + number)}
            os.kill(worker.pid, signal.SIGKILL)
            rest, _ = worker.communicate()
            seen.update(rest.split()[:-1])
            claimed = {each.id for each in ledger.attempts() if each.worker == f"w{number}"}
            assert seen <= claimed
            assert {each.id for each in ledger.torn(alive=[])} >= claimed


def test_an_attempt_is_found_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    with make(tmp_path / "run-1.ledger", 12) as ledger:
        assert ledger.attempt("att-1").id == "att-1"
        assert ledger.attempt("att-11").id == "att-11"
        for wrong in ("nothing", ""):
            with pytest.raises(AttemptUnknown):
                ledger.attempt(wrong)
        with pytest.raises(
            AttemptUnknown, match=r"several attempts begin with 'att-': att-0, att-1, .*att-9, …"
        ) as error:
            ledger.attempt("att-")
        assert error.value.fix_hints == (f"list the attempts: proofbox attempt list {tmp_path}/run-1",)
        assert error.value.details["attempts"] == [f"att-{number}" for number in range(10)]
        assert len(ledger.attempts()) == 12


def test_an_interrupt_reaches_the_worker_with_its_heartbeat(tmp_path: Path) -> None:
    with make(tmp_path / "ledger") as ledger:
        ledger.claim("w", ledger.begin_epoch(), LEASE)
        assert ledger.heartbeat("w", LEASE) == []
        ledger.interrupt("att-0")
        assert ledger.heartbeat("w", LEASE) == ["att-0"]


def test_file_that_is_not_a_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunUnknown):
        Ledger(tmp_path / "none")
    (tmp_path / "text").write_text("not a database, but long enough to be taken for one" * 50)
    with pytest.raises(CorruptError):
        Ledger(tmp_path / "text")
    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE about (key TEXT, value TEXT)")
    other.execute("INSERT INTO about VALUES ('schema_version', 'proofbox.ledger/9')")
    other.commit()
    other.close()
    with pytest.raises(CorruptError, match="ledger/9"):
        Ledger(tmp_path / "other")


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("written_to", [False, True])
def test_ledger_is_readable_on_read_only_storage(tmp_path: Path, written_to: bool) -> None:
    with make(tmp_path / "a#b.ledger") as writer:
        if written_to:
            writer.set_value("said", "later")  # only in the WAL
        else:
            writer.close()
        code = (
            "import pathlib, sys; from proofbox.lab.run.ledger import Ledger; l = Ledger(pathlib.Path(sys.argv[1]),"
            " read_only=True); print(l.get_value('said'), len(l.attempts())); l.close()"
        )
        argv = [shutil.which("bwrap") or "", "--ro-bind", "/", "/", sys.executable, "-c", code, str(writer.path)]
        ran = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (ran.stdout, ran.stderr) == ("later 3\n" if written_to else " 3\n", "")
        assert ran.returncode == 0
        left = {path.name for path in tmp_path.iterdir()}
    assert ("a#b.ledger-wal" in left) is written_to


def test_inaccessible_ledger_is_not_reported_as_damaged(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    with pytest.raises(IoFailed, match="unable to open"):
        Ledger(tmp_path / "ledger")


def test_lane_limits_concurrent_attempts(tmp_path: Path) -> None:
    planned = [PlannedAttempt(f"att-{n}", "m", n, lane="docker" if n < 4 else "other") for n in range(6)]
    with Ledger.create(tmp_path / "ledger", {}, planned) as ledger:
        ledger.bound_lane("docker", 2)
        epoch = ledger.begin_epoch()
        got = [ledger.claim("w", epoch, LEASE) for _ in range(6)]
        assert [each.id for each in got if each is not None] == ["att-0", "att-1", "att-4", "att-5"]
        first = got[0]
        assert first is not None
        ledger.end(first, ended())
        third = ledger.claim("other-worker", epoch, LEASE)
        assert third is not None
        assert third.id == "att-2"
        assert ledger.claim("w", epoch, LEASE) is None


def test_every_lane_of_an_attempt_must_have_room(tmp_path: Path) -> None:
    lanes = ["docker process", "docker scripted", "off process", "off scripted", "docker process", "off-process"]
    planned = [PlannedAttempt(f"att-{n}", "m", n, lane=lane) for n, lane in enumerate(lanes)]
    with Ledger.create(tmp_path / "ledger", {}, planned) as ledger:
        ledger.bound_lane("docker", 1)
        ledger.bound_lane("process", 1)
        epoch = ledger.begin_epoch()
        got = [each for _ in lanes if (each := ledger.claim("w", epoch, LEASE)) is not None]
        assert [each.id for each in got] == ["att-0", "att-3", "att-5"]
        ledger.end(got[0], ended())
        got = [each for _ in lanes if (each := ledger.claim("w", epoch, LEASE)) is not None]
        assert [each.id for each in got] == ["att-1", "att-2"]


def test_ledger_records_times(tmp_path: Path) -> None:
    clock = ManualClock()
    began = clock.now().timestamp()
    with make(tmp_path / "ledger", 2, clock) as ledger:
        clock.advance(1)
        first = ledger.claim("w", ledger.begin_epoch(), LEASE)
        assert first is not None
        assert (first.planned_at, first.claimed_at, first.ended_at) == (began, began + 1, None)
        clock.advance(20)
        taken = ledger.take_over(first, "conductor", LEASE)
        ledger.end(taken, ended())
        clock.advance(1)
        ledger.end(taken, ended())
        ledger.plan(PlannedAttempt("late", "m", 1, "att-0"))
        clock.advance(1)
        ledger.plan(PlannedAttempt("late", "m", 1, "att-0"))
    with Ledger(tmp_path / "ledger", clock=clock) as ledger:
        times = {each.id: (each.planned_at, each.claimed_at, each.ended_at) for each in ledger.attempts()}
    assert times == {
        "att-0": (began, began + 1, began + 21),
        "att-1": (began, None, None),
        "late": (began + 22, None, None),
    }


def test_ledger_reports_a_failed_write_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.01)
    with make(tmp_path / "ledger") as ledger:
        epoch = ledger.begin_epoch()
        other = sqlite3.connect(tmp_path / "ledger", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(IoFailed, match="locked"):
            ledger.claim("w", epoch, LEASE)
        other.execute("ROLLBACK")
        other.close()
        assert ledger.claim("w", epoch, LEASE) is not None


def test_attempt_given_up_by_a_living_worker_is_torn(tmp_path: Path) -> None:
    with make(tmp_path / "ledger") as ledger:
        epoch = ledger.begin_epoch()
        first, second = ledger.claim("w", epoch, LEASE), ledger.claim("w", epoch, LEASE)
        assert first is not None
        assert second is not None
        ledger.give_up(first)
        ledger.heartbeat("w", LEASE)
        (torn,) = ledger.torn(alive=["w"])
        assert (torn.id, torn.given_up, second.given_up) == (first.id, True, False)
        with pytest.raises(LeaseLost):
            ledger.end(first, ended())
        ledger.end(ledger.take_over(torn, "conductor", LEASE), ended())
        ledger.end(second, ended())
        ledger.give_up(second)
        assert ledger.attempt(second.id).state == "ended"


def test_attempt_is_to_retry_until_its_retry_is_planned(tmp_path: Path) -> None:
    with make(tmp_path / "ledger", 3) as ledger:
        epoch = ledger.begin_epoch()
        for again in (None, 0.0, 5.0):
            attempt = ledger.claim("w", epoch, LEASE)
            assert attempt is not None
            ledger.end(attempt, msgspec.structs.replace(ended(), retry_after=again))
        assert [each.id for each in ledger.to_retry()] == ["att-1", "att-2"]
        ledger.plan(PlannedAttempt("att-1.r1", "m", 1, parent="att-1"))
        assert [each.id for each in ledger.to_retry()] == ["att-2"]


def test_retry_lookup_uses_the_index(tmp_path: Path) -> None:
    """Every end of an attempt triggers this lookup, so it must not scan all attempts of a long run."""
    with make(tmp_path / "ledger") as ledger, sqlite3.connect(ledger.path) as db:
        traced: list[str] = []
        ledger._db.set_trace_callback(traced.append)
        ledger.to_retry()
        steps = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {traced[0]}")]
    db.close()
    assert "attempt_again" in steps[0]
    assert "attempt_parent" in steps[-1]
