"""Read what takes long in the background, and remember it until its files change.

Two marks show a change. The quick one is compared whenever a page asks. The complete one covers every file, is computed
in the background, and is compared on every reload, so that a page never shows an older result without its time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.errors import InternalError, ProofboxError

T = TypeVar("T")
MAX_KNOWN: Final = 4
"""Maximum number of results that are remembered."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """What is known about a path."""

    result: T | None
    """None if nothing was read yet."""
    current: bool
    """Whether every file was looked at since this was asked for. If not, that is being done."""
    checked_at: str = ""
    """When reading the result began: changes before that are in it."""
    changed: bool = False
    """Whether files are known to have changed since then. They are being read again."""


@dataclass(slots=True)
class _Job(Generic[T]):
    quick: object
    result: T | None = None
    """Until the job is done, the result of the job before it."""
    mark: object = None
    """The complete mark of the files that `result` was read from."""
    checked_at: str = ""
    changed: bool = False
    again: bool = False
    """Whether a reload asks for another look when this one ends, because it began earlier."""
    done: threading.Event = field(default_factory=threading.Event)
    error: ProofboxError | None = None


class BackgroundReader(Generic[T]):
    """Calls `read` in a thread, again only if one of the marks has changed, and once at a time for each path.

    Safe to use from several threads.
    """

    def __init__(
        self,
        read: Callable[[Path], T],
        quick_mark: Callable[[Path], object],
        complete_mark: Callable[[Path], object],
        clock: Clock | None = None,
    ) -> None:
        self._read = read
        self._quick_mark = quick_mark
        self._complete_mark = complete_mark
        self._clock = clock or SystemClock()
        self._mutex = threading.Lock()
        self._jobs: dict[Path, _Job[T]] = {}

    def get(self, path: Path, wait: float, *, reload: bool = True) -> Reading[T]:
        """Return what is known after at most `wait` seconds. Raises what reading raised.

        Every reload looks at all files again, in the background. Without `reload`, only a change of the quick mark
        leads to that; this is for a page that waits for the end of a job.
        """
        quick = self._quick_mark(path)
        with self._mutex:
            job = self._jobs.pop(path, None)
            if job is None or (job.done.is_set() and (reload or job.quick != quick)):
                old, job = job, _Job[T](quick)
                if old is not None:
                    job.result, job.mark, job.checked_at = old.result, old.mark, old.checked_at
                threading.Thread(target=self._run, args=(job, path), daemon=True).start()
            elif reload and not job.done.is_set():
                job.again = True
            self._jobs[path] = job
            for each in list(self._jobs)[:-MAX_KNOWN]:
                del self._jobs[each]
        job.done.wait(wait)
        with self._mutex:
            done = job.done.is_set()
            if done and job.error is not None:
                raise job.error
            same = job.quick == quick
            return Reading(job.result, done and same, job.checked_at, job.changed or not same)

    def _run(self, job: _Job[T], path: Path) -> None:
        while True:
            try:
                self._look(job, path)
                error: ProofboxError | None = None
            except ProofboxError as failure:
                error = failure
            except Exception as failure:
                error = InternalError(f"{path} cannot be read: {failure}", op="view")
            with self._mutex:
                job.error = error
                if not job.again:
                    job.done.set()
                    return
                job.again = False

    def _look(self, job: _Job[T], path: Path) -> None:
        """Read the files if they are not those of the last result."""
        since = isoformat(self._clock.now())
        mark = self._complete_mark(path)
        if job.result is not None and job.mark == mark:
            return
        job.changed = job.result is not None
        result = self._read(path)
        with self._mutex:
            job.result, job.mark, job.checked_at, job.changed = result, mark, since, False
