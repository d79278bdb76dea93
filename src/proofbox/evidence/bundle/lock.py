"""`out/.runtime.lock`: one writer at a time creates a run, commits one, or moves LATEST.

The lock is the kernel's (flock), so a holder's death, however sudden, gives it back. The file is never removed, which
would let two processes hold locks on two files of one name; should someone else remove it, a lock taken on the removed
file is noticed, and taken anew. What is written in the file says who holds the lock; the holder alone writes it, and
what a dead holder left is recognised as stale.
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
        "purpose": shape.text().meaning("What it took the lock for."),
        "since": shape.moment.meaning("When it took the lock."),
    }
)
declare(
    ".runtime.lock",
    at="OUT/.runtime.lock",
    meaning="Who holds the lock of an output directory, or held it when it died. Empty: nobody.",
    shape=_DOCUMENT.json_schema,
)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who wrote itself into the lock last. `alive` is None where that can't be known: another machine's process."""

    process: dict[str, Any]
    purpose: str
    since: str
    alive: bool | None

    @property
    def stale(self) -> bool:
        """Its process is gone, so it holds nothing any more."""
        return self.alive is False

    def as_json(self) -> dict[str, Any]:
        return {**self.process, "purpose": self.purpose, "since": self.since, "alive": self.alive}


def read_holder(out: str | os.PathLike[str]) -> Holder | None:
    """Who holds the lock of an output directory, or held it when it died. None: nobody, or not yet written."""
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

    `fail` raises BundleLocked at once if another has it; `wait` does so after `timeout` seconds. `took_over_from` is
    the holder that died with the lock in its hands, if one did.
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
        """A locked descriptor of the file that has the lock's name now, or -1."""
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
            fix_hints=["wait for it, or raise the lock timeout", "give each run an output directory of its own"],
            details={"holder": holder.as_json() if holder else None},
        )


@contextlib.contextmanager
def holding(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Alone with a nested bundle's directory, for the moment that it is taken over or committed in.

    One that is not there yet needs no lock: making it is exclusive. Where a file system locks no directories, the
    run's own order must do: an attempt belongs to who has its lease.
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


def _let_go_in_child() -> None:
    """A forked child shares the descriptor, and would keep the lock of a parent that has died."""
    for lock in list(_HELD):
        lock._release()


os.register_at_fork(after_in_child=_let_go_in_child)
