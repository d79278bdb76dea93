"""Pages of docs/ that a script writes from measurements: write one, or compare it with a new measurement."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write_or_check(page: Path, description: str, measure: Callable[[], str]) -> int:
    """Run `scripts/NAME [--check]` for the page docs/NAME.md; return the exit code."""
    name = page.stem
    parser = argparse.ArgumentParser(prog=f"scripts/{name}", description=description.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, and exit 1 on a difference")
    options = parser.parse_args()
    made = measure()
    before = page.read_text() if page.exists() else ""
    if not options.check:
        page.write_text(made)
        return 0
    sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), made.splitlines(True), "page", "measured", n=1))
    if before != made:
        print(f"{name}: docs/{name}.md is stale; run scripts/{name}", file=sys.stderr)
    return int(before != made)
