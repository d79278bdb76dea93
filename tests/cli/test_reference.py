"""The reference pages match the code, and stale pages are detected."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/reference/cli.md", "docs/reference/errors.md", "docs/reference/sdk.md", "SCHEMAS.md")


def reference(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = root / "scripts/reference.py"
    return subprocess.run([sys.executable, script, *words], capture_output=True, text=True, timeout=110)


def test_committed_pages_are_current() -> None:
    done = reference(ROOT, "--check")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr


def test_stale_page_is_reported_and_rewritten(tmp_path: Path) -> None:
    for name in PAGES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "scripts").mkdir()
    for script in ROOT.glob("scripts/reference*.py"):
        (tmp_path / "scripts" / script.name).write_bytes(script.read_bytes())
    errors = tmp_path / "docs/reference/errors.md"
    errors.write_text(errors.read_text().replace("SANDBOX_LOST", "SANDBOX_GONE"))
    (tmp_path / "SCHEMAS.md").unlink()

    checked = reference(tmp_path, "--check")
    assert checked.returncode == 1
    assert "-| `SANDBOX_GONE`" in checked.stdout
    assert "+| `SANDBOX_LOST`" in checked.stdout
    assert "SCHEMAS.md" in checked.stderr

    assert reference(tmp_path).returncode == 0
    assert all((tmp_path / name).read_bytes() == (ROOT / name).read_bytes() for name in PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_pages_name_their_generator_and_have_valid_links(name: str) -> None:
    text = (ROOT / name).read_text()
    assert text.startswith("<!-- Made by scripts/reference from the code.")
    anchors = {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        page, _, anchor = target.partition("#")
        if not page:
            assert anchor in anchors, target
        else:
            assert (ROOT / name).parent.joinpath(page).resolve().is_file(), target


def test_array_of_a_union_is_parenthesized() -> None:
    (row,) = re.findall(r"^\| `commands` \| (.*) \| Run in this order", (ROOT / "SCHEMAS.md").read_text(), re.MULTILINE)
    assert row == "(text or text[] or [VerifyCommand](#verifycommand))[]"


@pytest.mark.parametrize("name", ["docs/reference/sdk.md", "SCHEMAS.md"])
def test_every_member_has_a_meaning(name: str) -> None:
    assert not re.findall(r"^\| `.*\| +\|$", (ROOT / name).read_text(), re.MULTILINE)
