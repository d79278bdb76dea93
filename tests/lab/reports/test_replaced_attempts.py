"""An attempt that was lost and replaced: how it is reported, and that the completed run stays valid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from suites import HEAD, attempts, conduct, mission, patch_workers, plan, say, write

from proofbox.cli import main
from proofbox.lab.run.conductor import Conductor
from proofbox.lab.run.plan import Plan

pytestmark = pytest.mark.needs("bubblewrap")

SUITE = HEAD + mission("m", write("a", "42\n"), say("done"), verify={"commands": ["grep -qx 42 a"]})
DIES_AT_FIRST = """
real = worker.run_attempt
worker.run_attempt = lambda each, *rest: real(each, *rest) if each.parent else os.kill(os.getpid(), 9)
"""
NOTE = "m.1 was lost because its worker died; m.1.r1 replaced it"


@pytest.fixture
def made(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    made = plan(SUITE, out, tmp_path)
    patch_workers(monkeypatch, DIES_AT_FIRST)
    conduct(made, out)
    return made


@pytest.mark.parametrize("command", ["validate", "report"])
def test_completed_run_is_valid_and_lists_replaced_attempts(
    made: Plan, out: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, str(out), "--strict"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"note: {NOTE}"
    assert main([command, str(out), "--strict", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["findings"], document["notes"]) == ([], [NOTE])
    torn = out / made.run_id / attempts(made, out)["m.1"].path / "attempt.torn.json"
    torn.write_text(torn.read_text().replace("died", "left"))
    assert main([command, str(out), "--strict"]) != 0


def test_replacement_is_explained(made: Plan, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attempt", "explain", "m.1", "--run", str(out / made.run_id)]) == 0
    output = capsys.readouterr().out
    assert output.startswith("m.1: no verdict, because the infrastructure failed (ATTEMPT_WORKER_LOST)\n")
    assert "\nm.1.r1 replaced it.\n" in output
    assert "resume" not in output


def test_lost_result_is_incomplete(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = plan(SUITE, out, tmp_path, retries=0)
    patch_workers(monkeypatch, "worker.run_attempt = lambda *_: os.kill(os.getpid(), 9)")
    conduct(made, out)
    assert main(["validate", str(out)]) == 0
    assert main(["validate", str(out), "--strict"]) == 1
    assert "artifact_missing" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["validate", "report"])
def test_newer_incomplete_run_is_noted(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    good = plan(SUITE, out, tmp_path)
    conduct(good, out)
    assert main([command, str(out)]) == 0
    assert "note:" not in capsys.readouterr().out

    def stop(_: Conductor) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Conductor, "_work", stop)
    newer = plan(SUITE, out, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        conduct(newer, out)
    assert main([command, str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["run_id"] == good.run_id
    named, note = document["notes"]
    assert named == f"LATEST names {good.run_id}"
    assert note.startswith(f"the newer run {newer.run_id} is ")
