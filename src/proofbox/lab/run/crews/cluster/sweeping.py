"""Removes what killed workers left on the nodes of a cluster: `proofbox gc --engine ray:HOST:PORT`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from proofbox.config.engine import EngineSettings
from proofbox.core.interpreter import module_child
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import EngineUnavailable, ProofboxError, UsageError
from proofbox.lab.run.crews.cluster.connection import connected, require_ray
from proofbox.lab.run.crews.cluster.node import sweep_node
from proofbox.lab.run.crews.cluster.nodes import node_name

TIMEOUT = 300.0
NODE_TIMEOUT = 60.0


class SweptNode(msgspec.Struct, frozen=True):
    """A directory that a killed worker left on a node."""

    node: str
    path: str
    bytes: int


def sweep_engine(engine: EngineSettings, *, remove: bool) -> list[SweptNode]:
    """Return what killed workers left on every node of an existing cluster, and remove it, if asked.

    In a child process: connecting to a cluster changes the environment, and a process can connect to only one.
    """
    require_ray()
    if engine.address is None:
        hints = ["name the cluster: --engine ray:HOST:PORT"]
        raise UsageError("a private cluster leaves nothing behind", op="gc", fix_hints=hints)
    with TemporaryDirectory(prefix="pbr-") as place:
        child = module_child(__name__, msgspec.json.encode(engine).decode(), place, str(int(remove)))
        try:
            done = subprocess.run(
                child.argv, cwd=child.cwd, env=child.env, stdout=subprocess.PIPE, timeout=TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            why = f"{engine.address} did not answer within {TIMEOUT:g} s"
            raise EngineUnavailable(why, op="gc", fix_hints=["check the nodes of the cluster"]) from None
    if done.returncode == 0:
        return parse_json(done.stdout, list[SweptNode])
    error = parse_json(done.stdout or b"{}", dict[str, Any])
    raise EngineUnavailable(
        str(error.get("message", "the cluster could not be swept")),
        op="gc",
        fix_hints=error.get("fix_hints", ("check the address and the token",)),
    )


def sweep_cluster(ray: Any, *, remove: bool = True, killed_run: str = "") -> Iterator[SweptNode]:
    """Yield what killed workers left on every node of the connected cluster, and remove it, if asked.

    `killed_run` is the run whose workers have just been killed, if any.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    sweep = ray.remote(sweep_node)
    asked = {
        node_name(each): sweep.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(each["NodeID"], soft=False),
        ).remote(remove=remove, killed_run=killed_run)
        for each in ray.nodes()
        if each["Alive"]
    }
    for name, reference in asked.items():
        with contextlib.suppress(ray.exceptions.RayError):  # it died meanwhile, or has no proofbox
            yield from (SweptNode(name, *found) for found in ray.get(reference, timeout=NODE_TIMEOUT))


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
    main(sys.argv[1:])
