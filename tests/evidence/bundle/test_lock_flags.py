"""`--lock-mode` and `--lock-timeout` of the `bundle` commands that write to an output directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proofbox.cli import main
from proofbox.evidence.bundle.lock import RunLock
from proofbox.evidence.bundle.writer import BundleWriter


@pytest.fixture
def pushed(out: Path, tmp_path: Path) -> Path:
    """An output directory whose only run is also in a store."""
    with BundleWriter.create(out) as bundle:
        bundle.write_json("summary.json", {"schema_version": "x/1"})
    assert main(["bundle", "push", str(out), str(tmp_path / "store")]) == 0
    return out


@pytest.mark.parametrize("flags", [["--lock-mode", "fail"], ["--lock-mode", "wait", "--lock-timeout", "0.05"]])
@pytest.mark.parametrize("command", ["reindex", "pull"])
def test_a_locked_output_directory_is_refused_in_time(
    command: str, flags: list[str], pushed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pulled = tmp_path / "pulled"
    pulled.mkdir()
    line = (
        ["reindex", str(pushed), "--repair"] if command == "reindex" else ["pull", str(tmp_path / "store"), str(pulled)]
    )
    capsys.readouterr()
    with RunLock(pushed if command == "reindex" else pulled, mode="fail", purpose="test"):
        assert main(["bundle", *line, *flags, "--json"]) != 0
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "BUNDLE_LOCKED"
    assert main(["bundle", *line, *flags]) == 0


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "soon"])
def test_a_wait_that_would_never_end_is_refused(seconds: str, pushed: Path) -> None:
    assert main(["bundle", "reindex", str(pushed), "--repair", "--lock-timeout", seconds]) == 2
