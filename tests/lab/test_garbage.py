"""`gc` with an engine: refusals before anything is deleted, and reports of nodes that were not swept."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from proofbox import collect_garbage
from proofbox.errors import EngineUnavailable, UsageError
from proofbox.lab.run.crews.cluster import sweeping
from proofbox.lab.run.crews.cluster.places import ray_place
from proofbox.lab.run.crews.cluster.sweeping import SweptItem, sweep_cluster, sweep_killed
from proofbox.sandbox.host.scratch import Scratch


@pytest.fixture
def leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Directories of killed processes, which `gc` deletes."""
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    with TemporaryDirectory(prefix="pbt-", dir="/tmp") as found:
        monkeypatch.setattr("tempfile.tempdir", found)
        made = [Scratch(), ray_place()]
        for each in made:
            os.close(each._lock)
        yield [each.path for each in made]


@pytest.mark.parametrize("engine", ["bogus", "ray:h:0"])
def test_unknown_engine_is_refused_before_anything_is_deleted(leftovers: list[Path], engine: str) -> None:
    with pytest.raises(UsageError):
        collect_garbage(engine=engine)
    assert all(each.exists() for each in leftovers)
    collect_garbage(engine="local")
    assert not any(each.exists() for each in leftovers)


@pytest.mark.needs("ray")
def test_unreachable_cluster_is_reported_before_anything_is_deleted(
    leftovers: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    with pytest.raises(EngineUnavailable, match="could not be joined"):
        collect_garbage(engine=f"ray:127.0.0.1:{closed}")
    assert all(each.exists() for each in leftovers)


class FakeRay:
    """A cluster of two nodes. The second fails."""

    def __init__(self) -> None:
        from ray import exceptions

        self.exceptions = exceptions
        self._results: list[Any] = []

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": id * 56, "NodeManagerHostname": "host", "Alive": id != "c"} for id in "abc"]

    def remote(self, function: object) -> SimpleNamespace:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda **_: self._results.append(1)))

    def get(self, reference: object, timeout: float) -> list[SweptItem]:
        assert 0 < timeout <= sweeping.NODE_TIMEOUT
        self._results.pop()
        if not self._results:
            raise self.exceptions.WorkerCrashedError
        return [SweptItem("node", "/tmp/x", 10, True, "left by a killed worker")]


@pytest.mark.needs("ray")
@pytest.mark.parametrize("dry_run", [True, False])
def test_node_that_could_not_be_swept_is_reported_as_left(
    leftovers: list[Path], dry_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "sweep_engine", lambda _, remove: list(sweep_cluster(FakeRay(), remove=remove)))
    found = collect_garbage(engine="ray:127.0.0.1:1", dry_run=dry_run)
    swept, failed = found.items[-2:]
    assert (swept.path, swept.free, swept.reason) == ("/tmp/x", True, "on host-aaaaaa: left by a killed worker")
    assert (failed.path, failed.free, failed.reason) == ("host-bbbbbb", False, "the node could not be swept")
    assert failed.left.startswith("host-bbbbbb: The worker died unexpectedly")
    assert found.error is not None
    assert "host-bbbbbb" in found.error.message
    assert all(each.exists() for each in leftovers) == dry_run


@pytest.mark.needs("ray")
def test_end_of_a_run_does_not_depend_on_nodes_that_could_not_be_swept() -> None:
    sweep_killed(FakeRay(), "run-1")
