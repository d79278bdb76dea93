"""Closing an attempt whose worker died: its bundle counts only if it is intact, complete and consistent."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, conduct, document, mission, plan, results, say, write

from proofbox.cli import main
from proofbox.core.canonical import canonical_bytes
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.evidence.documents.outcome import Outcome, Verdict
from proofbox.evidence.documents.schedule import ScheduleLog
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.reports.validation import validate
from proofbox.lab.run.ledger import Attempt, Ended, Ledger
from proofbox.lab.run.plan import Plan, ledger_path

pytestmark = pytest.mark.needs("bubblewrap")

SUITE = HEAD + mission(
    "answer", write("answer.txt", "42\n"), say("done"), verify={"commands": ["grep -qx 42 answer.txt"]}
)
REPORT = {
    "schema_version": "proofbox.attempt_report/2",
    "attempt_id": "answer.1",
    "mission_id": "answer",
    "strategy": "scripted",
    "claimed": "success",
    "verified": "passed",
    "infra": None,
    "reason": "completed",
    "retry_after": None,
}
PASSED = Outcome(Verdict("passed", "a", "b"), Verdict("passed", "a", "b"), Verdict("ok", "a", "b")).as_json()
LOST = ("none", "none", "ATTEMPT_WORKER_LOST", "worker_lost")
GOOD = ("success", "passed", None, "completed")


def planned(out: Path) -> Plan:
    return plan(SUITE, out, out.parent)


def claimed(made: Plan, out: Path) -> Attempt:
    """Return an attempt claimed by a worker that never updates it again."""
    with Ledger(ledger_path(out, made.run_id)) as ledger:
        attempt = ledger.claim("gone", ledger.begin_epoch(), 60.0)
    assert attempt is not None
    BundleWriter.create(out, run_id=made.run_id)
    disown(out / made.run_id)
    return attempt


def disown(bundle: Path) -> None:
    """Make the writer of a bundle look dead."""
    status = bundle / "run_status.json"
    status.write_bytes(status.read_bytes().replace(b'"pid":%d' % os.getpid(), b'"pid":1'))


def bundle_of(made: Plan, out: Path, attempt: Attempt, run_id: str | None = None) -> BundleWriter:
    return BundleWriter.create_nested(out / made.run_id, attempt.path, run_id=run_id or f"{made.run_id}.{attempt.id}")


def says_passed(bundle: BundleWriter, **changes: Any) -> None:
    bundle.write_json("outcome.json", PASSED)
    bundle.write_json("attempt.report.json", {**REPORT, **changes})


def test_failed_bundle_never_counts_as_passed(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = planned(out)
    attempt = claimed(made, out)
    with contextlib.suppress(RecursionError), bundle_of(made, out, attempt) as bundle:
        says_passed(bundle)
        raise RecursionError
    run = conduct(made, out)
    assert results(made, out) == {"answer.1": LOST, "answer.1.r1": GOOD}
    assert attempts(made, out)["answer.1.r1"].parent == "answer.1"
    assert verify(run).ok
    assert load_bundle(run).index.status == "partial"
    emitted = emit_promotion(run)
    assert not emitted.promotable
    assert {"run_incomplete", "attempt_incomplete", "outcome_not_verified", "infra_failed"} == set(emitted.reasons)
    assert main(["validate", str(run), "--strict", "--json"]) == 1
    codes = {each["code"] for each in json.loads(capsys.readouterr().out)["findings"]}
    assert "attempt_failed" in codes
    assert main(["report", str(run), "--json"]) == 0
    assert [each["attempt_id"] for each in json.loads(capsys.readouterr().out)["reports"]] == ["answer.1.r1"]


@pytest.mark.parametrize("member", ["pid_namespace", "host"])
def test_run_is_resumed_from_another_container(out: Path, member: str) -> None:
    """The worker's process cannot be checked from there, but the conductor's lock shows that it is the only one."""
    made = planned(out)
    attempt = claimed(made, out)
    bundle_of(made, out, attempt)
    for path in (out / made.run_id, out / made.run_id / attempt.path):
        status = path / "run_status.json"
        written = json.loads(status.read_bytes())
        written["writer"][member] = 1 if member == "pid_namespace" else "0" * 64
        status.write_bytes(canonical_bytes(written))
    conduct(made, out)
    assert results(made, out) == {"answer.1": LOST, "answer.1.r1": GOOD}


def wrong_name(bundle: BundleWriter) -> None:
    says_passed(bundle, attempt_id="another.1")


def contradicts(bundle: BundleWriter) -> None:
    bundle.write_json("outcome.json", Outcome(infra=Verdict("failed", "a", "b")).as_json())
    bundle.write_json("attempt.report.json", REPORT)


def no_report(bundle: BundleWriter) -> None:
    bundle.write_json("outcome.json", PASSED)


def no_verdict(bundle: BundleWriter) -> None:
    says_passed(bundle, verified="splendid")


def taken_over(bundle: BundleWriter) -> None:
    """Simulate a conductor that died before it updated the ledger."""
    says_passed(bundle)
    bundle.write_json("attempt.torn.json", {"schema_version": "proofbox.torn_attempt/1"})
    bundle.mark_partial("its worker died")


@pytest.mark.parametrize("fill", [wrong_name, contradicts, no_report, no_verdict, taken_over])
def test_inconsistent_committed_bundle_is_an_infra_failure(out: Path, fill: Callable[[BundleWriter], None]) -> None:
    made = planned(out)
    attempt = claimed(made, out)
    with bundle_of(made, out, attempt) as bundle:
        fill(bundle)
    run = conduct(made, out)
    assert results(made, out) == {"answer.1": LOST, "answer.1.r1": GOOD}
    assert verify(run).ok
    assert not emit_promotion(run).promotable


def test_bundle_of_another_attempt_does_not_count(out: Path) -> None:
    made = planned(out)
    attempt = claimed(made, out)
    with bundle_of(made, out, attempt, run_id="run-other.answer.1") as bundle:
        says_passed(bundle)
    conduct(made, out)
    assert results(made, out) == {"answer.1": LOST, "answer.1.r1": GOOD}


@pytest.mark.parametrize("name", ["attempt.report.json", "outcome.json", "run_status.json", "artifact_index.json"])
@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"{"), lambda path: path.unlink()])
def test_damaged_bundle_fails_the_attempt_not_the_run(out: Path, name: str, damage: Callable[[Path], None]) -> None:
    made = planned(out)
    attempt = claimed(made, out)
    with bundle_of(made, out, attempt) as bundle:
        says_passed(bundle)
    disown(bundle.path)
    damage(out / made.run_id / attempt.path / name)
    run = conduct(made, out)
    assert results(made, out) == {"answer.1": LOST, "answer.1.r1": GOOD}
    assert json.loads((run / "artifact_index.json").read_bytes())["status"] == "partial"
    assert not emit_promotion(run).promotable


DIES = """
import os, sys
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.lab.attempt import artifacts
from proofbox.lab.run import worker
def die(*_):
    os._exit(9)
