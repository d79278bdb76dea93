"""What attempts cost on a Ray cluster, against worker processes on this machine.

    scripts/setup --test && .venv/bin/python benchmarks/cluster.py [--nodes 1,2,4,8] [--attempts N] [--overhead N]

- scaling: attempts whose agent waits 2 s, 8 on each node, per second and against one node;
- overhead: attempts of 100 ms of CPU time, the wall time on one node against the local crew with as many slots;
- the driver's CPU time and memory per attempt, and the size of a bundle.

All nodes are on this machine, so attempts that need CPU time cannot scale beyond its cores.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/lab"))

from ray_cluster import ray_cluster
from suites import HEAD, command, conduct, mission, plan, results, say

from proofbox.config.engine import EngineSettings

PER_NODE = 8
WAIT = mission("waits", command("sleep 2"), say("done"))
BUSY = "i=$(date +%s%N); while [ $(( $(date +%s%N) - i )) -lt 100000000 ]; do :; done"


def measure(source: str, replicates: int, concurrency: int, engine: EngineSettings) -> dict[str, Any]:
    """Conduct a run; return its times from the first to the last event of an attempt, without the engine's start."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        out = Path(place) / "out"
        made = plan(
            HEAD + source, out, Path(place), concurrency=concurrency, engine=engine, replicates=replicates, retries=0
        )
        times: list[float] = []
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        run = conduct(made, out, lambda event: times.append(time.perf_counter()) if event["attempt_id"] else None)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if failures := {found[2] for found in results(made, out).values()} - {None}:
            sys.exit(f"attempts failed: {failures}")
        size = sum(each.stat().st_size for each in run.rglob("*") if each.is_file())
        return {
            "attempts": replicates,
            "start_s": times[0] - began,
            "work_s": times[-1] - times[0],
            "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "peak_mb": after.ru_maxrss / 1024,
            "bundle_kb": size / replicates / 1024,
        }


def show(name: str, found: dict[str, Any]) -> None:
    rate = found["attempts"] / found["work_s"]
    print(
        f"{name:<24}{found['attempts']:>6} attempts, start {found['start_s']:.1f} s, work {found['work_s']:.1f} s, "
        f"{rate:.2f}/s, children CPU {found['cpu_s'] / found['attempts'] * 1000:.0f} ms each, "
        f"peak {found['peak_mb']:.0f} MB, {found['bundle_kb']:.0f} kB each",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", default="1,2,4,8")
    parser.add_argument("--attempts", type=int, default=3, help="rounds of attempts per slot")
    parser.add_argument("--overhead", type=int, default=40)
    options = parser.parse_args()
    busy = mission("busy", command(BUSY), say("done"))
    local = measure(busy, options.overhead, 2, EngineSettings())
    show("local, 2 slots", local)
    first = 0.0
    for nodes in map(int, options.nodes.split(",")):
        with ray_cluster(nodes, 1) as cluster:
            os.environ["RAY_AUTH_TOKEN"] = cluster.token
            engine = EngineSettings(name=f"ray:{cluster.address}", per_node=PER_NODE)
            slots = nodes * PER_NODE
            found = measure(WAIT, slots * options.attempts, slots, engine)
            show(f"ray, {nodes} nodes", found)
            rate = found["attempts"] / found["work_s"]
            first = first or rate / nodes
            print(f"{'':<24}scaling {rate / first / nodes:.2f} of linear", flush=True)
    with ray_cluster(1, 2) as cluster:
        os.environ["RAY_AUTH_TOKEN"] = cluster.token
        engine = EngineSettings(name=f"ray:{cluster.address}", per_node=2)
        found = measure(busy, options.overhead, 2, engine)
        show("ray, 1 node, 2 slots", found)
        print(f"{'':<24}overhead {found['work_s'] / local['work_s']:.2f} of local", flush=True)


if __name__ == "__main__":
    main()
