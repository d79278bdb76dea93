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
WAIT_SECONDS: Final = 0.1
"""How long a page waits before it is shown without the result."""


@dataclass(slots=True)
class _Job(Generic[T]):
    mark: object
    done: threading.Event = field(default_factory=threading.Event)
    result: T | None = None
    error: ProofboxError | None = None


class BackgroundReader(Generic[T]):
    """Calls `read` in a thread, again only if `mark` returns another value. Safe to use from several threads."""

    def __init__(self, read: Callable[[Path], T], mark: Callable[[Path], object]) -> None:
        self._read = read
        self._mark = mark
        self._mutex = threading.Lock()
        self._jobs: dict[Path, _Job[T]] = {}

    def get(self, path: Path, wait: float | None = WAIT_SECONDS) -> T | None:
        """Return the result; None if it is not known after `wait` seconds. Raises what reading raised."""
        mark = self._mark(path)
        with self._mutex:
            job = self._jobs.get(path)
            if job is None or job.mark != mark:
                job = _Job(mark)
                self._jobs.pop(path, None)
                self._jobs[path] = job
                for old in list(self._jobs)[:-MAX_KNOWN]:
                    del self._jobs[old]
                threading.Thread(target=self._run, args=(job, path), daemon=True).start()
        job.done.wait(wait)
        if job.error is not None:
            raise job.error
        return job.result

    def _run(self, job: _Job[T], path: Path) -> None:
        try:
            job.result = self._read(path)
        except ProofboxError as error:
            job.error = error
        except Exception as error:
            job.error = InternalError(f"{path} cannot be read: {error}", op="view")
        finally:
            job.done.set()
