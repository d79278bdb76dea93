"""Around plan runs: a new plan, `doctor --deep`, and `gc`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

import proofbox
from proofbox.cli import main
from proofbox.core.clock import SystemClock
from proofbox.lab.doctor import QUICK
from proofbox.lab.run.retention import RetentionRules, collect, survey
from proofbox.probes.reading import load_plan
from proofbox.probes.run import PlanRun, run_plan
from proofbox.sandbox.conformance import Report, run_conformance
from proofbox.sandbox.host.binaries import program
from proofbox.sandbox.probing.decoys import Decoys
from proofbox.sandbox.probing.leftovers import PREFIX, abandoned_decoys


@pytest.mark.needs("bubblewrap", "limits")
def test_a_new_plan_is_valid_and_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "a" / "b"
    assert main(["new", "plan", str(place), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["directory"], document["files"]) == (str(place), ["plan.toml"])
    run = proofbox.run_plan(str(place / "plan.toml"), tmp_path / "out", provider="bubblewrap")
    assert [(each.probe_id, each.profile, each.detail) for each in run.results if not each.matched] == []
    plan = load_plan(str(place / "plan.toml")).plan
    assert {each.probe_id for each in run.results} == {probe.id for probe in plan.probe}


def test_a_new_plan_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("mine")
    (tmp_path / "file").write_text("mine")
    assert main(["new", "plan", str(tmp_path)]) == 2
    assert main(["new", "plan", str(tmp_path / "file")]) == 2
    assert (tmp_path / "plan.toml").read_text() == "mine"


def test_decoys_of_a_killed_run_are_collected_and_those_of_a_running_one_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(tempfile.mkdtemp())
    monkeypatch.setattr("proofbox.sandbox.probing.leftovers.decoy_directory", lambda: place)
    with Decoys(place / f"{PREFIX}alive", program("boxprobe")):
        (place / f"{PREFIX}dead" / "outside").mkdir(parents=True)
        (place / f"{PREFIX}link").symlink_to(tmp_path)
        assert list(abandoned_decoys()) == [place / f"{PREFIX}dead"]
        items = survey(tmp_path / "absent", RetentionRules(), SystemClock().now())
        found = [item for item in items if item.kind == "decoys"]
        assert [(item.path, item.free) for item in found] == [(str(place / f"{PREFIX}dead"), True)]
        collect(found)
        assert sorted(each.name for each in place.iterdir()) == [f"{PREFIX}alive", f"{PREFIX}link"]
    (place / f"{PREFIX}link").unlink()
    place.rmdir()


def test_gc_deletes_old_plan_runs_and_keeps_promoted_ones(tmp_path: Path) -> None:
    runs = [proofbox.run_plan("off", tmp_path, only_probes=["outside.write"], channel="direct") for _ in range(4)]
    places = [run.path for run in runs if run.path is not None]
    proofbox.emit_promotion(places[1])
    proofbox.emit_promotion(places[2], format="v0.2")
    done = proofbox.collect_garbage(tmp_path, older_than=0)
    assert [Path(item.path).name for item in done.items if item.kind == "run" and item.free] == [places[0].name]
    assert [place.exists() for place in places] == [False, True, True, True]


@pytest.fixture
def without_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the conformance checks, which have their own tests."""

    def few(name: str, **options: Any) -> Report:
        return run_conformance(name, **{**options, "only": QUICK})

    monkeypatch.setattr("proofbox.lab.doctor.run_conformance", few)


@pytest.mark.usefixtures("without_checks")
def test_deep_doctor_runs_the_plan_of_a_provider(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--deep", "--provider", "off", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["providers"]["off"]["plans"]
    assert [(each["plan_id"], each["ok"], each["mismatches"]) for each in plans] == [("off", True, [])]
    assert plans[0]["probes"] > 80


@pytest.mark.usefixtures("without_checks")
def test_deep_doctor_fails_for_a_plan_that_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def other(plan: str, out: str, **_: object) -> PlanRun:
        only: dict[str, Any] = {"only_profiles": ["default"], "only_probes": ["outside.write"]}
        return run_plan("bubblewrap", out, adapter="setsid --wait {command}", **only)

    monkeypatch.setattr("proofbox.lab.doctor.run_plan", other)
    assert main(["doctor", "--deep", "--provider", "off"]) == 1
    shown = capsys.readouterr().out
    assert "off: plan off: FAILED" in shown
    assert "default/outside.write: unexpected_allow: changed on the host" in shown


def test_quick_and_deep_exclude_each_other() -> None:
    assert main(["doctor", "--quick", "--deep"]) == 2
