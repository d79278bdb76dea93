"""The figures of benchmark runs over time: benchmarks record them, and every night compares them with earlier nights.

    .venv/bin/python benchmarks/_history.py FILE            # exit 1 if a figure of the last run became worse
    .venv/bin/python benchmarks/_history.py FILE --table    # print the last two runs as a table for docs/speed.md

Figures are recorded if PROOFBOX_BENCH_HISTORY names a file, under the name of the run in PROOFBOX_BENCH_RUN. Each is a
line of JSON. Almost all are ratios to another program in the same run, so that runs on one machine can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import NamedTuple

FILE, RUN = "PROOFBOX_BENCH_HISTORY", "PROOFBOX_BENCH_RUN"
TOLERANCE = 1.15
"""A figure is reported if it is worse than the median of earlier runs by more than this factor."""
COMPARED = 10
"""The number of earlier runs that the median is taken of."""
FEWEST = 3
"""With fewer earlier runs, the median says little, and nothing is reported."""


class Figure(NamedTuple):
    """A figure of one run. `sign` is 1 if less is better, and -1 if more is better."""

    run: str
    bench: str
    name: str
    value: float
    threshold: float
    sign: int

    @property
    def key(self) -> tuple[str, str]:
        return self.bench, self.name


def at_most(name: str, value: float, threshold: float) -> bool:
    """Record a figure of which less is better, and return whether it is within its threshold."""
    _record(name, value, threshold, 1)
    return value <= threshold


def at_least(name: str, value: float, threshold: float) -> bool:
    """Record a figure of which more is better, and return whether it reaches its threshold."""
    _record(name, value, threshold, -1)
    return value >= threshold


def _record(name: str, value: float, threshold: float, sign: int) -> None:
    if file := os.environ.get(FILE):
        bench = Path(sys.argv[0]).stem
        figure = Figure(os.environ.get(RUN, "unnamed"), bench, name, round(value, 4), threshold, sign)
        with open(file, "a") as history:
            history.write(json.dumps(figure._asdict()) + "\n")


def read(file: Path) -> list[dict[tuple[str, str], Figure]]:
    """Return the figures of each run, the oldest run first. Lines cut off by a crash are left out."""
    runs: dict[str, dict[tuple[str, str], Figure]] = {}
    for line in file.read_text().splitlines():
        try:
            figure = Figure(**json.loads(line))
        except (ValueError, TypeError):
            continue
        runs.setdefault(figure.run, {})[figure.key] = figure
    return list(runs.values())


def regressions(runs: list[dict[tuple[str, str], Figure]]) -> list[str]:
    """Return the figures of the last run that are worse than the median of the runs before it."""
    found = []
    for figure in runs[-1].values() if runs else ():
        earlier = [run[figure.key].value for run in runs[:-1] if figure.key in run][-COMPARED:]
        if len(earlier) < FEWEST:
            continue
        usual = median(earlier)
        worse = figure.value / usual if figure.sign > 0 else usual / figure.value if figure.value else float("inf")
        if worse > TOLERANCE:
            found.append(
                f"{figure.bench}: {figure.name}: {figure.value:g}, was {usual:g} (median of {len(earlier)} runs)"
            )
    return found


def table(runs: list[dict[tuple[str, str], Figure]]) -> str:
    """Return the last two runs as a Markdown table."""
    shown = runs[-2:]
    lines = ["| benchmark | figure | " + " | ".join(f"run {n}" for n, _ in enumerate(shown, 1)) + " | goal |"]
    lines.append("|---" * (len(shown) + 3) + "|")
    for key in {key: None for run in shown for key in run}:
        figure = next(run[key] for run in shown if key in run)
        values = [f"{run[key].value:.2f}" if key in run else "not measured" for run in shown]
        goal = f"{'at most' if figure.sign > 0 else 'at least'} {figure.threshold:g}"
        lines.append(f"| `{key[0]}` | {key[1]} | {' | '.join(values)} | {goal} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--table", action="store_true", help="print the last two runs as a table")
    options = parser.parse_args()
    runs = read(options.file)
    if options.table:
        print(table(runs))
        return 0
    found = regressions(runs)
    print("\n".join(f"slower than before: {line}" for line in found) or "no figure became worse")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
