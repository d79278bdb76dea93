"""Inconsistent evidence is neither valid nor promoted, even if its digests were recomputed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forging import rebuild, repin
from suites import HEAD, conduct, mission, plan, say, write

import proofbox
from proofbox import verify
from proofbox.cli import main
from proofbox.core.canonical import canonical_bytes
from proofbox.errors import EvidenceIncomplete
from proofbox.evidence.attest.keys import new_key

pytestmark = pytest.mark.needs("bubblewrap")

ANSWER = {"commands": ["grep -qx 42 a"]}
SUITE = (
    HEAD
    + mission("good", write("a", "42\n"), say("done"), verify=ANSWER)
    + mission("bad", write("a", "41\n"), say("done"), verify=ANSWER)
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("promoting")
    return conduct(plan(SUITE, place / "out", place), place / "out")


def edit(path: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_bytes(canonical_bytes(document))


def edit_in_attempt(run: Path, name: str, change: Callable[[Any], object]) -> None:
    edit(run / "attempts" / "bad.1.e1" / name, change)
    rebuild(run / "attempts" / "bad.1.e1")


def verdict_in_outcome(run: Path) -> None:
    edit_in_attempt(run, "outcome.json", lambda it: it["verified"].update(result="passed"))


def verdict_in_report_and_outcome(run: Path) -> None:
    verdict_in_outcome(run)
    edit_in_attempt(run, "attempt.report.json", lambda it: it.update(verified="passed"))


def another_mission_at_its_path(run: Path) -> None:
    shutil.rmtree(run / "attempts" / "bad.1.e1")
    shutil.copytree(run / "attempts" / "good.1.e1", run / "attempts" / "bad.1.e1")


def relabelled_parent(run: Path) -> None:
    edit_in_attempt(run, "attempt.json", lambda it: it.update(parent="good.1"))


def edited_suite(run: Path) -> None:
    source = run / "suite.toml"
    source.write_text(source.read_text().replace("grep -qx 42 a", "true"))


def false_total(run: Path) -> None:
    edit(run / "summary.json", lambda it: it["totals"].update(claimed_success=0))


def false_mission_count(run: Path) -> None:
    edit(run / "summary.json", lambda it: it["missions"][1].update(claimed_but_failed=0))


FORGERIES = (
    verdict_in_outcome,
    verdict_in_report_and_outcome,
    another_mission_at_its_path,
    relabelled_parent,
    edited_suite,
    false_total,
    false_mission_count,
)


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_inconsistent_run_is_not_promoted(
    ran: Path, tmp_path: Path, forge: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "out" / ran.name
    shutil.copytree(ran, run)
    forge(run)
    repin(run)
    assert verify(run).ok, "all digests were recomputed"
    new_key(tmp_path / "key")
    assert main(["validate", str(run), "--strict"]) == 1
    assert main(["report", str(run), "--strict"]) == 1
    capsys.readouterr()
    words = ["promotion", "emit", str(run), "--sign", str(tmp_path / "key"), "--json"]
    assert main(words) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "ATTEMPT_EVIDENCE_INCOMPLETE"
    for bundle in (run, proofbox.load_bundle(run)):
        with pytest.raises(EvidenceIncomplete):
            proofbox.emit_promotion(bundle, sign=tmp_path / "key")
    assert not list((tmp_path / "out").glob("*.promotion.json"))


def test_consistent_run_is_promoted(ran: Path, tmp_path: Path) -> None:
    run = tmp_path / "out" / ran.name
    shutil.copytree(ran, run)
    repin(run)
    assert main(["promotion", "emit", str(run), "--require-promotable"]) == 0
    assert main(["promotion", "emit", str(run / "attempts" / "good.1.e1"), "--require-promotable"]) == 0


@pytest.mark.parametrize("replicates", [None, 2], ids=["suite", "flag"])
def test_replicates_of_the_suite_or_the_flag_are_complete(tmp_path: Path, replicates: int | None) -> None:
    suite = HEAD + "".join(
        mission(id, write("a", "42\n"), say("done"), verify=ANSWER, replicates=count)
        for id, count in (("one", 1), ("three", 3))
    )
    run = conduct(plan(suite, tmp_path / "out", tmp_path, replicates=replicates), tmp_path / "out")
    assert main(["validate", str(run), "--strict"]) == 0


def test_attempt_is_promoted_only_as_its_run_records_it(ran: Path, tmp_path: Path) -> None:
    run = tmp_path / "out" / ran.name
    shutil.copytree(ran, run)
    shutil.rmtree(run / "attempts" / "bad.1.e1")
    shutil.copytree(run / "attempts" / "good.1.e1", run / "attempts" / "bad.1.e1")
    repin(run)
    assert main(["validate", str(run / "attempts" / "bad.1.e1"), "--strict"]) == 0, "alone it is consistent"
    assert main(["promotion", "emit", str(run / "attempts" / "bad.1.e1")]) == 1
    shutil.copytree(run / "attempts" / "bad.1.e1", tmp_path / "copy")
    assert main(["promotion", "emit", str(tmp_path / "copy")]) == 0


def test_damage_of_another_attempt_does_not_concern_this_one(ran: Path, tmp_path: Path) -> None:
    run = tmp_path / "out" / ran.name
    shutil.copytree(ran, run)
    (run / "attempts" / "bad.1.e1" / "outcome.json").write_text("{}")
    assert main(["promotion", "emit", str(run / "attempts" / "good.1.e1"), "--require-promotable"]) == 0
    (run / "summary.json").write_text("{}")
    assert main(["promotion", "emit", str(run / "attempts" / "good.1.e1"), "--out", str(tmp_path / "packet")]) == 1
