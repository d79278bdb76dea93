"""The cost of attempts on a Ray cluster, compared with worker processes on this machine.

    scripts/setup --test
    scripts/bench cluster [--nodes 1,2,4,8] [--rounds N] [--wait S] [--overhead N] [--memory N] [--check]

- scaling: attempts whose agent waits, 8 on each node, per second and against one node;
- overhead: attempts of 100 ms of CPU time, on one node against the local crew with as many slots: wall time, and the
  CPU time of each kind of process. Both crews are measured in turn, and the medians are compared. The CPU time that a
  crew spends per second, even while its attempts wait, is measured separately: on a busy machine, it would dominate;
- memory: of the conductor and its driver during a run of many attempts on the largest cluster.

With --check, the run fails if a figure is past its threshold. 0 skips a part. All nodes are on this machine and share
its cores: besides waiting, an attempt needs about 110 ms of CPU time, so 64 of them in 2 s need four cores. With fewer,
let them wait longer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/lab"))

from ray_cluster import RayCluster, process_children, processes_below, ray_cluster, worker_processes
from suites import HEAD, command, conduct, mission, plan, results, say

from proofbox.config.engine import EngineSettings

PER_NODE = 8
ROUNDS_OF_CREWS = 3
BRIEF = mission("brief", say("done"))
BUSY = mission(
    "busy",
    command("python3 -S -c 'import time\nwhile time.process_time() < 0.1: pass'"),
    say("done"),
)
MIN_SCALING = 0.9
"""Of linear, on the largest cluster."""
MAX_OVERHEAD = 1.25
"""CPU time per attempt, against the local crew."""
MAX_GROWTH = 1.2
"""Memory of the conductor or its driver at the end of a run, against a tenth of it."""
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process and of the children that it has waited for."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS
    return 0.0


def memory_of(pid: int) -> float:
    """Return the resident memory of a process, in MB."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