%s
worker.main(sys.argv[1:])
"""


def work_until_death(made: Plan, out: Path, patch: str) -> None:
    """Run a worker that dies at a given point."""
    with Ledger(ledger_path(out, made.run_id)) as ledger:
        epoch = ledger.begin_epoch()
    (out / made.run_id).mkdir()
    argv = [sys.executable, "-c", DIES % patch, str(out), made.run_id, "w", str(epoch), "1", str(os.getpid())]
    assert subprocess.run(argv, stdout=subprocess.DEVNULL, check=False).returncode == 9
    (out / made.run_id).rename(out / "kept")
    BundleWriter.create(out, run_id=made.run_id)
    disown(out / made.run_id)
    (out / "kept/attempts").rename(out / made.run_id / "attempts")
    (out / "kept").rmdir()


def test_bundle_counts_if_its_worker_died_after_the_commit(out: Path) -> None:
    made = planned(out)
    work_until_death(made, out, "worker.Ledger.end = die")
    run = conduct(made, out)
    assert results(made, out) == {"answer.1": GOOD}
    assert emit_promotion(run).promotable
    assert validate(load_bundle(run), strict=True) == []


def test_uncommitted_verdict_of_a_dead_worker_is_kept_but_does_not_count(out: Path) -> None:
    made = planned(out)
    work_until_death(made, out, "BundleWriter._commit = die")
    run = conduct(made, out)
    assert results(made, out) == {"answer.1": LOST, "answer.1.r1": GOOD}
    torn = attempts(made, out)["answer.1"]
    assert document(out, made, torn, "outcome.json")["infra"]["result"] == "failed"
    assert document(out, made, torn, "unfinished/attempt.report.json")["verified"] == "passed"
    assert not (run / torn.path / "attempt.report.json").exists()
    assert verify(run).ok
    assert validate(load_bundle(run), strict=False) == []


def test_ledger_result_without_bundle_does_not_complete_a_run(out: Path) -> None:
    """Only results that the bundles confirm are counted, whatever the ledger says."""
    made = planned(out)
    attempt = claimed(made, out)
    with contextlib.suppress(RecursionError), bundle_of(made, out, attempt) as bundle:
        says_passed(bundle)
        raise RecursionError
    with Ledger(ledger_path(out, made.run_id)) as ledger:
        digest = load_bundle(bundle.path).index_sha256
        ledger.end(attempt, ended(index_sha256=digest))
    run = conduct(made, out)
    summary = json.loads((run / "summary.json").read_bytes())
    assert (summary["status"], summary["totals"]["passed"]) == ("partial", 0)
    assert load_bundle(run).index.status == "partial"
    assert not emit_promotion(run).promotable
    assert main(["suite", "report", str(out)]) == 1


def test_summary_that_counts_a_failed_attempt_as_passed_is_a_finding(out: Path) -> None:
    with BundleWriter.create(out, run_id="run-1") as run:
        with contextlib.suppress(RecursionError), run.nested("attempts/a") as inner:
            says_passed(inner)
            raise RecursionError
        schedule = ScheduleLog(run.open_log("schedule.jsonl"))
        schedule.planned("a", "attempts/a")
        schedule.started("a")
        schedule.finished("a", load_bundle(inner.path).index_sha256)
        schedule.close()
        run.write_json("summary.json", {"schema_version": "proofbox.run_summary/1", "totals": {"passed": 1}})
    found = {(each.code, each.path) for each in validate(load_bundle(out / "run-1"), strict=False)}
    assert ("contradiction", "summary.json") in found
    assert ("attempt_failed", "attempts/a/artifact_index.json") in found
    assert not emit_promotion(out / "run-1").promotable


def ended(index_sha256: str) -> Ended:
    return Ended(
        claimed="success",
        verified="passed",
        infra=None,
        reason="completed",
        strategy="scripted",
        index_sha256=index_sha256,
    )
