"""Temporary directories in the state directory, which are removed at the latest after their process has ended.

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

    def __init__(self) -> None:
        from tempfile import mkdtemp

        while True:
            self.path = Path(mkdtemp(prefix=_PREFIX, dir=state_dir()))
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


def abandoned_scratch() -> Iterator[Path]:
    """Yield the directories of processes that were killed; each is locked until the next is requested."""
    for path in state_dir().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
            finally:
                os.close(fd)


def sweep_scratch() -> None:
    for path in abandoned_scratch():
        remove_tree(path)
