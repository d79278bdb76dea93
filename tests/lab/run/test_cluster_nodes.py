"""The nodes of a cluster as Ray describes them: shares of the concurrency, and the typed causes of losses."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from proofbox.config.engine import EngineSettings
from proofbox.errors import (
    EngineUnavailable,
    NodeLost,
    NodePreempted,
    ObjectStoreFull,
    UsageError,
    WorkerLost,
    WorkerOutOfMemory,
)
from proofbox.lab.run.crews.cluster import connection
from proofbox.lab.run.crews.cluster.nodes import capacities, lost_to, no_capacity, node_name


def ray_node(id: str, *, alive: bool = True, port: int = 0, **resources: float) -> dict[str, Any]:
    return {
        "NodeID": id * 20,
        "NodeManagerHostname": f"host-{id}",
        "NodeManagerAddress": "127.0.0.1",
        "NodeManagerPort": port,
        "Alive": alive,
        "Resources": resources,
    }


@pytest.mark.parametrize(
    ("engine", "concurrency", "shares"),
    [
        ({}, 100, {"a": 4, "b": 2}),
        ({}, 3, {"a": 2, "b": 1}),
        ({}, 1, {"a": 1}),
        ({"per_node": 8}, 100, {"a": 8, "b": 8}),
        ({"per_node": 1}, 100, {"a": 1, "b": 1}),
        ({"resources": {"cpus": 2.0}}, 100, {"a": 2, "b": 1}),
        ({"resources": {"box": 1.0}}, 100, {"b": 2}),
        ({"resources": {"memory": "4g"}}, 100, {"a": 2}),
        ({"resources": {"gpus": 1.0}}, 100, {}),
    ],
)
def test_nodes_share_the_concurrency_within_their_resources(
    engine: dict[str, Any], concurrency: int, shares: dict[str, int]
) -> None:
    nodes = [
        ray_node("h", CPU=0.0),  # the head
        ray_node("a", CPU=4.0, memory=float(9 << 30)),
        ray_node("b", CPU=2.0, memory=float(1 << 30), box=3.0),
        ray_node("d", alive=False, CPU=64.0, memory=1e15, box=9.0),
    ]
    found = capacities(nodes, EngineSettings(name="ray", **engine), concurrency)
    assert {each.name[5]: each.slots for each in found} == shares


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        ({"unicorn": 1.0}, "no node of the cluster has unicorn=1 (no node has any)"),
        ({"box": 4.0, "cpus": 1.0}, "no node of the cluster has box=4 (the most that a node has is 3)"),
        ({"memory": "4g"}, "no node of the cluster has memory=4096m (the most that a node has is 2048m)"),
        ({"box": 1.0, "gpus": 1.0}, "no node of the cluster has all requested resources together"),
    ],
)
def test_missing_resource_is_named(resources: dict[str, Any], reason: str) -> None:
    nodes = [ray_node("a", CPU=4.0, GPU=1.0, memory=float(2 << 30)), ray_node("b", CPU=2.0, box=3.0)]
    engine = EngineSettings(name="ray", resources=resources)
    assert not list(capacities(nodes, engine, 1))
    assert no_capacity(nodes, engine) == reason
    assert no_capacity([ray_node("h", CPU=0.0)], engine) == "no node of the cluster is alive and has CPUs"


@pytest.mark.parametrize("settings", [{"name": "ray:h:0"}, {"name": "ray:h:99999"}, {"resources": {"box": "1e400"}}])
def test_settings_that_no_cluster_can_have_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"port|box"):
        EngineSettings(**{"name": "ray", **settings})


@pytest.mark.parametrize("host", ["a..b", ".a", "..", "a" * 64, "a." + "b" * 64 + ".c", "10.0.0.1.."])
def test_host_name_that_cannot_be_looked_up_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="is unknown") as refused:
        EngineSettings(name=f"ray:{host}:6379")
    assert refused.value.fix_hints == ("use `local`, `ray` or `ray:HOST:PORT`",)
    with pytest.raises(EngineUnavailable, match="could not be joined"):
        connection._reach(f"{host}:6379")


@pytest.mark.parametrize("host", ["10.0.0.1", "[::1]", "head", "head.ray.svc.cluster.local.", "a" * 63 + ".example"])
def test_host_names_and_addresses_are_accepted(host: str) -> None:
    assert EngineSettings(name=f"ray:{host}:6379").address == f"{host}:6379"


def test_address_without_a_cluster_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    with pytest.raises(EngineUnavailable, match=f"127.0.0.1:{closed} could not be joined: Connection refused"):
        connection._reach(f"127.0.0.1:{closed}")


@pytest.fixture
def ray() -> Iterator[SimpleNamespace]:
    """Ray's errors, and a cluster with one node that can be reached."""
    exceptions = pytest.importorskip("ray.exceptions")
    with socket.create_server(("127.0.0.1", 0)) as server:
        node = ray_node("a", port=server.getsockname()[1], CPU=1.0)
        yield SimpleNamespace(exceptions=exceptions, nodes=lambda: [node], node=node_name(node))


def actor_died(message: str, *, reason: int | None = None) -> Exception:
    """Return the error of a call to an actor that died, as Ray constructs it."""
    from ray.core.generated.common_pb2 import ActorDiedErrorContext
    from ray.exceptions import ActorDiedError

    context = ActorDiedErrorContext(error_message=message, actor_id=b"0" * 16)
    if reason is not None:
        context.node_death_info.reason = reason
    found: Exception = ActorDiedError(context)
    return found


@pytest.mark.needs("ray")
def test_every_loss_has_a_type(ray: SimpleNamespace) -> None:
    from ray.core.generated.common_pb2 import NodeDeathInfo

    kinds = ray.exceptions
    unexpected = "The actor died because its node has died. Node Id: 1\n\tthe actor's node was terminated unexpectedly"
    causes: list[tuple[Exception, type[WorkerLost]]] = [
        (actor_died("Worker unexpectedly exits with a connection error code 2. End of file."), WorkerLost),
        (kinds.ActorUnavailableError("rpc failed", b"0" * 16), WorkerLost),
        (kinds.OutOfMemoryError("Task was killed due to the node running low on memory."), WorkerOutOfMemory),
        (actor_died(unexpected, reason=NodeDeathInfo.UNEXPECTED_TERMINATION), NodeLost),
        (actor_died("Node died.", reason=NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED), NodePreempted),
        (kinds.NodeDiedError("This can happen if the node was preempted or had a hardware failure."), NodeLost),
        (kinds.LocalRayletDiedError(), NodeLost),
        (kinds.ObjectStoreFullError("Failed to put object"), ObjectStoreFull),
        (kinds.OutOfDiskError("Local disk is full"), ObjectStoreFull),
    ]
    for error, kind in causes:
        found = lost_to(error, ray, ray.node)
        assert type(found) is kind, error
        assert ray.node in found.message


@pytest.mark.needs("ray")
@pytest.mark.parametrize("gone", ["dead", "unreachable", "unknown"])
def test_worker_on_a_node_that_cannot_be_reached_is_lost_with_its_node(ray: SimpleNamespace, gone: str) -> None:
    [node] = ray.nodes()
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    changed = {"dead": {"Alive": False}, "unreachable": {"NodeManagerPort": closed}, "unknown": {"NodeID": "z" * 20}}
    ray.nodes = lambda: [node | changed[gone]]
    assert type(lost_to(actor_died("connection error"), ray, ray.node)) is NodeLost
