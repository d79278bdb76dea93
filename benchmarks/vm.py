"""The cost of a virtual machine: booting it, cloning it from a template, its commands, and the memory of many machines.

    scripts/bench vm [--rounds N] [--machines N] [--check]

Commands are compared with `subprocess.run`, in interleaved rounds. With --check the run fails when a figure is past its
threshold; the thresholds are for emulated machines, and far above what a machine with KVM needs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median

from _history import at_most
from exec import BATCH, COMMAND, compare, interleaved, used_memory_kb

from proofbox import Sandboxes, Settings
from proofbox.sandbox.machines.kernel import prepare_kernel

BOOTS, CLONES = 5, 15


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="interleaved rounds", metavar="N")
    parser.add_argument("--machines", type=int, default=10, help="how many to run at once (0: skip)", metavar="N")
    parser.add_argument("--check", action="store_true", help="exit 1 when a figure is past its threshold")
    options = parser.parse_args()
    prepare_kernel(print)
    with tempfile.TemporaryDirectory(prefix="proofbox-bench-") as project, Sandboxes(project) as boxes:
        boxes.exec(COMMAND, provider="vm")  # the very first start unpacks the kernel and tries KVM
        held = [boot(boxes), clone(project), in_session(boxes, options.rounds)]
        if options.machines:
            held.append(many_machines(boxes, options.machines))
    return 1 if options.check and not all(held) else 0


def boot(boxes: Sandboxes) -> bool:
    return limited("boot and first command, s", median(starts(boxes, BOOTS)), 4)


def clone(project: str) -> bool:
    with Sandboxes(project, settings=Settings(vm_template=True)) as boxes:
        boxes.exec(COMMAND, provider="vm")  # makes the template
        return limited("clone and first command, s", median(starts(boxes, CLONES)), 0.6)


def starts(boxes: Sandboxes, count: int) -> list[float]:
    """Return how long machines take from the call to the end of the first command, in seconds."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        with boxes.start_session(provider="vm") as session:
            session.exec(COMMAND)
            times.append(time.perf_counter() - began)
    return times


def in_session(boxes: Sandboxes, rounds: int) -> bool:
    print(f"in-session exec of `true`, {rounds} rounds of {BATCH}")
    with boxes.start_session(provider="vm") as session:
        ways: dict[str, Callable[[], object]] = {
            "subprocess.run": lambda: subprocess.run(COMMAND, capture_output=True, check=True),
            "vm": lambda: session.exec(COMMAND),
        }
        times = interleaved(ways, rounds, BATCH)
    return compare("vm", times["vm"], "subprocess.run", times["subprocess.run"], 15)


def many_machines(boxes: Sandboxes, count: int) -> bool:
    """Concurrent machines, with a command in each. Programs that they share are in the host's memory only once."""
    before = used_memory_kb()
    sessions = [boxes.start_session(provider="vm") for _ in range(count)]
    try:
        codes = {session.exec(COMMAND).exit_code for session in sessions}
        used = (used_memory_kb() - before) / 1024
    finally:
        for session in sessions:
            session.stop()
    return limited(f"{count} machines at once, MB", used, 204.8 * count) and codes == {0}


def limited(name: str, value: float, threshold: float) -> bool:
    verdict = "ok" if value <= threshold else "MISSED"
    print(f"{name}: {value:.2f} (at most {threshold:g}) {verdict}")
    return at_most(name, value, threshold)


if __name__ == "__main__":
    sys.exit(main())
