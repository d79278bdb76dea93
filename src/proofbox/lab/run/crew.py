"""The worker processes of a run: starts them, forwards their events, and stops them.

A worker runs `proofbox.lab.run.worker` in a child interpreter (`core.interpreter`). Each line that it writes to stdout
is an event, which is forwarded. The ledger decides which attempts exist and which worker runs them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

from proofbox.core.clock import Clock, isoformat
from proofbox.core.ids import IdSource
from proofbox.core.interpreter import module_child
from proofbox.errors import InternalError

POLL_SECONDS = 0.2
EXIT_TIMEOUT = 30.0

OnEvent = Callable[[dict[str, Any]], None]


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


class Crew:
    def __init__(self, out: Path, run_id: str, ids: IdSource, tell: EventForwarder) -> None:
        self._out = out
        self._run_id = run_id
        self._ids = ids
        self._emit = tell
        self._workers: dict[str, Popen[bytes]] = {}
        self._readers: list[threading.Thread] = []
        self._changed = threading.Event()

    def __iter__(self) -> Iterator[str]:
        """Return the names of the workers."""
        return iter(self._workers)

    def start_workers(self, wanted: int, slots: int, epoch: int) -> None:
        """Start workers until there are `wanted`, each with `slots` concurrent attempts."""
        while len(self._workers) < wanted:
            name = self._ids.new_id("worker")
            task = (str(self._out.absolute()), self._run_id, name, str(epoch), str(slots), str(os.getpid()))
            child = module_child("proofbox.lab.run.worker", *task)
            # In its own session: Ctrl-C in a terminal reaches only the conductor, which then stops its workers.
            worker = Popen(
                child.argv,
                cwd=child.cwd,
                env=child.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            self._workers[name] = worker
            reader = threading.Thread(target=self._listen, args=(worker,), daemon=True)
            reader.start()
            self._readers.append(reader)

    def wait(self) -> int:
        """Wait until an attempt or worker has ended, or briefly. Remove dead workers and return their number."""
        self._changed.wait(POLL_SECONDS)
        self._changed.clear()
        dead = [name for name, worker in self._workers.items() if worker.poll() is not None]
        for name in dead:
            del self._workers[name]
        return len(dead)

    def kill(self, name: str) -> None:
        """Kill a worker that must not write any more, if it exists."""
        worker = self._workers.pop(name, None)
        if worker is not None:
            worker.kill()
            worker.wait()

    def join(self) -> None:
        """Wait for the workers to notice that all work is done and exit; their last events are still read."""
        for worker in self._workers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(EXIT_TIMEOUT)

    def end(self) -> None:
        for worker in self._workers.values():
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(signal.SIGKILL)
            worker.wait()
        self._workers.clear()
        for reader in self._readers:
            reader.join()

    def _listen(self, worker: Popen[bytes]) -> None:
        if worker.stdout is None:
            raise InternalError("the worker has no stdout pipe", op="suite")
        # Read to the end in any case, so that a worker never writes to a closed pipe.
        with worker.stdout:
            for line in worker.stdout:
                event = _event(line)
                if event is not None:
                    self._emit(event)
                    if event.get("event") == "ended":
                        self._changed.set()
        self._changed.set()


def _event(line: bytes) -> dict[str, Any] | None:
    """Parse an event; None for a line cut off by a kill, or written by something else."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
