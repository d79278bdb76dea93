"""The crew on a Ray cluster: one driver process on this machine, which hands attempts to the cluster's nodes."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from proofbox.config.engine import EngineSettings
from proofbox.core.ids import IdSource
from proofbox.core.interpreter import ChildInterpreter, module_child
from proofbox.errors import EngineLost, EngineUnavailable
from proofbox.lab.run.crews.cluster.places import ray_place, sweep_node
from proofbox.lab.run.crews.contract import EventForwarder
from proofbox.lab.run.crews.local import LocalCrew
from proofbox.lab.run.plan import Plan
from proofbox.sandbox.host.scratch import Scratch

END_TIMEOUT = 90.0
"""Seconds in which the driver ends remote attempts and removes their files from the nodes. Busy nodes need most of
it.
"""


class RayCrew(LocalCrew):
    """The driver of a cluster. It claims attempts like a local worker, and runs them on nodes."""

    def __init__(self, out: Path, plan: Plan, engine: EngineSettings, ids: IdSource, tell: EventForwarder) -> None:
        super().__init__(out, plan, ids, tell)
        self._most = 1
        self._engine = engine
        self._failure: EngineLost | EngineUnavailable | None = None
        self._joined = False
        self._place: Scratch | None = None

    def _child(self, name: str, epoch: int) -> ChildInterpreter:
        self._place = self._place or ray_place()
        chosen = msgspec.json.encode(self._engine).decode()
        task = (str(self._out.absolute()), self._run_id, name, str(epoch), str(os.getpid()))
        return module_child("proofbox.lab.run.crews.cluster.driver", *task, str(self._place.path), chosen)

    def wait(self) -> int:
        died = super().wait()
        if died:
            self._join_readers()
        if self._failure is not None:
            raise self._failure
        return died

    def end(self) -> None:
        for worker in self._workers.values():
            worker.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(END_TIMEOUT)
        super().end()
        if self._engine.address is None:  # the workers of a private cluster die with it, maybe before they clean up
            sweep_node(killed_run=self._run_id)
        if self._place is not None:
            self._place.remove()

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("event") != "engine":
            self._joined |= event.get("event") == "placed"
            return super()._hear(event)
        # Ray aborts some drivers whose head was lost. The next driver can't join, but the run can be resumed.
        is_lost = self._joined or event.get("code") == EngineLost.code
        kind, hints = (EngineLost, ()) if is_lost else (EngineUnavailable, event.get("fix_hints", ()))
        nodes = {"nodes": event["nodes"]} if "nodes" in event else {}
        self._failure = kind(str(event.get("message")), op="engine", fix_hints=hints, details=nodes)
        return None
