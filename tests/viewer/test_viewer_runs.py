"""Pages of long runs: the content before the check of the evidence ends, and repeated reads after a change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from proofbox import BundleWriter
from proofbox.core.clock import ManualClock
from proofbox.errors import NotFoundError
from proofbox.lab.attempt.artifacts import index_sha256
from proofbox.lab.run.closing import as_committed
from proofbox.lab.run.ledger import Ended, Ledger, PlannedAttempt
from proofbox.lab.run.plan import ledger_path
from proofbox.viewer import runs
from proofbox.viewer.background import BackgroundReader, Reading
from proofbox.viewer.rendering import Renderer
from proofbox.viewer.runs import RunReader, run_mark, unchecked_view
from proofbox.viewer.selection import ROWS, Query, run_values

LONG = 30.0


class Files:
    """Files that a test changes, and a reader that a test holds up."""

    def __init__(self) -> None:
        self.quick = self.mark = 1
        self.reads = 0
        self.started = threading.Semaphore(0)
        self.may_end = threading.Event()

    def read(self, path: Path) -> str:
        self.reads += 1
        self.started.release()
        if not self.may_end.wait(LONG):
            raise AssertionError("the test did not release the reader")
        if path.name == "bad":
            raise NotFoundError("nothing there", op="view")
        return f"{path.name} {self.reads}"


@pytest.fixture
def files() -> Iterator[Files]:
    made = Files()
    yield made
    made.may_end.set()


def test_what_takes_long_is_read_once_at_a_time_and_again_after_a_change(files: Files) -> None:
    clock = ManualClock(datetime(2026, 1, 2, tzinfo=UTC))
    reader = BackgroundReader(files.read, lambda _: files.quick, lambda _: files.mark, clock)
    path = Path("run")
    assert reader.get(path, 0) == Reading(None, False, "", False)
    assert files.started.acquire(timeout=LONG)
    clock.advance(60)
    files.quick = files.mark = 2
    assert reader.get(path, 0, reload=False).result is None
    assert files.reads == 1, "a change starts no second reader beside the first"
    files.may_end.set()
    first = reader.get(path, LONG, reload=False)
    assert (first.result, first.current, first.changed) == ("run 1", False, True), "read before the change"
    assert first.checked_at.startswith("2026-01-02T00:00:00"), "when reading began"
    second = reader.get(path, LONG, reload=False)
    assert (second.result, second.current, second.changed) == ("run 2", True, False)
    assert second.checked_at.startswith("2026-01-02T00:01:00")
    assert reader.get(path, LONG) == second, "a reload reads nothing if no file has changed"
    assert files.reads == 2
    files.may_end.clear()
    assert files.started.acquire(timeout=LONG)
    files.mark = 3
    assert reader.get(path, 0).result == "run 2"
    assert files.started.acquire(timeout=LONG)
    third = reader.get(path, 0, reload=False)
    assert (third.result, third.current, third.changed) == ("run 2", False, True), "known until the change is read"
    assert files.reads == 3


def test_reload_finds_a_change_that_only_the_complete_mark_shows(files: Files) -> None:
    files.may_end.set()
    reader = BackgroundReader(files.read, lambda _: 1, lambda _: files.mark)
    path = Path("run")
    assert reader.get(path, LONG).result == "run 1"
    files.mark = 2
    assert reader.get(path, LONG, reload=False).result == "run 1", "a page that waits for a check starts no other"
    assert reader.get(path, LONG).result == "run 2"


def test_reload_during_a_check_leads_to_another_one(files: Files) -> None:
    reader = BackgroundReader(files.read, lambda _: 1, lambda _: files.mark)
    path = Path("run")
    reader.get(path, 0)
    assert files.started.acquire(timeout=LONG)  # the mark of the first check is known
    files.mark = 2
    assert not reader.get(path, 0).current
    files.may_end.set()
    found = reader.get(path, LONG, reload=False)
    assert (found.result, found.current) == ("run 2", True)


def test_failure_of_a_reader_is_raised(files: Files) -> None:
    files.may_end.set()
    with pytest.raises(NotFoundError, match="nothing there"):
        BackgroundReader(files.read, lambda _: 1, lambda _: 1).get(Path("bad"), LONG)


@pytest.fixture
def ledger(out: Path) -> Iterator[Ledger]:
    """The ledger of a run in progress with 120 attempts."""
    planned = [PlannedAttempt(f"m.{number}", "m", number) for number in range(1, 121)]
    (out / "run-1").mkdir(parents=True)
    with Ledger.create(ledger_path(out, "run-1"), {"epoch": "1"}, planned) as made:
        yield made


def test_reading_a_ledger_is_no_change(ledger: Ledger, out: Path) -> None:
    ledger.close()
    before = run_mark(out / "run-1")
    with Ledger(ledger.path, read_only=True) as reader:
        reader.attempts()
        assert run_mark(out / "run-1") == before, "else a run would be read again forever"
        reader.set_value("x", "y")
        assert run_mark(out / "run-1") != before


def test_only_the_attempts_of_one_page_are_read_until_results_are_known(ledger: Ledger, out: Path) -> None:
    view = unchecked_view(out / "run-1", 2 * ROWS, ROWS)
    assert [row.id for row in view.rows] == [f"m.{number}" for number in range(101, 121)]
    assert (view.checking, view.planned, {row.outcome for row in view.rows}) == (True, 120, {"checking"})
    shown = run_values("run-1", view, Query(page=3), current=False)
    assert (shown["selection"].page, shown["selection"].pages, shown["grid"]) == (3, 3, None)
    text = Renderer().render("run.html", root="", **shown)
    assert "of 120 attempts" in text
    assert " data-refresh" in text


def test_bundles_of_a_run_in_progress_are_read_once(ledger: Ledger, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def note(path: Path, attempts: list[object]) -> list[object]:
        asked.append([each.id for each in attempts])  # type: ignore[attr-defined]
        return as_committed(path, attempts)  # type: ignore[arg-type,return-value]

    monkeypatch.setattr(runs, "as_committed", note)
    end(ledger, out, confirmed=True)
    end(ledger, out, confirmed=False)
    reader = RunReader()
    assert [row.outcome for row in reader.read(out / "run-1").rows[:3]] == ["passed", "infra", "running"]
    end(ledger, out, confirmed=True)
    assert [row.outcome for row in reader.read(out / "run-1").rows[:3]] == ["passed", "infra", "passed"]
    assert asked == [["m.1", "m.2"], ["m.2", "m.3"]], "only results that are not confirmed yet"


def end(ledger: Ledger, out: Path, *, confirmed: bool) -> None:
    """End the next attempt as passed, with a bundle that matches the ledger if it is `confirmed`."""
    claimed = ledger.claim("w", 1, 60.0)
    assert claimed is not None
    with BundleWriter.create(out / "run-1" / "attempts", run_id=f"{claimed.id}.e1") as bundle:
        pass
    digest = index_sha256(bundle.path) if confirmed else "0" * 64
    members = {"claimed": "success", "verified": "passed", "infra": None, "reason": "completed"}
    ledger.end(claimed, Ended(**members, strategy="scripted", index_sha256=digest))  # type: ignore[arg-type]