class Measured:
    """One run, measured from its first to its last attempt, without the start and the end of the engine."""

    def __init__(self, attempts: int, cluster: RayCluster | None) -> None:
        self.attempts = attempts
        self.ended = 0
        self.work_s = 0.0
        self.bundle_kb = 0.0
        self.cpu_ms: dict[str, float] = {}
        """CPU time of each kind of process, per attempt."""
        self.memory: list[tuple[int, float, float]] = []
        """Ended attempts, and the memory of the conductor and of its workers then."""
        self._cluster = cluster
        self._began: tuple[float, dict[str, float]] | None = None

    def hear(self, event: dict[str, Any]) -> None:
        if not event["attempt_id"]:
            return
        if self._began is None:
            self._began = time.perf_counter(), self._cpu()
        if event["event"] != "ended":
            return
        self.ended += 1
        if self.ended % max(1, self.attempts // 10) == 0:
            workers = [pid for pid, _ in process_children(os.getpid()) if not self._is_cluster(pid)]
            self.memory.append((self.ended, memory_of(os.getpid()), max(map(memory_of, workers))))
        if self.ended == self.attempts:
            began, before = self._began
            self.work_s = time.perf_counter() - began
            self.cpu_ms = {kind: (spent - before[kind]) / self.attempts * 1e3 for kind, spent in self._cpu().items()}

    def _is_cluster(self, pid: int) -> bool:
        return self._cluster is not None and pid == self._cluster.process.pid

    def _cpu(self) -> dict[str, float]:
        spent: dict[str, float] = defaultdict(float)
        spent["conductor"] = cpu_of(os.getpid())
        mine = [pid for pid, _ in process_children(os.getpid()) if not self._is_cluster(pid)]
        spent["driver" if self._cluster else "workers"] = sum(map(cpu_of, mine))
        if self._cluster is not None:
            workers = worker_processes(self._cluster.token)
            spent["workers"] = sum(map(cpu_of, workers))
            spent["ray"] = sum(cpu_of(pid) for pid in processes_below(self._cluster.place) if pid not in workers + mine)
        return spent

    @property
    def rate(self) -> float:
        return self.attempts / self.work_s

    def show(self, name: str) -> None:
        cpu = ", ".join(f"{kind} {spent:.0f}" for kind, spent in self.cpu_ms.items())
        total = sum(self.cpu_ms.values())
        print(
            f"{name:<24}{self.attempts:>6} attempts, {self.work_s:.1f} s, {self.rate:.2f}/s, "
            f"{self.bundle_kb:.0f} kB each; CPU ms each: {total:.0f} ({cpu})",
            flush=True,
        )


def measure(source: str, replicates: int, slots: int, cluster: RayCluster | None, per_node: int = PER_NODE) -> Measured:
    found = Measured(replicates, cluster)
    engine = EngineSettings()
    if cluster is not None:
        os.environ["RAY_AUTH_TOKEN"] = cluster.token
        engine = EngineSettings(name=f"ray:{cluster.address}", per_node=per_node)
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        out = Path(place) / "out"
        made = plan(HEAD + source, out, Path(place), concurrency=slots, engine=engine, replicates=replicates, retries=0)
        run = conduct(made, out, found.hear)
        if failures := {each[2] for each in results(made, out).values()} - {None}:
            sys.exit(f"attempts failed: {failures}")
        found.bundle_kb = sum(each.stat().st_size for each in run.rglob("*") if each.is_file()) / replicates / 1024
    return found


def waiting(seconds: float) -> str:
    return mission("waits", command(f"sleep {seconds:g}"), say("done"))


def scaling(counts: list[int], rounds: int, seconds: float) -> Iterator[str]:
    """Measure the rate on each cluster; yield what is past its threshold."""
    first = reached = 0.0
    for nodes in counts:
        with ray_cluster(nodes, 1) as cluster:
            slots = nodes * PER_NODE
            found = measure(waiting(seconds), slots * rounds, slots, cluster)
        found.show(f"ray, {nodes} nodes")
        first = first or found.rate / nodes
        reached = found.rate / first / nodes
        print(f"{'':<24}scaling {reached:.2f} of linear", flush=True)
    if reached < MIN_SCALING:
        yield f"scaling {reached:.2f} to {counts[-1]} nodes is below {MIN_SCALING}"


def background(cluster: RayCluster | None) -> float:
    """Return the CPU time that a crew spends per second while its attempts wait, in ms."""
    short, long = (measure(waiting(seconds), 2, 2, cluster, per_node=2) for seconds in (1, 16))
    spent = sum(long.cpu_ms.values()) - sum(short.cpu_ms.values())
    return spent * long.attempts / (long.work_s - short.work_s)


def overhead(attempts: int) -> Iterator[str]:
    """Compare both crews; yield what is past its threshold."""
    walls: dict[str, list[float]] = defaultdict(list)
    cpus: dict[str, list[float]] = defaultdict(list)
    with ray_cluster(1, 2) as cluster:
        crews = {"local, 2 slots": None, "ray, 1 node, 2 slots": cluster}
        idle = {name: background(on) for name, on in crews.items()}
        for _ in range(ROUNDS_OF_CREWS):
            for name, on in crews.items():
                found = measure(BUSY, attempts, 2, on, per_node=2)
                found.show(name)
                walls[name].append(found.work_s)
                cpus[name].append(sum(found.cpu_ms.values()) - idle[name] / found.rate)
    (local, ray), (local_cpu, ray_cpu) = (map(statistics.median, each.values()) for each in (walls, cpus))
    print(f"{'':<24}overhead {ray / local:.2f} of local; {ray_cpu / local_cpu:.2f} in CPU time per attempt", flush=True)
    print(
        "".join(f"{name:<24}{spent:.0f} ms of CPU time per second besides\n" for name, spent in idle.items()),
        flush=True,
    )
    if ray_cpu / local_cpu > MAX_OVERHEAD:
        yield f"overhead {ray_cpu / local_cpu:.2f} in CPU time is above {MAX_OVERHEAD}"


def memory(attempts: int, nodes: int) -> Iterator[str]:
    """Measure a long run; yield what is past its threshold."""
    with ray_cluster(nodes, 1) as cluster:
        found = measure(BRIEF, attempts, nodes * PER_NODE, cluster)
    found.show(f"ray, {nodes} nodes, brief")
    for ended, conductor, driver in found.memory:
        print(f"{'':<24}{ended:>6} ended: conductor {conductor:.0f} MB, driver {driver:.0f} MB", flush=True)
    (_, *before), (_, *after) = found.memory[0], found.memory[-1]
    for name, first, last in zip(("conductor", "driver"), before, after, strict=True):
        if last > first * MAX_GROWTH:
            yield f"the memory of the {name} grows by {last / first:.2f}, more than {MAX_GROWTH}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", default="1,2,4,8")
    parser.add_argument("--rounds", type=int, default=15, help="attempts per slot, for scaling")
    parser.add_argument("--wait", type=float, default=2.0, help="seconds that each of these attempts waits")
    parser.add_argument("--overhead", type=int, default=60, help="attempts of each crew")
    parser.add_argument("--memory", type=int, default=1000, help="attempts; 10000 takes most of an hour")
    parser.add_argument("--check", action="store_true", help="exit 1 if a figure is past its threshold")
    options = parser.parse_args()
    counts = [int(each) for each in options.nodes.split(",")]
    past: list[str] = []
    if options.overhead:
        past += overhead(options.overhead)
    if options.rounds:
        past += scaling(counts, options.rounds, options.wait)
    if options.memory:
        past += memory(options.memory, counts[-1])
    print("\n".join(past))
    if options.check and past:
        sys.exit(1)


if __name__ == "__main__":
    main()
