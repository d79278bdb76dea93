"""A Ray cluster for tests: a head without CPUs and some nodes, all on the loopback interface of this machine.

`python ray_cluster.py NODES CPUS` prints the address as soon as the nodes are alive, and ends with its stdin. Each line
of stdin is a command: `kill N` kills the raylet of a node, `add` starts another node, `behead` kills the head.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from proofbox.lab.run.crews.cluster.connection import NO_SPARE_WORKERS

STORE = 100_000_000
MAX_STARTS = 4
"""How often a cluster is started. Ray fails if a node takes longer than 30 s, as it may on a busy machine."""


class RayCluster(NamedTuple):
    """A running cluster, as tests use it."""

    address: str
    token: str
    place: Path
    process: subprocess.Popen[str]

    @property
    def worker_places(self) -> Path:
        """The directory for all workers on its nodes. It is not the tests' own, where any `gc` removes what is left."""
        return self.place / "tmp" / f"proofbox-nodes-{os.getuid()}"

    def command(self, line: str) -> None:
        """Give the cluster a command, and wait until it is done."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@contextlib.contextmanager
def ray_cluster(nodes: int = 2, cpus: int = 2) -> Iterator[RayCluster]:
    for _ in range(MAX_STARTS):
        cluster = _start(nodes, cpus)
        try:
            if cluster.address:
                yield cluster
                return
        finally:
            cluster.process.communicate()
            kill_processes_below(cluster.place)  # the agents of a killed raylet
            subprocess.run(["rm", "-rf", "--", cluster.place], check=True)
    raise AssertionError("the cluster did not start")


def _start(nodes: int, cpus: int) -> RayCluster:
    """Start a cluster; its address is empty if that failed."""
    # In /tmp, because paths of sockets are limited to 107 bytes.
    place = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))
    token = secrets.token_hex(32)
    (place / "tmp").mkdir()
    env = {**os.environ, "TMPDIR": str(place / "tmp"), "RAY_TMPDIR": str(place), "RAY_USAGE_STATS_ENABLED": "0"}
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, **NO_SPARE_WORKERS}
    argv = [sys.executable, __file__, str(nodes), str(cpus)]
    process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return RayCluster(process.stdout.readline().strip(), token, place, process)


def processes_of(token: str) -> Iterator[tuple[int, bytes]]:
    """Yield the other processes that have a token in their environment, with their titles."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if token.encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                yield int(entry.name), (entry / "cmdline").read_bytes()


def worker_processes(token: str) -> list[int]:
    """Return the processes of the workers on a cluster's nodes, without children that execute no program yet."""
    found = [pid for pid, title in processes_of(token) if title.startswith(b"ray::NodeWorker")]
    return [pid for pid in found if parent_of(pid) not in found]


def kill_processes_below(place: Path) -> None:
    """Kill what is left of a cluster, and wait until it is gone. Each of its processes has a log file in `place`."""
    while left := list(processes_below(place)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def processes_below(place: Path) -> Iterator[int]:
    """Yield the processes that have an open file below a directory."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(each).startswith(f"{place}/") for each in (entry / "fd").iterdir()):
                yield int(entry.name)


def process_children(pid: int) -> Iterator[tuple[int, str]]:
    """Yield the children of a process, with their names."""
    for entry in Path("/proc").glob("[0-9]*"):
        if parent_of(int(entry.name)) == pid:
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "comm").read_text().rstrip("\n")


def parent_of(pid: int) -> int | None:
    """Return the parent of a process; None if the process has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


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
