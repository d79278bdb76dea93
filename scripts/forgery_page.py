"""Writes docs/forgeries.md by trying every forgery on every command.

scripts/forgeries            write the page
scripts/forgeries --check    exit 1, with the difference, if the page is stale
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/forgeries.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/forgeries", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, and exit 1 on a difference")
    options = parser.parse_args()
    made = measured_page()
    before = PAGE.read_text() if PAGE.exists() else ""
    if not options.check:
        PAGE.write_text(made)
        return 0
    sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), made.splitlines(True), "page", "measured", n=1))
    if before != made:
        print("forgeries: docs/forgeries.md is stale; run scripts/forgeries", file=sys.stderr)
    return int(before != made)


def measured_page() -> str:
    """Try every forgery, in temporary directories."""
    sys.path[:0] = [str(ROOT / "tests" / name) for name in ("", "evidence", "delivery", "lab")]
    from forgeries import FORGERIES
    from forgery_matrix import lab, measure, page, row

    with tempfile.TemporaryDirectory(prefix="forgeries-") as place:
        for name in ("STATE", "CACHE", "CONFIG", "DATA"):
            os.environ[f"XDG_{name}_HOME"] = os.path.join(place, name)
            os.mkdir(os.environ[f"XDG_{name}_HOME"])
        with lab(Path(place) / "lab") as made:
            return page({forgery.name: row(forgery, measure(made, forgery)) for forgery in FORGERIES})


if __name__ == "__main__":
    sys.exit(main())
