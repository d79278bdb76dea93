"""What a terminal shows of a run under way."""

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


def test_replicates_of_a_long_name_are_told_apart_on_one_line_each() -> None:
    progress = Progress([], shown=False)
    for number in (1, 2, 10):
        progress.hear({"event": "running", "attempt_id": f"{LONG}.{number}"})
        progress.hear({"event": "activity", "attempt_id": f"{LONG}.{number}", "activity": "pytest -q " * 9})
    lines = picture(progress)[1:]
    assert len(lines) == 3
    assert [line.split()[0][-3:] for line in lines] == ["t.1", "t.2", ".10"]
    assert all(line.startswith("a-long-mission") and "pytest" in line for line in lines)


def test_what_a_run_waits_for_stays_until_something_is_begun() -> None:
    progress = Progress([], shown=False)
    progress.hear({"event": "running", "attempt_id": "a.1"})
    progress.hear({"event": "waiting", "attempt_id": "b.1", "message": "a limit\x1b"})
    progress.hear({"event": "verifying", "attempt_id": "a.1"})
    assert "waiting: a limit\\x1b" in picture(progress)
    progress.hear({"event": "preparing", "attempt_id": "b.1"})
    assert not any("waiting" in line for line in picture(progress))


def test_what_an_agent_did_is_not_shown_when_it_is_over() -> None:
    progress = Progress([], shown=False)
    progress.hear({"event": "activity", "attempt_id": "a.1", "activity": "make"})
    assert "make" in picture(progress)[1]
    progress.hear({"event": "verifying", "attempt_id": "a.1"})
    assert "make" not in picture(progress)[1]
