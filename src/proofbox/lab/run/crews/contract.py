"""The contract between a conductor and its crew, the workers that run the attempts of a run.

The ledger decides which attempts exist, which worker runs each, and how often one is retried. A crew provides workers:

- each worker has a name and claims attempts from the ledger under it, never more than it has slots;
- while it is alive, it renews the leases of its attempts, and interrupts those whose interrupt was requested;
- it commits the bundle of an attempt in the run's directory, then records the result in the ledger;
- a worker that died is no longer listed, and writes nothing more. What it left claimed, the conductor ends.

`LocalCrew` starts worker processes on this machine, and `RayCrew` a driver that hands attempts to the nodes of a
cluster. `tests/lab/run/test_crews.py` is the conformance suite.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from proofbox.core.clock import Clock, isoformat

POLL_SECONDS = 0.2
"""The longest that `Crew.wait` waits, so that the conductor notices a stop request and expired leases."""

OnEvent = Callable[[dict[str, Any]], None]


class Crew(Protocol):
    """The workers of one run, as its conductor uses them."""

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the workers that are alive."""
        ...

    def start_workers(self, left: int, epoch: int) -> None:
        """Start the missing workers for `left` attempts. They claim attempts for this epoch of the run."""
        ...

    def wait(self) -> int:
        """Wait until an attempt or worker has ended, or briefly. Remove dead workers and return their number."""
        ...

    def kill(self, name: str) -> None:
        """Kill a worker that must no longer write, if it exists."""
        ...

    def join(self) -> None:
        """Wait for the workers to notice that all work is done and exit; their last events are still forwarded."""
        ...

    def end(self) -> None:
        """Kill all workers and their boxes. Nothing of them is left when this returns."""
        ...


class EventForwarder:
    """Forwards events with their time, one at a time, until the callback fails; keeps the first failure for `check`."""

    def __init__(self, on_event: OnEvent | None, clock: Clock) -> None:
        self._on_event = on_event
        self._clock = clock
        self._failure: Exception | None = None
        self._lock = threading.Lock()

    def __call__(self, event: dict[str, Any]) -> None:
        with self._lock:  # every worker has its own reader thread
            if self._on_event is not None and self._failure is None:
                try:
                    self._on_event({**event, "at": isoformat(self._clock.now())})
                except Exception as error:
                    self._failure = error

    def check(self) -> None:
        """Raise the callback's failure, if it failed."""
        if self._failure is not None:
            raise self._failure
