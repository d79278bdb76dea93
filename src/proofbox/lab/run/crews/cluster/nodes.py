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
RAY_NAMES = {"cpus": "CPU", "gpus": "GPU"}
"""Ray's names for resources that have a different name here."""


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
    room: dict[str, int] = {}
    for each in nodes:
        has = each["Resources"]
        if each["Alive"] and has.get("CPU"):
            limits = [has.get(RAY_NAMES.get(name, name), 0.0) // engine.amount(name) for name in engine.resources]
            room[each["NodeID"]] = int(min([engine.per_node or int(has["CPU"]) or 1, *limits]))
    shares = dict.fromkeys(room, 0)
    while sum(shares.values()) < min(concurrency, sum(room.values())):
        least = min((id for id in room if shares[id] < room[id]), key=lambda id: shares[id])
        shares[least] += 1
    for each in nodes:
        if shares.get(each["NodeID"]):
            yield ClusterNode(each["NodeID"], node_name(each), int(each["Resources"]["CPU"]), shares[each["NodeID"]])


def no_capacity(nodes: list[dict[str, Any]], engine: EngineSettings) -> str:
    """Return why no node of the cluster can run an attempt."""
    usable = [each["Resources"] for each in nodes if each["Alive"] and each["Resources"].get("CPU")]
    if not usable:
        return "no node of the cluster is alive and has CPUs"
    missing = []
    for name in engine.resources:
        most = max(each.get(RAY_NAMES.get(name, name), 0.0) for each in usable)
        if most < engine.amount(name):
            has = f"the most that a node has is {_shown(name, most)}" if most else "no node has any"
            missing.append(f"{name}={_shown(name, engine.amount(name))} ({has})")
    return f"no node of the cluster has {', '.join(missing) or 'all requested resources together'}"


def _shown(resource: str, amount: float) -> str:
    return f"{amount / (1 << 20):.0f}m" if resource == "memory" else f"{amount:g}"


def lost_to(error: Exception, ray: Any, node: str) -> WorkerLost:
    """Return the typed cause of a failure that Ray reports."""
    kinds = ray.exceptions
    text = str(error)
    if isinstance(error, kinds.ObjectStoreFullError | kinds.OutOfDiskError):
        return ObjectStoreFull(f"the object store of {node} is full", op="attempt")
    if isinstance(error, kinds.OutOfMemoryError) or "memory monitor" in text or "due to memory pressure" in text:
        return WorkerOutOfMemory(f"a worker on {node} was killed because the node ran out of memory", op="attempt")
    if getattr(error, "preempted", False):
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
