"""An attempt that was lost and replaced: how it is reported, and that the completed run stays valid."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from forging import rebuild, repin
from suites import DIES_AT_FIRST, HEAD, attempts, conduct, mission, patch_workers, plan, say, write

from proofbox.cli import main
from proofbox.core.canonical import canonical_bytes
from proofbox.errors import RunInterrupted
from proofbox.lab.run.conductor import Conductor
from proofbox.lab.run.plan import Plan

pytestmark = pytest.mark.needs("bubblewrap")

SUITE = HEAD + mission("m", write("a", "42\n"), say("done"), verify={"commands": ["grep -qx 42 a"]})
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


@pytest.mark.parametrize("error", [None, [], {}, {"code": ["X"]}, {"code": None}])
@pytest.mark.parametrize("form", ["named", "unnamed", "other"])
def test_malformed_document_of_a_torn_attempt_is_a_lost_attempt(
    made: Plan, out: Path, capsys: pytest.CaptureFixture[str], error: object, form: str
) -> None:
    run = out / made.run_id
    bundle = run / attempts(made, out)["m.1"].path
    torn = bundle / "attempt.torn.json"
    named = {**json.loads(torn.read_bytes()), "error": error}
    torn.write_bytes(canonical_bytes({"named": named, "unnamed": {"error": error}, "other": error}[form]))
    rebuild(bundle)
    repin(run)

    def answer(*words: str) -> Any:
        main([*words, "--json"])
        document = json.loads(capsys.readouterr().out)
        assert "PROOFBOX_INTERNAL" not in str(document)
        return document

    lost = answer("attempt", "list", str(run))["attempts"][0]
    assert (lost["attempt_id"], lost["infra"], lost["verified"]) == ("m.1", "ATTEMPT_EVIDENCE_INCOMPLETE", "none")
    assert answer("suite", "report", str(run))["run_id"] == made.run_id
    assert "artifact_malformed" in {each["code"] for each in answer("validate", str(run))["findings"]}
    assert answer("attempt", "explain", str(bundle))["attempt"]["infra"] == "ATTEMPT_EVIDENCE_INCOMPLETE"


def test_interrupted_run_is_named_as_the_cause(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, stop = plan(SUITE, out, tmp_path), threading.Event()
    patch_workers(monkeypatch, DIES_AT_FIRST.replace("os.kill(os.getpid(), 9)", "__import__('anyio').sleep_forever()"))
    conductor = Conductor(out, made.run_id, stop=stop)
    monkeypatch.setattr(conductor._crew, "wait", lambda: _stop_when_claimed(made, out, stop))
    with contextlib.closing(conductor), pytest.raises(RunInterrupted):
        conductor.conduct()
    conduct(made, out)
    assert main(["validate", str(out), "--strict"]) == 0
    assert "note: m.1 was lost because its run was interrupted; m.1.r1 replaced it" in capsys.readouterr().out


def _stop_when_claimed(made: Plan, out: Path, stop: threading.Event) -> int:
    if attempts(made, out)["m.1"].state == "claimed":
        stop.set()
    return 0


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
