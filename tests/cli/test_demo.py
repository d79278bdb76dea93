"""The demo runs all its steps and deletes its files."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from capabilities import ROOT

from proofbox.cli import main
from proofbox.evidence.verify.verifier import verify

pytestmark = pytest.mark.needs("bubblewrap", "git")


def steps(output: str) -> dict[str, int]:
    document = json.loads(output)
    assert document["ok"], document["error"]
    return {step["what"]: step["exit_code"] for step in document["steps"]}


def test_demo_runs_and_deletes_its_files(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    words = [sys.executable, "-m", "proofbox", "demo", "--json", "--keep", str(kept)]
    done = subprocess.run([ROOT / "scripts/leftovers", "--", *words], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert steps(done.stdout) == {
        "missions": 1,
        "the lie": 0,
        "verify": 0,
        "a flipped byte is found": 1,
        "key": 0,
        "promote": 0,
        "check the packet": 0,
        "a lie is not promotable": 1,
        "first export": 0,
        "plan": 0,
        "pull request": 0,
    }
    assert verify(kept / "out").ok
    assert main(["demo", "--keep", str(kept)]) == 1


@pytest.mark.needs("codex")
def test_demo_with_real_codex_deletes_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    before = set(Path(tempfile.gettempdir()).glob("proofbox-demo-*"))
    assert main(["demo", "--codex", "--json"]) == 0
    assert steps(capsys.readouterr().out)["pull request"] == 0
    assert set(Path(tempfile.gettempdir()).glob("proofbox-demo-*")) == before
