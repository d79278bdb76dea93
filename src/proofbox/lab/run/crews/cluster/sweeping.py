"""Removes what clusters left: on this machine with `proofbox gc`, on other nodes with `gc --engine ray:HOST:PORT`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from proofbox.config.engine import EngineSettings
from proofbox.core.interpreter import module_child
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import EngineUnavailable, ProofboxError
from proofbox.lab.run.crews.cluster.connection import connected, require_ray
from proofbox.lab.run.crews.cluster.nodes import last_line, node_name
from proofbox.lab.run.crews.cluster.places import ray_place, sweep_node, sweep_ray
from proofbox.lab.run.crews.cluster.transfer import sweep_parcels
from proofbox.sandbox.images.received import received_dir

TIMEOUT = 300.0
NODE_TIMEOUT = 60.0
"""For all nodes, which are swept at the same time."""
ResultT = TypeVar("ResultT")


class SweptItem(msgspec.Struct, frozen=True):
    """A directory that a killed process left, a parcel that is kept on a machine, or a node that was not swept."""

    kind: Literal["node", "parcel"]
    path: str
    bytes: int
    free: bool
    reason: str
    left: str = ""
    """Why a node could not be swept."""


def sweep_machine(*, remove: bool) -> list[SweptItem]:
    """Return what clusters left on this machine, and the parcels that are kept here; remove what is free, if asked."""
    found = [SweptItem("node", *each, True, "left by a killed worker") for each in sweep_node(remove=remove)]
    found += [SweptItem("node", *each, True, "left by a killed cluster") for each in sweep_ray(remove=remove)]
    return [*found, *(SweptItem("parcel", *each) for each in sweep_parcels(received_dir(), remove=remove))]


def sweep_engine(engine: EngineSettings, *, remove: bool) -> list[SweptItem]:
    """Do the same on every node of an existing cluster.

    In a child process: connecting to a cluster changes the environment, and a process can connect to only one.
    """
    require_ray()
    with ray_place() as place:
        child = module_child(__name__, msgspec.json.encode(engine).decode(), str(place), str(int(remove)))
        try:
            done = subprocess.run(
                child.argv, cwd=child.cwd, env=child.env, stdout=subprocess.PIPE, timeout=TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            why = f"{engine.address} did not answer within {TIMEOUT:g} s"
            raise EngineUnavailable(why, op="gc", fix_hints=["check the nodes of the cluster"]) from None
    if done.returncode == 0:
        return parse_json(done.stdout, list[SweptItem])
    error = parse_json(done.stdout or b"{}", dict[str, Any])
    raise EngineUnavailable(
        str(error.get("message", "the cluster could not be swept")),
        op="gc",
        fix_hints=error.get("fix_hints", ("check the address and the token",)),
    )


def sweep_killed(ray: Any, run_id: str) -> None:
    """Remove what a run's workers, which were just killed, left on the nodes of the connected cluster."""
    for _ in _on_every_node(ray, sweep_node, killed_run=run_id):
        pass


def sweep_cluster(ray: Any, *, remove: bool) -> Iterator[SweptItem]:
    """Sweep every node of the connected cluster."""
    for name, found in _on_every_node(ray, sweep_machine, remove=remove):
        if isinstance(found, Exception):
            why = f"{name}: {last_line(found)}"
            yield SweptItem("node", name, 0, False, "the node could not be swept", why)
        else:
            for each in found:
                yield msgspec.structs.replace(each, reason=f"on {name}: {each.reason}")


def _on_every_node(
    ray: Any, function: Callable[..., ResultT], **options: Any
) -> Iterator[tuple[str, ResultT | Exception]]:
    """Call a function on every node, and yield its result there, or the reason for the failure."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(function)
    asked = {
        node_name(each): task.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(each["NodeID"], soft=False),
        ).remote(**options)
        for each in ray.nodes()
        if each["Alive"]
    }
    until = time.monotonic() + NODE_TIMEOUT
    for name, reference in asked.items():
        try:
            yield name, ray.get(reference, timeout=max(1.0, until - time.monotonic()))
        except ray.exceptions.RayError as error:  # it died in the meantime, or has no proofbox
            yield name, error


def main(argv: list[str]) -> None:
    chosen, place, remove = argv
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Ray also writes to stdout

    def give_up(error: ProofboxError) -> None:
        answer.write(msgspec.json.encode(error.as_dict()))
        answer.flush()
        os._exit(1)  # Ray's own exit may wait for a cluster that does not answer

    try:
        with connected(parse_json(chosen, EngineSettings), Path(place), give_up) as ray:
            answer.write(msgspec.json.encode(list(sweep_cluster(ray, remove=remove == "1"))))
            answer.flush()
    except ProofboxError as error:
        give_up(error)


if __name__ == "__main__":
    # Ray sends what belongs to `__main__` by value, which changes the fields of a struct.
    from proofbox.lab.run.crews.cluster import sweeping

    sweeping.main(sys.argv[1:])
