"""Whether this machine has room for one more attempt, and how much one takes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

LEAST_DISK = 512 << 20
LEAST_SHARE = 0.1
"""Of the file system, where that is less: on a small one so much may never be free, and a run would wait for ever."""
LEAST_MEMORY = 256 << 20
ASK_AGAIN = 1.0
LOOK_AGAIN = 0.2
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def reason(directory: Path, meminfo: Path = Path("/proc/meminfo")) -> str:
    """Why to wait before another is started; empty: nothing speaks against it."""
    found = os.statvfs(directory)
    least = min(LEAST_DISK, int(found.f_blocks * found.f_frsize * LEAST_SHARE))
    if found.f_bavail * found.f_frsize < least:
        return f"less than {least >> 20} MiB are free at {directory}"
    available = _available_memory(meminfo)
    if available is not None and available < LEAST_MEMORY:
        return f"less than {LEAST_MEMORY >> 20} MiB of memory are free"
    return ""


def size_of(directory: Path, enough: int) -> int:
    """Bytes on disk below a directory, following nothing; counting ends when there are more than `enough`.

    Somebody may be at work there: what is gone when its turn comes is not counted, and everything else is.
    """
    with _Look(directory) as look:
        while look.size <= enough and look.go_on():
            pass
        return look.size


class _Level(NamedTuple):
    name: str
    itself: tuple[int, int]
    waiting: list[str]
    """Directories in it that are still to be looked at."""


class _Look:
    """Stands in one directory at a time: no depth takes more than one open file, and no path gets too long."""

    def __init__(self, directory: Path) -> None:
        self._top = os.path.abspath(directory)
        self._fd = -1
        self._line: list[_Level] = []
        self.size = 0

    def __enter__(self) -> _Look:
        self._go_down(self._top)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def go_on(self) -> bool:
        """Count what is in one more directory, or go back up from one; False: that was all."""
        if self._line and self._line[-1].waiting:
            self._go_down(self._line[-1].waiting.pop())
        elif self._line:
            self._line.pop()
            self._go_up()
        return bool(self._line)

    def _go_down(self, name: str) -> None:
        if not self._stand(name):
            return
        waiting: list[str] = []
        self._line.append(_Level(name, _identity(self._fd), waiting))
        with contextlib.suppress(OSError), os.scandir(self._fd) as found:
            for entry in found:
                # Each by itself: one that is gone must not hide the others.
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.name)
                    # A file system that says nothing of its directories keeps them somewhere all the same. Without this
                    # one who makes them faster than we can look would be looked at for ever.
                    self.size += max(entry.stat(follow_symlinks=False).st_blocks, 1) * 512

    def _go_up(self) -> None:
        if self._line and not self._stand("..", self._line[-1].itself):
            # It was moved, or closed to us: down again from the top, as far as everything is where it was.
            line, self._line = self._line, []
            for level in line:
                if not self._stand(level.name, level.itself):
                    break
                self._line.append(level)

    def _stand(self, name: str, itself: tuple[int, int] | None = None) -> bool:
        """Stand in a directory, which is known by its name from here, or the top by its path."""
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
