"""A Ray cluster whose head and nodes have their own network namespaces, so that tests can partition it.

The namespaces are connected by a bridge in that of the head. Nothing outside of them can be reached, and they end with
the processes that hold them.
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

from ray_cluster import STORE, kill_processes_below, process_children

SUBNET = "10.77.0"
PORT = 6379
HEALTH = {  # on a busy machine, healthy nodes also answer late, and a head whose own node counts as dead ends
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "3",
}
COUNT_NODES = f"""
import contextlib, sys, threading, ray

def alive():
    with contextlib.suppress(Exception):  # the head is still starting
        found = ray._raylet.GcsClient(address="{SUBNET}.1:{PORT}").get_all_node_info(timeout=10)
        return sum(each.state == 0 for each in found.values())

for _ in range(30):
    if alive() == int(sys.argv[1]):
        sys.exit(0)
    threading.Event().wait(0.3)
sys.exit(1)
"""


class Namespace:
    """A network namespace, held by a process."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.path = f"/proc/{self._holder.pid}/ns/net"
        mine = os.readlink("/proc/self/ns/net")
        while os.readlink(self.path) == mine:
            assert self._holder.poll() is None, "network namespaces are not available"

    def enter(self, *argv: str) -> list[str]:
        """Return a command line that runs another one in this namespace."""
        return ["nsenter", f"--net={self.path}", *argv]

    def run(self, *argv: str) -> None:
        subprocess.run(self.enter(*argv), check=True)

    def add_interface(self, name: str, peer: str, other: Namespace) -> None:
        self.run("ip", "link", "add", name, "type", "veth", "peer", "name", peer, "netns", str(other._holder.pid))

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()


class NetworkNode:
    """A node of the cluster. Its processes are children of `ray start --block`, which ends when one of them does."""

    def __init__(self, cluster: NetworkCluster, number: int) -> None:
        self._cluster = cluster
        self._namespace = Namespace()
        self._address = f"{SUBNET}.{number + 2}"
        self._link = f"node{number}"
        head = cluster.head
        head.add_interface(self._link, "eth0", self._namespace)
        head.run("ip", "link", "set", self._link, "master", "bridge", "up")
        for words in ("link set lo up", f"addr add {self._address}/24 dev eth0", "link set eth0 up"):
            self._namespace.run("ip", *words.split())
        self.start()

    def start(self) -> None:
        self._process = self._cluster.ray(
            self._namespace, f"--address={SUBNET}.1:{PORT}", f"--node-ip-address={self._address}", "--num-cpus=1"
        )

    def ensure_running(self) -> None:
        """Start the node again if it is dead or suspended."""
        if self._process.poll() is not None or any(map(is_suspended, self.raylets)):
            self.stop()
            self.start()

    @property
    def raylets(self) -> list[int]:
        """The process that runs the node; none while the node starts."""
        return [pid for pid, name in process_children(self._process.pid) if name == "raylet"]

    def connect(self, *, up: bool) -> None:
        """Connect the node to the others, or partition it from them."""
        self._cluster.head.run("ip", "link", "set", self._link, "up" if up else "down")

    def stop(self) -> None:
        for pid, _ in process_children(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.stop()
        self._namespace.close()


class NetworkCluster:
    """A head without CPUs, and nodes with one each."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.token = secrets.token_hex(32)
        self.address = f"{SUBNET}.1:{PORT}"
        self.env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, **HEALTH}
        self.env |= {"RAY_TMPDIR": str(place), "RAY_USAGE_STATS_ENABLED": "0"}
        self.head = Namespace()
        for words in (
            "link set lo up",
            "link add bridge type bridge",
            f"addr add {SUBNET}.1/24 dev bridge",
            "link set bridge up",
        ):
            self.head.run("ip", *words.split())
        self._process = self.ray(
            self.head,
            "--head",
            f"--port={PORT}",
            f"--node-ip-address={SUBNET}.1",
            "--num-cpus=0",
            "--include-dashboard=false",
            f"--temp-dir={place}",
        )
        self.nodes: list[NetworkNode] = []

    def ray(self, namespace: Namespace, *words: str) -> subprocess.Popen[bytes]:
        script = str(Path(sys.executable).with_name("ray"))
        argv = namespace.enter(sys.executable, script, "start", "--block", f"--object-store-memory={STORE}", *words)
        return subprocess.Popen(argv, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait_for_nodes(self) -> None:
        """Wait until the head and all nodes are alive, and no others. Dead nodes are started again."""
        while not self._has_nodes(len(self.nodes)):
            for node in self.nodes:
                node.ensure_running()

    def wait_for_loss(self) -> None:
        """Wait until the head has noticed that a node is dead or unreachable."""
        while not self._has_nodes(len(self.nodes) - 1):
            pass

    def _has_nodes(self, count: int) -> bool:
        """Wait some seconds for this number of nodes next to the head; return whether it was reached."""
        assert self._process.poll() is None, "the head is dead"
        argv = self.head.enter(sys.executable, "-c", COUNT_NODES, str(count + 1))
        return subprocess.run(argv, env=self.env, check=False).returncode == 0

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self._process.kill()
        self._process.wait()
        kill_processes_below(self.place)
        self.head.close()


@contextlib.contextmanager
def network_cluster(nodes: int) -> Iterator[NetworkCluster]:
    place = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))  # paths of sockets are limited to 107 bytes
    cluster = NetworkCluster(place)
    try:
        cluster.wait_for_nodes()
        for number in range(nodes):
            cluster.nodes.append(NetworkNode(cluster, number))
            cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.close()
        subprocess.run(["rm", "-rf", "--", place], check=True)


def is_suspended(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False
