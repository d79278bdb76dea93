"""Documents of attempts and runs: outcomes, trees, schedules, path witnesses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proofbox import BundleWriter, load_bundle
from proofbox.core.canonical import canonical_bytes
from proofbox.core.digest import digest_of, sha256_file, sha256_hex
from proofbox.errors import UsageError
from proofbox.evidence.documents.outcome import Outcome, Verdict, parse_outcome
from proofbox.evidence.documents.schedule import ScheduleLog, read_schedule
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.documents.tree import TreeEntry, parse_tree_manifest, tree_manifest
from proofbox.evidence.documents.witnesses import PathWitness, check_witnesses, witnesses_document

# Outcomes


def test_outcome_keeps_claimed_verified_and_infra_separate() -> None:
    outcome = Outcome(Verdict("passed", "runtime_reported", "final message"), Verdict("failed", "verifier", "pytest"))
    document = outcome.as_json()
    assert parse_outcome(document) == outcome
    assert document["infra"]["result"] == "unknown", "a result that was not established is unknown"


@pytest.mark.parametrize(
    "changes",
    [
        {"verified": {"result": "passed", "by": "", "how": "tests", "detail": ""}},
        {"verified": {"result": "passed", "by": "me", "how": "", "detail": ""}},
        {"verified": {"result": "ok", "by": "me", "how": "tests", "detail": ""}},
        {"infra": {"result": "passed", "by": "me", "how": "x", "detail": ""}},
        {"verified": None},
        {"score": 1},
        {"schema_version": "proofbox.outcome/2"},
    ],
)
def test_invalid_outcomes_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        parse_outcome({**Outcome().as_json(), **changes})
    with pytest.raises(ShapeError):
        Outcome(verified=Verdict("passed")).as_json()


# Trees


def test_a_manifest_keeps_modes_digests_and_exact_paths() -> None:
    content = b"print()"
    entries = [
        TreeEntry(b"link", "120000", 8, sha256_hex(b"src/a.py")),
        TreeEntry(b"run.sh", "100755", len(content), sha256_hex(content)),
        TreeEntry(b"\xff", "100644", 0, sha256_hex(b"")),
    ]
    document = tree_manifest(reversed(entries))
    assert document["entries"][-1]["path_b64"] == "/w=="
    assert parse_tree_manifest(document) == entries
    canonical_bytes(document)


@pytest.mark.parametrize("path", ["../a", "/a", "a//b", "a/./b", "", "a\0"])
def test_paths_outside_the_tree_are_refused(path: str) -> None:
    entry = {"path": path, "mode": "100644", "size": 0, "sha256": "0" * 64}
    document = {"schema_version": "proofbox.tree_manifest/1", "tree_sha256": digest_of([entry]), "entries": [entry]}
    with pytest.raises(ShapeError):
        parse_tree_manifest(document)


def test_inconsistent_tree_manifests_are_refused() -> None:
    good = tree_manifest([TreeEntry(b"a", "100644", 0, "0" * 64), TreeEntry(b"b", "100644", 0, "0" * 64)])
    swapped = list(reversed(good["entries"]))
    for changes in (
        {"tree_sha256": "0" * 64},
        {"entries": good["entries"][:1]},
        {"entries": swapped, "tree_sha256": digest_of(swapped)},
        {"entries": [{**good["entries"][0], "mode": "040000"}]},
        {"schema_version": "x"},
    ):
        with pytest.raises(ShapeError):
            parse_tree_manifest({**good, **changes})


# Schedules


def test_a_schedule_shows_every_attempt(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path) as run, run.open_log("schedule.jsonl") as log:
        schedule = ScheduleLog(log)
        schedule.planned("a", "attempts/a")
        schedule.started("a")
        schedule.planned("b", "attempts/b", parent="a")
        with run.nested("attempts/a") as attempt:
            attempt.write_json("outcome.json", {})
        committed = sha256_file(attempt.path / "artifact_index.json")[0]
        schedule.finished("a", committed)
        schedule.close()
    read = read_schedule(load_bundle(tmp_path).read_log("schedule.jsonl"))
    assert (read["a"].started, read["a"].index_sha256) == (True, committed)
    assert (read["b"].started, read["b"].index_sha256, read["b"].parent) == (False, None, "a")


def test_a_schedule_is_written_in_its_order(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path) as run, run.open_log("schedule.jsonl") as log:
        schedule = ScheduleLog(log)
        schedule.planned("a", "attempts/a")
        wrongs: list[Callable[[], None]] = [
            lambda: schedule.planned("a", "attempts/other"),
            lambda: schedule.planned("b", "attempts/a"),
            lambda: schedule.planned("b", "../b"),
            lambda: schedule.planned("b", "attempts/b", parent="nobody"),
            lambda: schedule.started("b"),
            lambda: schedule.finished("a", "1" * 64),
        ]
        for wrong in wrongs:
            with pytest.raises(UsageError):
                wrong()
        schedule.close()
        with pytest.raises(UsageError):
            schedule.planned("late", "attempts/late")
    assert list(read_schedule(load_bundle(tmp_path).read_log("schedule.jsonl"))) == ["a"]


def test_dropped_attempt_is_detected() -> None:
    at = "2026-01-01T00:00:00.000000Z"
    planned: list[dict[str, Any]] = [
        {"kind": "planned", "attempt": n, "at": at, "path": n, "parent": None} for n in "ab"
    ]
    closed: dict[str, Any] = {"kind": "closed", "at": at, "planned": 2}
    assert len(read_schedule([*planned, closed])) == 2
    for wrong in ([planned[0], closed], planned, [closed], [*planned, closed, planned[0]], [*planned, {"kind": "x"}]):
        with pytest.raises(ShapeError):
            read_schedule(wrong)


# Path witnesses


def test_witnesses_are_stored_in_a_bundle(tmp_path: Path) -> None:
    strange = os.fsdecode(b"/\xff")
    seen = [PathWitness(strange, strange, None, strange), PathWitness("/absent", None, None, "/absent", "not found")]
    with BundleWriter.create(tmp_path / "out") as bundle:
        bundle.write_json("path_witnesses.json", witnesses_document(seen))
    document = load_bundle(tmp_path / "out").read_json("path_witnesses.json", schema="proofbox.path_witnesses/1")
    check_witnesses(document)
    assert document["witnesses"][0]["observed_path"].endswith("\\xff")
    with pytest.raises(ShapeError):
        check_witnesses({**document, "witnesses": [{}]})
