"""The figures of benchmark runs over time: benchmarks record them, and each nightly run is compared with earlier ones.

    .venv/bin/python benchmarks/_history.py FILE                        # exit 1 if a figure of the last run is worse
    .venv/bin/python benchmarks/_history.py FILE --table                # print the last two runs as a table
    .venv/bin/python benchmarks/_history.py FILE --page docs/speed.md   # write this table into the page

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
"""The number of earlier runs in the median."""
FEWEST = 3
"""With fewer earlier runs, the median says little, and nothing is reported."""
BEGIN, END = "<!-- The figures begin here; benchmarks/_history.py writes them. -->", "<!-- The figures end here. -->"
_PEERS = (", to ", ", faster than ")


class Figure(NamedTuple):
    """A figure of one run. `sign` is 1 if less is better, and -1 if more is better.

    The name of a ratio is `OPERATION, to PEER` or `OPERATION, faster than PEER`.
    """

    run: str
    bench: str
    name: str
    value: float
    threshold: float
    sign: int
    ours: str = ""
    theirs: str = ""
    """What the operation and its peer took, with a unit."""

    @property
    def key(self) -> tuple[str, str]:
        return self.bench, self.name


def at_most(name: str, value: float, threshold: float, *, ours: str = "", theirs: str = "") -> bool:
    """Record a figure that should be small, and return whether it is within its threshold."""
    _record(name, value, threshold, 1, ours, theirs)
    return value <= threshold


def at_least(name: str, value: float, threshold: float, *, ours: str = "", theirs: str = "") -> bool:
    """Record a figure that should be large, and return whether it reaches its threshold."""
    _record(name, value, threshold, -1, ours, theirs)
    return value >= threshold


def _record(name: str, value: float, threshold: float, sign: int, ours: str, theirs: str) -> None:
    if file := os.environ.get(FILE):
        bench = Path(sys.argv[0]).stem
        run = os.environ.get(RUN, "unnamed")
        figure = Figure(run, bench, name, round(value, 4), threshold, sign, ours, theirs)
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


def heading(runs: int) -> list[str]:
    """Return the first two lines of a table of this many runs."""
    names = [
        "benchmark",
        "operation",
        "compared with",
        "ours",
        "theirs",
        *(f"run {n + 1}" for n in range(runs)),
        "goal",
    ]
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def table(runs: list[dict[tuple[str, str], Figure]]) -> str:
    """Return the last two runs as a Markdown table. Times are from the last run."""
    shown = runs[-2:]
    lines = heading(len(shown))
    for key in {key: None for run in shown for key in run}:
        last = next(run[key] for run in reversed(shown) if key in run)
        operation, peer = next((tuple(last.name.split(by, 1)) for by in _PEERS if by in last.name), (last.name, ""))
        values = [f"{run[key].value:.2f}" if key in run else "not measured" for run in shown]
        goal = f"{'at most' if last.sign > 0 else 'at least'} {last.threshold:g}"
        cells = [f"`{last.bench}`", operation, peer, last.ours, last.theirs, *values, goal]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_page(page: Path, runs: list[dict[tuple[str, str], Figure]]) -> None:
    """Replace the table of a page, which is between the lines `BEGIN` and `END`."""
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    if not after:
        raise SystemExit(f"{page} has no place for the figures: add the lines\n{BEGIN}\n{END}")
    page.write_text(f"{before}{BEGIN}\n\n{table(runs)}\n\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--table", action="store_true", help="print the last two runs as a table")
    parser.add_argument("--page", type=Path, help="write the table of the last two runs into this page")
    options = parser.parse_args()
    runs = read(options.file)
    if options.page:
        write_page(options.page, runs)
        return 0
    if options.table:
        print(table(runs))
        return 0
    found = regressions(runs)
    print("\n".join(f"slower than before: {line}" for line in found) or "no figure became worse")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
