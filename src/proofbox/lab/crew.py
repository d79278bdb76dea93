"""The worker processes of a run: hired, heard, let go, and ended for good.

A worker is `python -m proofbox.lab.worker`; what it says on stdout, an event a line, is told on. Nothing is decided
here: which attempts there are and who has them is the ledger's to say.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

from proofbox.core.ids import IdSource
from proofbox.errors import InternalError

PATIENCE = 0.2
PARTING = 30.0

OnEvent = Callable[[dict[str, Any]], None]


class Crew:
    def __init__(self, out: Path, run_id: str, ids: IdSource, on_event: OnEvent) -> None:
        self._out = out
        self._run_id = run_id
        self._ids = ids
        self._tell = on_event
        self._workers: dict[str, Popen[str]] = {}
        self._readers: list[threading.Thread] = []
        self._changed = threading.Event()

    def __iter__(self) -> Iterator[str]:
        """The names of those that are there."""
        return iter(self._workers)

    def hire(self, wanted: int, slots: int, epoch: int) -> None:
        """As many as are wanted, each for so many attempts at once."""
        while len(self._workers) < wanted:
            name = self._ids.new_id("worker")
            argv = [sys.executable, "-m", "proofbox.lab.worker", str(self._out), self._run_id, name]
            argv += [str(epoch), str(slots), str(os.getpid())]
            worker = Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
            self._workers[name] = worker
            reader = threading.Thread(target=self._listen, args=(worker,), daemon=True)
            reader.start()
            self._readers.append(reader)

    def wait(self) -> None:
        """Until an attempt or a worker has ended, or for a moment. Those that have died are gone then."""
        self._changed.wait(PATIENCE)
        self._changed.clear()
        for name in [name for name, worker in self._workers.items() if worker.poll() is not None]:
            del self._workers[name]

    def kill(self, name: str) -> None:
        """One that may not write any more. That it is not there is no error."""
        worker = self._workers.pop(name, None)
        if worker is not None:
            worker.kill()
            worker.wait()

    def let_go(self) -> None:
        """They see for themselves that all is done; what they still have to say is heard."""
        for worker in self._workers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(PARTING)

    def end(self) -> None:
        for worker in self._workers.values():
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(signal.SIGKILL)
            worker.wait()
        self._workers.clear()
        for reader in self._readers:
            reader.join()

    def _listen(self, worker: Popen[str]) -> None:
        if worker.stdout is None:
            raise InternalError("a worker without a pipe", op="suite")
        with worker.stdout:
            for line in worker.stdout:
                with contextlib.suppress(ValueError):  # killed in the middle of one
                    event = json.loads(line)
                    self._tell(event)
                    if event.get("event") == "ended":
                        self._changed.set()
        self._changed.set()
