"""Advisory locks on files, released by the kernel when their holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Lock `path` for the body. Waits for the current holder, or raises BlockingIOError with `wait=False`.

    The file is created if necessary, but never at the end of a link: OSError.

    Only the holder of the exclusive lock may remove the file. Processes that already opened the file then notice that
    it was removed or replaced, and lock the new file. If any other process removed it, two processes could hold locks.
    """
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, how)
            if _is_at(fd, path):
                yield
                return
        finally:
            os.close(fd)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the exclusive lock. On read-only storage, no process can."""
    try:
        if path.exists():
            with locked(path, shared=True, wait=False):
                return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
