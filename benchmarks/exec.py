"""The cost of a sandboxed command, compared with the same command without a sandbox in the same run.

    scripts/bench exec [--rounds N] [--sessions N] [--check]

Each ratio is the median of the ratios of interleaved rounds (`_pairs.py`). With --check the run fails when one is past
its threshold.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from _history import at_least, at_most
from _pairs import paired_ratio

from proofbox import AsyncSandboxes, Sandboxes
from proofbox.config.settings import Settings
from proofbox.sandbox.containers.ownership import our_containers
from proofbox.sandbox.contract import Output, Policy
from proofbox.sandbox.providers import bubblewrap
from proofbox.sandbox.service import Session

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import private_engine

COMMAND = ["true"]
BATCH = 20
MOST_KB = 1200
NAMES = {
    "off": "a command in a session without isolation",
    "bubblewrap": "a command in a bubblewrap session",
    "two sessions": "a command in the slower of two sessions that take turns",
    "docker": "a command in a docker session",
    "vm": "a command in a running machine",
    "session": "a bubblewrap session from start to stop, with a command",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="interleaved rounds", metavar="N")
    parser.add_argument(
        "--sessions", type=int, default=1000, help="how many sessions to hold at once (0: skip)", metavar="N"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 when a ratio is past its threshold")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="proofbox-bench-") as project, Sandboxes(project) as boxes:
        held = [in_session(boxes, project, options.rounds), whole_session(boxes, Path(project), options.rounds)]
        held.append(one_gigabyte(boxes))
        if options.sessions:
            held.append(many_sessions(boxes, options.sessions))
        problem = private_engine.missing()
        if problem:
            print(f"docker: not measured: {problem}")
        else:
            held.append(in_a_container(Path(project), options.rounds))
    return 1 if options.check and not all(held) else 0


def in_session(boxes: Sandboxes, project: str, rounds: int) -> bool:
    """One command in an existing session: in each alone, and in two that take turns.

    The scheduler of a small machine places processes differently if a second session is used in between.
    """
    print(f"in-session exec of `true`, {rounds} rounds of {BATCH}")
    base = "subprocess.run"
    bare: dict[str, Callable[[], object]] = {base: lambda: subprocess.run(COMMAND, capture_output=True, check=True)}
    held = []
    with (
        boxes.start_session(provider="off") as off,
        boxes.start_session(provider="bubblewrap") as bwrap,
    ):
        ways: dict[str, Callable[[], object]] = {
            "off": lambda: off.exec(COMMAND),
            "bubblewrap": lambda: bwrap.exec(COMMAND),
        }
        for name, way in ways.items():
            times = interleaved({**bare, name: way}, rounds, BATCH)
            held.append(compare(name, times[name], base, times[base], 1.1))
        times = interleaved({**bare, **ways}, rounds, BATCH)
        held.append(compare("two sessions", max(map(times.__getitem__, ways), key=median), base, times[base], 1.2))
    with asyncio.Runner() as runner:
        async_session = runner.run(AsyncSandboxes(project).start_session(provider="bubblewrap"))
        times = interleaved({**bare, "async": lambda: runner.run(async_session.exec(COMMAND))}, rounds, BATCH)
        runner.run(async_session.stop())
    print(f"  {'async client':<12} {median(times['async']):.3f} ms   {base} {median(times[base]):.3f} ms")
    return all(held)


def whole_session(boxes: Sandboxes, project: Path, rounds: int) -> bool:
    """Start, one command, stop: compared with plain bubblewrap with the same flags."""
    print(f"bubblewrap session, start + exec + stop, {rounds} rounds")
    bare = bubblewrap.command_line(project.resolve(), Policy())
    ways: dict[str, Callable[[], object]] = {
        "bare bwrap": lambda: subprocess.run([*bare, *COMMAND], capture_output=True, check=True),
        "session": lambda: boxes.exec(COMMAND, provider="bubblewrap"),
    }
    times = interleaved(ways, rounds, 2)
    return compare("session", times["session"], "bare bwrap", times["bare bwrap"], 1.3)


def in_a_container(project: Path, rounds: int) -> bool:
    """One command in a docker session, compared with no sandbox and with `docker exec`."""
    print(f"docker: in-session exec of `true`, {rounds} rounds of {BATCH}")
    with private_engine.private_engine() as engine:
        os.environ["DOCKER_HOST"] = engine.host
        settings = Settings(provider="docker", image=private_engine.IMAGE)
        with Sandboxes(project, settings=settings) as boxes, boxes.start_session() as session:
            container = our_containers(engine.engine)[session.id]
            ways: dict[str, Callable[[], object]] = {
                "subprocess.run": lambda: subprocess.run(COMMAND, capture_output=True, check=True),
                "docker": lambda: session.exec(COMMAND),
            }
            times = interleaved(ways, rounds, BATCH)
            by_hand = ["docker", "exec", container, *COMMAND]
            times |= interleaved(
                {"docker exec": lambda: subprocess.run(by_hand, capture_output=True, check=True)}, 5, 2
            )
    held = compare("docker", times["docker"], "subprocess.run", times["subprocess.run"], 1.4)
    docker, peer = median(times["docker"]), median(times["docker exec"])
    faster = peer / docker
    verdict = "ok" if faster >= 30 else "MISSED"
    print(f"  docker exec  {peer:.1f} ms, {faster:.0f} times slower (at least 30) {verdict}")
    took = {"ours": f"{docker:.2f} ms", "theirs": f"{peer:.1f} ms"}
    return at_least(f"{NAMES['docker']}, faster than docker exec", faster, 30, **took) and held


def one_gigabyte(boxes: Sandboxes) -> bool:
    """Data through stdin and back through stdout: how much memory the client needs."""
    size, count = 1 << 30, 0

    def take(output: Output) -> None:
        nonlocal count
        count += len(output.data)

    script = f"import sys; b = bytes(1 << 20); [sys.stdout.buffer.write(b) for _ in range({size >> 20})]"
    with boxes.start_session(provider="bubblewrap") as session:
        session.exec(["true"])
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as source:
            result = session.exec(["cat"], stdin=source.stdout, on_output=take, max_output=1 << 20)
        seconds = time.perf_counter() - began
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    right = count == size and result.exit_code == 0
    verdict = "ok" if right and grown < 100 else "MISSED"
    print(f"1 GB through stdin and stdout: {seconds:.1f} s, {grown:.0f} MB more memory (at most 100) {verdict}")
    return right and grown < 100


def many_sessions(boxes: Sandboxes, count: int) -> bool:
    """Many boxes alive at the same time, with a command in each."""
    print(f"{count} bubblewrap sessions at once")
    before = used_memory_kb()
    began = time.perf_counter()
    sessions: list[Session] = [boxes.start_session(provider="bubblewrap") for _ in range(count)]
    with ThreadPoolExecutor(16) as pool:
        codes = list(pool.map(lambda session: session.exec(COMMAND).exit_code, sessions))
    ready = time.perf_counter() - began
    each = (used_memory_kb() - before) / count
    failures = sum(code != 0 for code in codes)
    began = time.perf_counter()
    for session in sessions:
        session.stop()
    print(
        f"  started and used in {ready:.1f} s, {each:.0f} kB each (all of the machine's), {failures} failures;", end=" "
    )
    print(f"stopped in {time.perf_counter() - began:.1f} s")
    return at_most(f"kB of memory of one of {count} sessions", each, MOST_KB) and failures == 0


def interleaved(ways: dict[str, Callable[[], object]], rounds: int, batch: int) -> dict[str, list[float]]:
    """Return the means of all rounds in ms. They take turns, so that a slow moment of the machine affects all."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            for _ in range(batch):
                way()
            times[name].append((time.perf_counter() - began) * 1000 / batch)
    return times


def compare(name: str, times: list[float], base_name: str, base: list[float], threshold: float) -> bool:
    ratio = paired_ratio(times, base)
    verdict = "ok" if ratio.value <= threshold else "MISSED"
    against = f"{base_name} {median(base):.3f} ms"
    print(f"  {name:<12} {median(times):.3f} ms   {against}   ratio {ratio}, at most {threshold}: {verdict}")
    took = {"ours": f"{median(times):.2f} ms", "theirs": f"{median(base):.2f} ms"}
    return at_most(f"{NAMES[name]}, to {base_name}", ratio.value, threshold, **took)


def used_memory_kb() -> int:
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(facts["MemTotal"].split()[0]) - int(facts["MemAvailable"].split()[0])


if __name__ == "__main__":
    sys.exit(main())
