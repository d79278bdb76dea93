"""A Ray cluster for tests: a head without CPUs and some nodes, all on the loopback interface of this machine.

`python ray_cluster.py NODES CPUS` prints the address as soon as the nodes are alive, and ends with its stdin. Each line
of stdin is a command: `kill N` kills the raylet of a node, `add` starts another node, `behead` kills the head.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

STORE = 100_000_000


class RayCluster(NamedTuple):
    """A running cluster, as tests use it."""

    address: str
    token: str
    place: Path
    process: subprocess.Popen[str]

    def command(self, line: str) -> None:
        """Give the cluster a command, and wait until it is done."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@contextlib.contextmanager
def ray_cluster(nodes: int = 2, cpus: int = 2, *, authenticated: bool = True) -> Iterator[RayCluster]:
    # In /tmp, because paths of sockets are limited to 107 bytes.
    place = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))
    token = secrets.token_hex(32)
    env = {**os.environ, "RAY_TMPDIR": str(place), "RAY_USAGE_STATS_ENABLED": "0"}
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if authenticated else {"RAY_AUTH_MODE": "disabled"}
    argv = [sys.executable, __file__, str(nodes), str(cpus)]
    process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "the cluster did not start"
        yield RayCluster(address, token, place, process)
    finally:
        process.communicate()
        subprocess.run(["rm", "-rf", "--", place], check=True)


def worker_processes(token: str) -> list[int]:
    """Return the processes of the workers on a cluster's nodes."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            title = (entry / "cmdline").read_bytes()
            if title.startswith(b"ray::NodeWorker") and token.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def main() -> None:
    from ray.cluster_utils import Cluster

    place = os.environ["RAY_TMPDIR"]
    os.makedirs(f"{place}/ray")
    common = {"node_ip_address": "127.0.0.1", "object_store_memory": STORE}
    head = {**common, "temp_dir": place, "num_cpus": 0, "include_dashboard": False, "include_log_monitor": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)

    def add() -> object:
        return cluster.add_node(wait=False, num_cpus=int(sys.argv[2]), resources={"box": 4}, **common)

    nodes = [add() for _ in range(int(sys.argv[1]))]
    cluster.wait_for_nodes()
    print(cluster.address, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["kill", number]:
                cluster.remove_node(nodes[int(number)], allow_graceful=False)
            case ["add"]:
                nodes.append(add())
                cluster.wait_for_nodes()
            case ["behead"]:
                cluster.head_node.kill_gcs_server()
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
