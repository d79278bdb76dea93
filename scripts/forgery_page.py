"""Writes docs/forgeries.md by trying every forgery on every command.

scripts/forgeries            write the page
scripts/forgeries --check    exit 1, with the difference, if the page is stale
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from measured_pages import ROOT, write_or_check


def main() -> int:
    return write_or_check(ROOT / "docs/forgeries.md", __doc__ or "", measured_page)


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
