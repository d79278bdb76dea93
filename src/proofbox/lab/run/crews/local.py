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
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

from proofbox.core.ids import IdSource
from proofbox.core.interpreter import ChildInterpreter, module_child
from proofbox.errors import InternalError
from proofbox.lab.run.crews.contract import POLL_SECONDS, EventForwarder
from proofbox.lab.run.plan import Plan

EXIT_TIMEOUT = 30.0
PAUSE_SECONDS = 0.05
"""Attempts that end within this time are handled together: the conductor reads the ledger once for all of them."""
SUSPENDED_TIMEOUT = 60.0
"""Seconds after which a suspended worker is killed, as long as a lease. One without attempts has no lease to lose."""


class LocalCrew:
    """Worker processes on this machine: one per core, with as many slots as the run's concurrency needs."""

    def __init__(self, out: Path, plan: Plan, ids: IdSource, tell: EventForwarder) -> None:
        self._out = out
        self._run_id = plan.run_id
        self._most = 1 if plan.isolation == "shared" else min(os.cpu_count() or 1, plan.concurrency)
        self._slots = -(-plan.concurrency // self._most)
        self._ids = ids
        self._emit = tell
        self._workers: dict[str, Popen[bytes]] = {}
        self._suspended_since: dict[str, float] = {}
        self._readers: list[threading.Thread] = []
        self._changed = threading.Event()
        self._handled_at = 0.0

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def start_workers(self, left: int, epoch: int) -> None:
        while len(self._workers) < min(self._most, left):
            name = self._ids.new_id("worker")
            child = self._child(name, epoch)
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

    def _child(self, name: str, epoch: int) -> ChildInterpreter:
        task = (str(self._out.absolute()), self._run_id, name, str(epoch), str(self._slots), str(os.getpid()))
        return module_child("proofbox.lab.run.worker", *task)

    def wait(self) -> int:
        if self._changed.wait(POLL_SECONDS):
            time.sleep(max(0.0, self._handled_at + PAUSE_SECONDS - time.monotonic()))
        self._handled_at = time.monotonic()
        self._changed.clear()
        self._kill_suspended()
        dead = [name for name, worker in self._workers.items() if worker.poll() is not None]
        for name in dead:
            del self._workers[name]
        return len(dead)

    def _kill_suspended(self) -> None:
        now = time.monotonic()
        since = self._suspended_since
        self._suspended_since = {
            name: since.get(name, now) for name, worker in self._workers.items() if _is_suspended(worker.pid)
        }
        for name, start in self._suspended_since.items():
            if now - start >= SUSPENDED_TIMEOUT:
                self._workers[name].kill()

    def kill(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        if worker is not None:
            worker.kill()
            worker.wait()

    def join(self) -> None:
        for worker in self._workers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(EXIT_TIMEOUT)

    def end(self) -> None:
        for worker in self._workers.values():
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(signal.SIGKILL)
            worker.wait()
        self._workers.clear()
        self._join_readers()

    def _join_readers(self) -> None:
        for reader in self._readers:
            reader.join()
        self._readers.clear()

    def _listen(self, worker: Popen[bytes]) -> None:
        if worker.stdout is None:
            raise InternalError("the worker has no stdout pipe", op="suite")
        # Always read to the end, so that a worker never writes to a closed pipe.
        with worker.stdout:
            for line in worker.stdout:
                event = _event(line)
                if event is not None:
                    self._hear(event)
        self._changed.set()

    def _hear(self, event: dict[str, Any]) -> None:
        self._emit(event)
        if event.get("event") == "ended":
            self._changed.set()


def _is_suspended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].startswith(b"T")
    except OSError:  # it ended, or this system has no such file
        return False


def _event(line: bytes) -> dict[str, Any] | None:
    """Parse an event; None for a line cut off by a kill, or written by something else."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
