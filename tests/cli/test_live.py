"""The live progress display of a run."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from proofbox.cli.live import Progress
from proofbox.lab.run.events import EventKind, RunStarted, SuiteEvent

LONG = "a-long-mission-name-as-of-tasks-with-many-words-in-it"


def picture(progress: Progress, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(progress._render())
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def event(kind: EventKind, attempt: str, **members: str) -> SuiteEvent:
    found = {
        "run_id": "run-1",
        "at": "2026-01-01T00:00:00Z",
        "event": kind,
        "attempt_id": attempt,
        "mission_id": "a",
        **members,
    }
    return msgspec.convert(found, SuiteEvent)


def test_start_states_how_many_attempts_there_are() -> None:
    progress = Progress(shown=False)
    progress.update(RunStarted(run_id="run-1", bundle="out/run-1", attempts=3, ended=1))
    progress.update(event("ended", "a.2", verified="passed"))
    assert picture(progress)[0].startswith("2/3 done, 1 passed, ")


def test_long_ids_are_shortened_to_distinct_lines() -> None:
    progress = Progress(shown=False)
    for number in (1, 2, 10):
        progress.update(event("running", f"{LONG}.{number}"))
        progress.update(event("activity", f"{LONG}.{number}", activity="pytest -q " * 9))
    lines = picture(progress)[1:]
    assert len(lines) == 3
    assert [line.split()[0][-3:] for line in lines] == ["t.1", "t.2", ".10"]
    assert all(line.startswith("a-long-mission") and "pytest" in line for line in lines)


def test_waiting_message_stays_until_an_attempt_starts() -> None:
    progress = Progress(shown=False)
    progress.update(event("running", "a.1"))
    progress.update(event("waiting", "b.1", message="a limit\x1b"))
    progress.update(event("verifying", "a.1"))
    assert "waiting: a limit\\x1b" in picture(progress)
    progress.update(event("preparing", "b.1"))
    assert not any("waiting" in line for line in picture(progress))


def test_activity_is_cleared_on_state_change() -> None:
    progress = Progress(shown=False)
    progress.update(event("activity", "a.1", activity="make"))
    assert "make" in picture(progress)[1]
    progress.update(event("verifying", "a.1"))
    assert "make" not in picture(progress)[1]


def test_nodes_are_counted_and_shown_with_their_attempts() -> None:
    progress = Progress(shown=False)
    progress.update(event("node", "", node="host-1", message="admitted: 2 attempts, bubblewrap"))
    progress.update(event("node", "", node="host-2", message="admitted: 2 attempts, bubblewrap"))
    progress.update(event("node", "", node="host-3", message="refused: the disk is full"))
    progress.update(event("placed", "a.1", node="host-1\x1b"))
    assert "placed on host-1\\x1b" in picture(progress)[2]
    progress.update(event("running", "a.1"))
    progress.update(event("activity", "a.1", activity="make"))
    _, nodes, attempt = picture(progress)
    assert nodes == "nodes: 2 admitted, 1 refused"
    assert attempt.startswith("a.1  running on host-1\\x1b  ")
    assert attempt.endswith("  make")
    progress.update(event("ended", "a.1"))
    progress.update(event("running", "a.1"))
    assert "on host-1" not in picture(progress)[2], "a retry is placed again"
