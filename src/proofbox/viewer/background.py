"""Read what takes long in the background, and remember it until its files change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

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
    """Whether the result is of the files as they are now."""


@dataclass(slots=True)
class _Job(Generic[T]):
    mark: object
    result: T | None
    """Until the job is done, the result of the job before it."""
    done: threading.Event = field(default_factory=threading.Event)
    error: ProofboxError | None = None


class BackgroundReader(Generic[T]):
    """Calls `read` in a thread, again only if `mark` returns another value, and once at a time for each path.

    Safe to use from several threads.
    """

    def __init__(self, read: Callable[[Path], T], mark: Callable[[Path], object]) -> None:
        self._read = read
        self._mark = mark
        self._mutex = threading.Lock()
        self._jobs: dict[Path, _Job[T]] = {}

    def get(self, path: Path, wait: float) -> Reading[T]:
        """Return what is known after at most `wait` seconds. Raises what reading raised."""
        mark = self._mark(path)
        with self._mutex:
            job = self._jobs.pop(path, None)
            if job is None or (job.mark != mark and job.done.is_set()):
                job = _Job(mark, None if job is None else job.result)
                threading.Thread(target=self._run, args=(job, path), daemon=True).start()
            self._jobs[path] = job
            for old in list(self._jobs)[:-MAX_KNOWN]:
                del self._jobs[old]
        done = job.done.wait(wait)
        if done and job.error is not None:
            raise job.error
        return Reading(job.result, done and job.mark == mark)

    def _run(self, job: _Job[T], path: Path) -> None:
        try:
            job.result = self._read(path)
        except ProofboxError as error:
            job.error = error
        except Exception as error:
            job.error = InternalError(f"{path} cannot be read: {error}", op="view")
        finally:
            job.done.set()
