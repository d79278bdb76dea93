"""A run is verified against its schedule: it contains exactly the finished attempts, unchanged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from forging import rebuild, rewrite_log

from proofbox import BundleWriter, load_bundle, verify
from proofbox.cli import main
from proofbox.core.canonical import canonical_bytes
from proofbox.core.digest import sha256_file
from proofbox.errors import BundleCorrupt
from proofbox.evidence.bundle.index import Artifact
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.documents.outcome import Outcome, Verdict
from proofbox.evidence.documents.schedule import ScheduleLog
from proofbox.evidence.verify.check import check_bundle


def outcome(verified: str) -> Outcome:
    return Outcome(
        claimed=Verdict("passed", "runtime_reported", "its last message"),
        verified=Verdict(verified, "verifier", "ran the tests"),
        infra=Verdict("ok", "supervisor", "nothing broke"),
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two attempts: the first passed, the second failed."""
    with BundleWriter.create(tmp_path / "out") as bundle:
        log = ScheduleLog(bundle.open_log("schedule.jsonl"))
        for name, verified in (("good", "passed"), ("bad", "failed")):
            log.planned(name, f"attempts/{name}")
            log.started(name)
            with bundle.nested(f"attempts/{name}") as attempt:
                attempt.write_json("outcome.json", outcome(verified).as_json())
            log.finished(name, sha256_file(attempt.path / INDEX)[0])
        log.close()
    assert verify(bundle.path).ok
    return bundle.path


def drop(run: Path) -> None:
    shutil.rmtree(run / "attempts" / "bad")
    rebuild(run)


def relabel(run: Path) -> None:
    """Turn the failed attempt into one that passed, and rebuild both indexes."""
    (run / "attempts" / "bad" / "outcome.json").write_bytes(canonical_bytes(outcome("passed").as_json()))
    rebuild(run / "attempts" / "bad")
    rebuild(run)


def swap(run: Path) -> None:
    """Put a copy of the attempt that passed in the place of the one that failed."""
    shutil.rmtree(run / "attempts" / "bad")
    shutil.copytree(run / "attempts" / "good", run / "attempts" / "bad")
    rebuild(run)


def add(run: Path) -> None:
    shutil.copytree(run / "attempts" / "good", run / "attempts" / "better")
    rebuild(run)


def cut_schedule(run: Path) -> None:
    rewrite_log(run, "schedule.jsonl", list(load_bundle(run).read_log("schedule.jsonl"))[:-1])


def unchain(run: Path) -> None:
    """Change a time in the schedule and list the result, without a new chain."""
    schedule = run / "schedule.jsonl"
    first, rest = schedule.read_bytes().split(b"\n", 1)
    year = json.loads(first)["at"][:4].encode()
    schedule.write_bytes(first.replace(b'"at":"' + year, b'"at":"2000') + b"\n" + rest)
    rebuild(run)


def unanchor(run: Path) -> None:
    """Make the schedule an ordinary file, as if it were not a log."""

    def without_chain(index):  # type: ignore[no-untyped-def]
        artifacts = {
            path: Artifact(path, entry.file_size, entry.sha256, entry.schema_version)
            for path, entry in index.artifacts.items()
        }
        return index._replace(artifacts=artifacts)

    rebuild(run, change=without_chain)


FORGERIES = {
    drop: ("attempt_absent", "attempts/bad"),
    relabel: ("attempt_replaced", "attempts/bad"),
    swap: ("attempt_replaced", "attempts/bad"),
    add: ("attempt_unplanned", "attempts/better"),
    cut_schedule: ("schedule_malformed", "schedule.jsonl"),
    unanchor: ("schedule_malformed", "schedule.jsonl"),
}


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_run_that_differs_from_its_schedule_is_refused_everywhere(
    run: Path, forge: object, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(run)  # type: ignore[operator]
    assert FORGERIES[forge] in [(found.code, found.path) for found in verify(run).findings]  # type: ignore[index]
    with pytest.raises(BundleCorrupt):
        load_bundle(run)
    for words in (["verify"], ["validate", "--strict"], ["report", "--strict"], ["bundle", "reindex", "--strict"]):
        assert main([*words, str(run)]) == 1, words
    capsys.readouterr()


def test_schedule_with_a_broken_chain_is_refused_by_the_commands_that_check_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unchain(run)
    assert ("chain_wrong_prev", "schedule.jsonl") in [(found.code, found.path) for found in verify(run).findings]
    assert load_bundle(run).schedule is not None  # its entries are intact
    assert not load_bundle(run).schedule_intact
    assert main(["validate", str(run), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert ("artifact_malformed", "schedule.jsonl") in [(each["code"], each["path"]) for each in findings]


def test_chain_of_the_schedule_is_verified_when_it_is_read(run: Path) -> None:
    assert load_bundle(run).schedule_intact
    unanchor(run)
    assert not check_bundle(str(run)).schedule_intact


def test_unfinished_attempt_is_not_a_finding(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path / "out") as bundle:
        log = ScheduleLog(bundle.open_log("schedule.jsonl"))
        log.planned("lost", "attempts/lost")
        log.started("lost")
        log.close()
        bundle.mark_partial("an attempt was lost")
    assert verify(bundle.path).ok


def test_a_run_that_failed_may_have_a_schedule_that_was_cut_short(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), BundleWriter.create(tmp_path / "out") as bundle:
        log = ScheduleLog(bundle.open_log("schedule.jsonl"))
        log.planned("a", "attempts/a")
        log.started("a")
        raise RuntimeError
    assert verify(bundle.path).ok
