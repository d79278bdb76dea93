"""Every source file named in code or documentation exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r"`([\w/.-]+\.(?:py|c))`")

# File names that do not belong to this project.
OTHERS = {"anyio.py", "json.py", "sitecustomize.py", "usercustomize.py"}


def test_every_file_named_in_prose_exists() -> None:
    files = [path for place in ("src", "tests", "scripts", "benchmarks") for path in (ROOT / place).rglob("*")]
    there = {f"/{path.relative_to(ROOT)}" for path in [*files, *ROOT.glob("*.py")]}
    prose = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    named = [(path, name) for path in prose for name in NAMED.findall(path.read_text())]
    assert len(named) > 50, "nothing was read"
    gone = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, name in named
        if name not in OTHERS and not any(each.endswith(f"/{name}") for each in there)
    ]
    assert not gone, "\n".join(gone)
