"""The nodes of a cluster as Ray describes them: how many attempts each can run, and why a worker on one was lost."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from proofbox.config.engine import EngineSettings
from proofbox.errors import NodeLost, NodePreempted, ObjectStoreFull, WorkerLost, WorkerOutOfMemory
from proofbox.lab.attempt.documents import NodeRecord

REACH_TIMEOUT = 3.0


class ClusterNode:
    """A node of the cluster, and the workers on it."""

    def __init__(self, id: str, name: str, cpus: int, slots: int) -> None:
        self.id = id
        self.name = name
        self.cpus = cpus
        self.slots = slots
        self.record: NodeRecord | None = None
        self.deaths = 0


def capacities(nodes: list[dict[str, Any]], engine: EngineSettings, concurrency: int) -> Iterator[ClusterNode]:
    """Yield the nodes that can run attempts, with their share of the run's concurrency, evenly distributed."""
    names = {"cpus": "CPU", "gpus": "GPU"}
    room: dict[str, int] = {}
    for each in nodes:
        has = each["Resources"]
        if each["Alive"] and has.get("CPU"):
            limits = [has.get(names.get(name, name), 0.0) // engine.amount(name) for name in engine.resources]
            room[each["NodeID"]] = int(min([engine.per_node or int(has["CPU"]) or 1, *limits]))
    shares = dict.fromkeys(room, 0)
    while sum(shares.values()) < min(concurrency, sum(room.values())):
        least = min((id for id in room if shares[id] < room[id]), key=lambda id: shares[id])
        shares[least] += 1
    for each in nodes:
        if shares.get(each["NodeID"]):
            yield ClusterNode(each["NodeID"], node_name(each), int(each["Resources"]["CPU"]), shares[each["NodeID"]])


def lost_to(error: Exception, ray: Any, node: str) -> WorkerLost:
    """Return the typed cause of a failure that Ray reports."""
    kinds = ray.exceptions
    text = str(error)
    if isinstance(error, kinds.ObjectStoreFullError | kinds.OutOfDiskError):
        return ObjectStoreFull(f"the object store of {node} is full", op="attempt")
    if isinstance(error, kinds.OutOfMemoryError) or "memory monitor" in text or "due to memory pressure" in text:
        return WorkerOutOfMemory(f"a worker on {node} was killed because the node ran out of memory", op="attempt")
    if getattr(error, "preempted", False) or "preempted" in text or "drained" in text:
        return NodePreempted(f"{node} was preempted", op="attempt")
    if isinstance(error, kinds.RayTaskError):
        return WorkerLost(f"{node} could not run it: {last_line(error)}", op="attempt")
    gone = isinstance(error, kinds.NodeDiedError | kinds.LocalRayletDiedError) or "node has died" in text
    if gone or "node died" in text or "node was terminated" in text or _is_dead(ray, node):
        return NodeLost(f"{node} died or cannot be reached", op="attempt")
    return WorkerLost(f"a worker on {node} died", op="attempt")


def _is_dead(ray: Any, node: str) -> bool:
    """Return whether a node is dead or unreachable. The cluster itself notices that only after several seconds."""
    for each in ray.nodes():
        if node_name(each) == node and each["Alive"]:
            with contextlib.suppress(OSError):
                socket.create_connection((each["NodeManagerAddress"], each["NodeManagerPort"]), REACH_TIMEOUT).close()
                return False
    return True


def node_name(node: dict[str, Any]) -> str:
    """Return the name of a node as Ray describes it: its host, and the beginning of its id."""
    return f"{node['NodeManagerHostname']}-{node['NodeID'][:6]}"


def last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1][:300]
