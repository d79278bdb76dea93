"""What starting proofbox costs, against starting Python alone, side by side in one run.

    scripts/bench cli [--rounds N] [--check]

Each figure is a median over interleaved rounds, in ms and as a ratio to `python -c pass` by the same interpreter: what
Python itself takes is the machine's affair. With --check the run fails when a figure is past its threshold.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

PROGRAM = str(Path(sys.executable).with_name("proofbox"))
BASE = "python -c pass"
HELP_MS = 150.0
RATIOS = {"--help": 2.0, "--version": 2.0, "session --help": 2.0, "exec --help": None, "probe --json": None}
"""Command line, and the most it may be of Python's own start; None where it is only shown."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="interleaved rounds", metavar="N")
    parser.add_argument("--check", action="store_true", help="exit 1 when a figure is past its threshold")
    options = parser.parse_args()
    print(f"a whole process from start to end, {options.rounds} rounds")
    times = measured(
        {BASE: [sys.executable, "-c", "pass"], **{name: [PROGRAM, *name.split()] for name in RATIOS}}, options.rounds
    )
    print(f"  {BASE:<16} {times[BASE]:6.1f} ms")
    held = [told(name, times[name], times[BASE], most) for name, most in RATIOS.items()]
    under = times["--help"] <= HELP_MS
    print(f"  proofbox --help in at most {HELP_MS:.0f} ms: {'ok' if under else 'MISSED'}")
    return 1 if options.check and not (under and all(held)) else 0


def measured(ways: dict[str, list[str]], rounds: int) -> dict[str, float]:
    """Medians in ms, one after the other in each round, so that a slow moment of the machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, argv in ways.items():
            began = time.perf_counter()
            subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
            if number:  # the first fills the caches
                times[name].append((time.perf_counter() - began) * 1000)
    return {name: median(values) for name, values in times.items()}


def told(name: str, value: float, base: float, most: float | None) -> bool:
    ratio = value / base
    verdict = "" if most is None else f" (at most {most}) {'ok' if ratio <= most else 'MISSED'}"
    print(f"  {name:<16} {value:6.1f} ms   ratio {ratio:.2f}{verdict}")
    return most is None or ratio <= most


if __name__ == "__main__":
    sys.exit(main())
