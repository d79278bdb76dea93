"""The live progress display of a run."""

from __future__ import annotations

import io

from rich.console import Console

from proofbox.cli.live import Progress

LONG = "a-long-mission-name-as-of-tasks-with-many-words-in-it"


def picture(progress: Progress, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(progress._picture())
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_long_ids_are_shortened_to_distinct_lines() -> None:
    progress = Progress([], shown=False)
    for number in (1, 2, 10):
        progress.update({"event": "running", "attempt_id": f"{LONG}.{number}"})
        progress.update({"event": "activity", "attempt_id": f"{LONG}.{number}", "activity": "pytest -q " * 9})
    lines = picture(progress)[1:]
    assert len(lines) == 3
    assert [line.split()[0][-3:] for line in lines] == ["t.1", "t.2", ".10"]
    assert all(line.startswith("a-long-mission") and "pytest" in line for line in lines)


def test_waiting_message_stays_until_an_attempt_starts() -> None:
    progress = Progress([], shown=False)
    progress.update({"event": "running", "attempt_id": "a.1"})
    progress.update({"event": "waiting", "attempt_id": "b.1", "message": "a limit\x1b"})
    progress.update({"event": "verifying", "attempt_id": "a.1"})
    assert "waiting: a limit\\x1b" in picture(progress)
    progress.update({"event": "preparing", "attempt_id": "b.1"})
    assert not any("waiting" in line for line in picture(progress))


def test_activity_is_cleared_on_state_change() -> None:
    progress = Progress([], shown=False)
    progress.update({"event": "activity", "attempt_id": "a.1", "activity": "make"})
    assert "make" in picture(progress)[1]
    progress.update({"event": "verifying", "attempt_id": "a.1"})
    assert "make" not in picture(progress)[1]
