"""Freeze a box, and count its running commands, through its control group."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proofbox.errors import NotFrozen, PolicyRefused
from proofbox.sandbox.host import cgroups

FREEZE_TIMEOUT = 10.0


@contextmanager
def frozen(session_id: str, *, timeout: float = FREEZE_TIMEOUT) -> Iterator[None]:
    """Freeze all processes in the box within the block, including its agent. They always continue afterwards.

    Raises `PolicyRefused` if the box can't be frozen here, `NotFrozen` if it did not stop in time.
    """
    group = cgroups.group_of(cgroups.tree().unified, session_id)
    if group is None or not (group / "cgroup.freeze").exists():
        reason = cgroups.tree().reason or "it has no control group"
        raise PolicyRefused(
            f"the box of {session_id} can't be frozen: {reason}",
            op="freeze",
            fix_hints=["continue without freezing: snapshots that overlap with running commands are marked as such"],
        )
    try:
        (group / "cgroup.freeze").write_text("1")
        _wait_for(group, "frozen 1", timeout, session_id)
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # the box ended in the meantime
            (group / "cgroup.freeze").write_text("0")


def commands_alive(session_id: str) -> int | None:
    """Count the commands with processes in the box, including background processes. None: unknown."""
    group = cgroups.group_of(cgroups.tree().unified, session_id)
    if group is None:
        return None
    alive = 0
    with contextlib.suppress(OSError):
        for path in group.iterdir():
            if path.name[0] == "c" and path.name[1:].isdigit():  # made by the box agent, one per command
                with contextlib.suppress(OSError):
                    alive += "populated 1" in (path / "cgroup.events").read_text() and not _holds_a_spare(path)
    return alive


def _holds_a_spare(group: Path) -> bool:
    """Return whether the process in this group is a child that waits for a command; see `agent/boxagent/spare.c`.

    The agent changes the mode before it gives the child a command: read it after finding a process.
    """
    return not group.stat().st_mode & 0o077


def _wait_for(group: Path, state: str, timeout: float, session_id: str) -> None:
    deadline = time.monotonic() + timeout
    with (group / "cgroup.events").open() as events:
        poll = select.poll()
        poll.register(events, select.POLLPRI)
        while True:
            events.seek(0)
            if state in events.read():
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise NotFrozen(
                    f"the box of {session_id} did not freeze within {timeout:g} s: a process hangs in the kernel",
                    op="freeze",
                    fix_hints=["try again", "or continue without freezing"],
                )
            poll.poll(left * 1000)
