"""Checks whether this machine has resources for another attempt, and how much disk space an attempt uses."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

MIN_DISK = 512 << 20
MIN_SHARE = 0.1
"""The share of a small file system that must be free instead; `MIN_DISK` might never be free there."""
MIN_MEMORY = 256 << 20
POLL_SECONDS = 1.0
WATCH_SECONDS = 0.2
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def reason(directory: Path, meminfo: Path = Path("/proc/meminfo")) -> str:
    """Return why another attempt must wait; empty if it can start."""
    found = os.statvfs(directory)
    least = min(MIN_DISK, int(found.f_blocks * found.f_frsize * MIN_SHARE))
    if found.f_bavail * found.f_frsize < least:
        return f"less than {least >> 20} MiB of disk space is free at {directory}"
    available = _available_memory(meminfo)
    if available is not None and available < MIN_MEMORY:
        return f"less than {MIN_MEMORY >> 20} MiB of memory is free"
    return ""


def size_of(directory: Path, enough: int) -> int:
    """Return the bytes on disk below a directory, without following links; stop counting above `enough`.

    Other processes may change the directory during the count: entries that have disappeared are skipped.
    """
    with _Walk(directory) as walk:
        while walk.size <= enough and walk.advance():
            pass
        return walk.size


class _Level(NamedTuple):
    name: str
    itself: tuple[int, int]
    waiting: list[str]
    """Subdirectories that are not counted yet."""


class _Walk:
    """Walks a tree with one open directory at a time, so that neither depth nor path length is limited."""

    def __init__(self, directory: Path) -> None:
        self._top = os.path.abspath(directory)
        self._fd = -1
        self._line: list[_Level] = []
        self.size = 0

    def __enter__(self) -> _Walk:
        self._descend(self._top)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def advance(self) -> bool:
        """Count one more directory, or return to its parent; False when done."""
        if self._line and self._line[-1].waiting:
            self._descend(self._line[-1].waiting.pop())
        elif self._line:
            self._line.pop()
            self._ascend()
        return bool(self._line)

    def _descend(self, name: str) -> None:
        if not self._open(name):
            return
        waiting: list[str] = []
        self._line.append(_Level(name, _identity(self._fd), waiting))
        with contextlib.suppress(OSError), os.scandir(self._fd) as found:
            for entry in found:
                # Each entry by itself: one that has disappeared must not hide the others.
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.name)
                    # Some file systems report no blocks for directories. Without a minimum, a process that creates them
                    # faster than this counts would keep it running forever.
                    self.size += max(entry.stat(follow_symlinks=False).st_blocks, 1) * 512

    def _ascend(self) -> None:
        if self._line and not self._open("..", self._line[-1].itself):
            # The parent was moved or became unreadable: descend again from the top, while the path is unchanged.
            line, self._line = self._line, []
            for level in line:
                if not self._open(level.name, level.itself):
                    break
                self._line.append(level)

    def _open(self, name: str, itself: tuple[int, int] | None = None) -> bool:
        """Open a directory by its name in the current one, or the top by its path, and make it the current one."""
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=None if name == self._top else self._fd)
        except OSError:
            return False
        if itself not in (None, _identity(fd)):
            os.close(fd)
            return False
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        return True


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _available_memory(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
