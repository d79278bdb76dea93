"""The cost of a search, compared with ripgrep on the same files in the same run.

    scripts/bench search [--files N] [--rounds N] [--check]

`search_text` reads the first files in order, through directory handles. If they have few matches, it finds candidates
with ripgrep, and reads and matches each of them again. After a few slow searches, ripgrep looks for candidates in a
packed copy of the text; the search that makes the copy is measured once, without a threshold, as is the fallback in
Python. The ratio is of medians over interleaved rounds, against `rg --line-number` over the same files
(`--no-ignore --hidden`), once the copy is made. With --check the run fails when a ratio is past its threshold.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from _history import at_most

from proofbox.errors import SearchTimedOut
from proofbox.workspace.search.engines import PythonEngine
from proofbox.workspace.search.indexed import PATIENCE
from proofbox.workspace.tools.environments.files import FileTools
from proofbox.workspace.tools.environments.handles import DirectoryTree

MOST = {"common literal": 0.1, "regex": 0.1}
RARE = 0.5
"""The largest allowed ratios: of patterns that the first files match often enough, and of others, for which the times
of all files are compared and their packed text is searched.
"""
IN_DIRECTORY = 20
PATTERNS = {
    "rare literal": ("needle-in-haystack", False),
    "common literal": ("word7", False),
    "no match": ("not-there-at-all", False),
    "regex": (r"word1\d\d word2\d\d word[3-5]\d\d", False),
    "ignore case": ("NEEDLE-IN-HAYSTACK", True),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000, metavar="N")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds", metavar="N")
    parser.add_argument("--check", action="store_true", help="exit 1 when a ratio is past its threshold")
    options = parser.parse_args()
    if shutil.which("rg") is None:
        print("ripgrep is not installed: there is nothing to compare with", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory(prefix="proofbox-bench-") as place:
        root = Path(place) / "files"
        make_files(root, options.files)
        os.sync()
        print(f"{options.files} files, {options.rounds} rounds")
        held = compare(root, options.rounds)
    return 1 if options.check and not all(held) else 0


def compare(root: Path, rounds: int) -> list[bool]:
    """Every pattern against ripgrep over `root`: whether each was within the threshold."""
    tree = DirectoryTree(root)
    env = FileTools(tree)
    held = []
    try:
        for number in range(PATIENCE + 1):
            began = time.perf_counter()
            env.search_text(PATTERNS["rare literal"][0])
            took = (time.perf_counter() - began) * 1000
            print(f"  {'makes the copy' if number == PATIENCE else 'without a copy':<16} {took:7.0f} ms (once)")
        for name, (pattern, ignore_case) in PATTERNS.items():
            rg = ["rg", "--line-number", "--no-ignore", "--hidden", *(["--ignore-case"] if ignore_case else [])]

            def ripgrep(command: tuple[str, ...] = (*rg, "--", pattern, ".")) -> None:
                subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=False)

            def ours(pattern: str = pattern, ignore_case: bool = ignore_case) -> None:
                env.search_text(pattern, ignore_case=ignore_case)

            ratio, ms = interleaved(ours, ripgrep, rounds)
            times = {"ours": f"{ms:.0f} ms", "theirs": f"{ms / ratio:.0f} ms"}
            held.append(at_most(f"search, {name}, to rg", ratio, MOST.get(name, RARE), **times))
            print(f"  {name:<16} {ms:7.0f} ms, {ratio:.2f} times rg {'' if held[-1] else '  PAST THE THRESHOLD'}")
        slow = FileTools(tree, engine=PythonEngine())
        began = time.perf_counter()
        try:
            slow.search_text(PATTERNS["rare literal"][0])
            print(f"  in Python alone  {(time.perf_counter() - began) * 1000:7.0f} ms (rare literal, once)")
        except SearchTimedOut as error:
            print(f"  in Python alone  {error.message}")
    finally:
        env.close()
        tree.close()
    return held


def interleaved(ours: Callable[[], None], theirs: Callable[[], None], rounds: int) -> tuple[float, float]:
    """The ratio of medians, and our median in milliseconds."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        pair = list(zip((ours, theirs), times, strict=True))
        # In turns: if memory is short, the second program finds in the cache what the first one read.
        for call, found in pair if number % 2 else reversed(pair):
            began = time.perf_counter()
            call()
            if number:  # the first warms the cache
                found.append(time.perf_counter() - began)
    return median(times[0]) / median(times[1]), median(times[0]) * 1000


def make_files(root: Path, count: int) -> None:
    chance = random.Random(count)  # noqa: S311
    words = [f"word{number}" for number in range(1000)]
    for number in range(count):
        folder = root / f"d{number // 2000}" / f"e{number // IN_DIRECTORY}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [" ".join(chance.choices(words, k=10)) for _ in range(50)]
        if number % (count // 20 or 1) == 7:
            lines.append("a needle-in-haystack here")
        (folder / f"f{number}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
