"""Temporary directories, in the state directory by default, removed at the latest after their process has ended.

The process locks each directory. If it is killed, the directory remains without a lock, and `sweep_scratch` removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from proofbox.core.dirs import state_dir
from proofbox.core.files.removal import remove_tree

_PREFIX = "scratch-"


class Scratch:
    """A new, empty directory of mode 0700, removed at the end of a `with` block. `remove` can be repeated."""

    def __init__(self, place: Path | None = None, prefix: str = _PREFIX) -> None:
        from tempfile import mkdtemp

        while True:
            self.path = Path(mkdtemp(prefix=prefix, dir=place or state_dir()))
            with contextlib.suppress(OSError):
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(self._lock), self.path.stat()):
                    return
            # A sweep removed the directory before it was locked: create another.

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        remove_tree(self.path)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def abandoned_scratch(place: Path | None = None, prefix: str = _PREFIX) -> Iterator[Path]:
    """Yield the directories of processes that were killed; each is locked until the next is requested."""
    for path in sorted((place or state_dir()).glob(f"{prefix}*")):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if place is not None and os.fstat(fd).st_uid != os.geteuid():  # others may use that directory as well
                    continue
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
            finally:
                os.close(fd)


def sweep_scratch() -> None:
    for path in abandoned_scratch():
        remove_tree(path)
