"""The crew on a Ray cluster: one driver process on this machine, which hands attempts to the cluster's nodes."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Any

import msgspec

from proofbox.config.engine import EngineSettings
from proofbox.core.files.removal import remove_tree
from proofbox.core.ids import IdSource
from proofbox.core.interpreter import ChildInterpreter, module_child
from proofbox.errors import EngineLost, EngineUnavailable
from proofbox.lab.run.crews.contract import EventForwarder
from proofbox.lab.run.crews.local import LocalCrew
from proofbox.lab.run.plan import Plan

END_TIMEOUT = 90.0
"""Seconds in which the driver ends remote attempts and removes their files from the nodes. Busy nodes need most."""


MAX_PREFIX = 24


class RayCrew(LocalCrew):
    """The driver of a cluster. It claims attempts like a local worker, and runs them on nodes."""

    def __init__(self, out: Path, plan: Plan, engine: EngineSettings, ids: IdSource, tell: EventForwarder) -> None:
        super().__init__(out, plan, ids, tell)
        self._most = 1
        self._engine = engine
        self._failure: EngineLost | EngineUnavailable | None = None
        self._place: Path | None = None

    def _child(self, name: str, epoch: int) -> ChildInterpreter:
        if self._place is None:  # short, because Ray puts sockets there, whose paths are limited to 107 bytes
            self._place = Path(mkdtemp(prefix="pbr-", dir=None if len(gettempdir()) < MAX_PREFIX else "/tmp"))  # noqa: S108
        chosen = msgspec.json.encode(self._engine).decode()
        task = (str(self._out.absolute()), self._run_id, name, str(epoch), str(os.getpid()), str(self._place), chosen)
        return module_child("proofbox.lab.run.crews.cluster.driver", *task)

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
        if self._place is not None:
            remove_tree(self._place)

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("event") != "engine":
            return super()._hear(event)
        kind = EngineLost if event.get("code") == EngineLost.code else EngineUnavailable
        nodes = {"nodes": event["nodes"]} if "nodes" in event else {}
        self._failure = kind(
            str(event.get("message")), op="engine", fix_hints=event.get("fix_hints", ()), details=nodes
        )
        return None
