"""`out/.runtime.lock`: one writer at a time creates or commits a run or updates LATEST.

The kernel (flock) releases the lock when its holder dies. The file is never removed, since two processes could then
hold locks on two files of the same name; if another program removes it, a lock on the removed file is detected and
taken again. The file's content identifies the holder. Only the holder writes it, and a dead holder's content is
recognised as stale.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from proofbox.core.canonical import CanonicalError, canonical_bytes, parse_strict
from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.documents import declare
from proofbox.errors import BundleLocked
from proofbox.evidence.bundle.identity import PROCESS, is_alive, process_identity
from proofbox.evidence.bundle.paths import LOCK, shown
from proofbox.evidence.documents import shape
from proofbox.evidence.documents.shape import ShapeError

Mode = Literal["fail", "wait"]

_POLL_SECONDS = (0.001, 0.05)
_DOCUMENT = shape.record(
    {
        "process": PROCESS.meaning("The holder."),
        "purpose": shape.text().meaning("The purpose of the lock."),
        "since": shape.moment.meaning("When the holder took the lock."),
    }
)
declare(
    ".runtime.lock",
    at="OUT/.runtime.lock",
    meaning="The process that holds the lock of an output directory, or died with it. Empty if it is not locked.",
    shape=_DOCUMENT.json_schema,
)


@dataclass(frozen=True, slots=True)
class Holder:
    """The last process recorded in the lock file. `alive` is None if unknown, as for a process on another machine."""

    process: dict[str, Any]
    purpose: str
    since: str
    alive: bool | None

    @property
    def stale(self) -> bool:
        """Whether the process is dead and therefore no longer holds the lock."""
        return self.alive is False

    def as_json(self) -> dict[str, Any]:
        return {**self.process, "purpose": self.purpose, "since": self.since, "alive": self.alive}


def read_holder(out: str | os.PathLike[str]) -> Holder | None:
    """Return the process that holds the lock of an output directory, or died holding it; None if none is recorded."""
    try:
        fd = os.open(os.path.join(out, LOCK), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _parse_holder(os.pread(fd, 4096, 0))
    except OSError:
        return None
    finally:
        os.close(fd)


def _parse_holder(data: bytes) -> Holder | None:
    try:
        document = parse_strict(data)
        _DOCUMENT(document, "holder")
    except (CanonicalError, ShapeError):
        return None
    return Holder(document["process"], document["purpose"], document["since"], is_alive(document["process"]))


class RunLock:
    """The lock of one output directory, as a context manager.

    `fail` raises BundleLocked at once if another process holds it; `wait` does so after `timeout` seconds.
    `took_over_from` is the previous holder, if it died while holding the lock.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        purpose: str,
        mode: Mode = "wait",
        timeout: float = 30.0,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.took_over_from: Holder | None = None
        self._out = os.fspath(out)
        self._path = os.path.join(self._out, LOCK)
        self._purpose = purpose
        self._timeout = timeout if mode == "wait" else 0.0
        self._clock: Clock = clock or SystemClock()
        self._sleep = sleep
        self._fd = -1

    def __enter__(self) -> Self:
        deadline = self._clock.monotonic() + self._timeout
        pause, longest = _POLL_SECONDS
        while (fd := self._try()) < 0:
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise self._refusal()
            self._sleep(min(pause, left))
            pause = min(pause * 2, longest)
        self._fd = fd
        _HELD.add(self)
        try:
            left_by = _parse_holder(os.pread(fd, 4096, 0))
            self.took_over_from = left_by
            note = {
                "process": process_identity(),
                "purpose": self._purpose,
                "since": isoformat(self._clock.now()),
            }
            _rewrite(fd, canonical_bytes(note))
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            os.ftruncate(self._fd, 0)
        finally:
            self._release()

    def _try(self) -> int:
        """Return a locked descriptor of the file that is now at the lock's path, or -1."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(self._path, follow_symlinks=False)):
                return fd
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return -1

    def _release(self) -> None:
        _HELD.discard(self)
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _refusal(self) -> BundleLocked:
        holder = read_holder(self._out)
        who = (
            f"process {holder.process['pid']} ({holder.purpose})" if holder and not holder.stale else "another process"
        )
        waited = f" after {self._timeout:g} s" if self._timeout else ""
        return BundleLocked(
            f"{shown(self._out)} is locked by {who}{waited}",
            op="bundle lock",
            fix_hints=["wait for it, or raise the lock timeout", "use a separate output directory for each run"],
            details={"holder": holder.as_json() if holder else None},
        )


@contextlib.contextmanager
def holding(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Lock a nested bundle's directory while it is taken over or committed.

    A directory that does not exist yet needs no lock: creating it is exclusive. On a file system that can't lock
    directories, the run's leases provide the exclusion.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            held.callback(os.close, fd)
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield


_HELD: set[RunLock] = set()


def _rewrite(fd: int, data: bytes) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)


def _release_in_child() -> None:
    """Release locks in a forked child, which shares the descriptor and would keep a dead parent's lock."""
    for lock in list(_HELD):
        lock._release()


os.register_at_fork(after_in_child=_release_in_child)
