"""The demo shows what it says it shows, and leaves nothing behind."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from proofbox.cli import main
from proofbox.evidence.verify import verify

pytestmark = pytest.mark.needs("bubblewrap", "git")


def steps(capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    document = json.loads(capsys.readouterr().out)
    assert document["ok"], document["error"]
    return {step["what"]: step["exit_code"] for step in document["steps"]}


def test_the_whole_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept"
    assert main(["demo", "--json", "--keep", str(kept)]) == 0
    assert steps(capsys) == {
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
def test_the_same_with_the_real_codex_and_nothing_left(capsys: pytest.CaptureFixture[str]) -> None:
    before = set(Path(tempfile.gettempdir()).glob("proofbox-demo-*"))
    assert main(["demo", "--codex", "--json"]) == 0
    assert steps(capsys)["pull request"] == 0
    assert set(Path(tempfile.gettempdir()).glob("proofbox-demo-*")) == before
