"""Reindexing: strict mode changes nothing; a repair is recorded permanently and never improves the status."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from proofbox import BundleWriter, load_bundle, verify
from proofbox.cli import main
from proofbox.core.documents import STORED
from proofbox.errors import BundleInProgress, BundleRepairRefused
from proofbox.evidence.bundle.repair import reindex_repair, reindex_strict


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with BundleWriter.create(tmp_path / "out", expected=["a.json", "never.json"]) as bundle:
        bundle.write_json("a.json", {"schema_version": "example/1"})
        bundle.write_bytes("b", b"1")
        with bundle.open_log("l.jsonl") as log:
            log.extend([{"n": 1}, {"n": 2}])
    return bundle.path


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def repair_log(run: Path) -> list[Any]:
    document = json.loads((run / "repair_log.json").read_bytes())
    assert document["schema_version"] == "proofbox.repair_log/1"
    return list(document["repairs"])


def test_strict_changes_nothing(run: Path) -> None:
    assert reindex_strict(run).ok
    (run / "b").write_bytes(b"2")
    before = contents(run)
    assert [finding.code for finding in reindex_strict(run).findings] == ["digest_mismatch"]
    assert contents(run) == before


def test_a_repair_records_before_and_after(run: Path) -> None:
    old = load_bundle(run).index
    (run / "a.json").write_text('{"schema_version":"example/2"}')
    (run / "b").unlink()
    (run / "c").write_bytes(b"new")
    index, changes = reindex_repair(run)
    assert [(change["path"], bool(change["before"]), bool(change["after"])) for change in changes] == [
        ("a.json", True, True),
        ("b", True, False),
        ("c", False, True),
    ]
    assert changes[0]["before"] == old.artifacts["a.json"].as_json()
    assert changes[0]["after"]["schema_version"] == "example/2"
    (entry,) = repair_log(run)
    assert entry["changes"] == changes
    assert {finding["code"] for finding in entry["findings"]} == {"digest_mismatch", "missing", "unlisted"}
    loaded = load_bundle(run)
    assert (loaded.index._replace(digest=""), loaded.repaired, loaded.index.repairs) == (index, True, 1)
    assert loaded.index.missing == ("b", "never.json"), "missing artifacts stay missing, and removed ones are added"
    assert loaded.index.status == "partial"
    assert verify(run).notes == ["the bundle was repaired after its commit (1×)"]


STRANGE: dict[str, bytes] = {
    "no JSON": b"{",
    "not an object": b"[]",
    "without repairs": b'{"schema_version":"proofbox.repair_log/1"}',
    "malformed repairs": b'{"repairs":[{"note":"x"}],"schema_version":"proofbox.repair_log/1"}',
    "nested": b"[" * 5000,
    "bytes": b"\xff\x1b[31m" * 2000,
    "empty": b"",
}


@pytest.mark.parametrize("name", STRANGE)
def test_unreadable_repair_log_is_recorded_as_lost(run: Path, name: str) -> None:
    validator = jsonschema.Draft202012Validator(STORED["proofbox.repair_log/1"].shape)
    (run / "b").write_bytes(b"2")
    reindex_repair(run)
    (run / "repair_log.json").write_bytes(STRANGE[name])
    assert reindex_repair(run)[0].repairs == 2
    (run / "b").write_bytes(b"3")
    assert reindex_repair(run)[0].repairs == 3
    document = json.loads((run / "repair_log.json").read_bytes())
    validator.validate(document)
    assert len(document["repairs"]) == 2
    (lost,) = document["lost"]
    assert lost["size"] == len(STRANGE[name])
    assert lost["sha256"] in ("", hashlib.sha256(STRANGE[name]).hexdigest())
    assert "\x1b" not in lost["detail"]
    assert verify(run).ok


def test_repair_log_matches_its_schema(run: Path) -> None:
    (run / "b").write_bytes(b"2")
    reindex_repair(run)
    document = json.loads((run / "repair_log.json").read_bytes())
    jsonschema.Draft202012Validator(STORED["proofbox.repair_log/1"].shape).validate(document)
    assert "lost" not in document


def test_repair_count_is_permanent(run: Path) -> None:
    for number in range(3):
        (run / "b").write_bytes(str(number + 5).encode())
        assert reindex_repair(run)[0].repairs == number + 1
    assert len(repair_log(run)) == 3
    # Removing the log, or putting an older index in place of it, does not reset the count.
    (run / "repair_log.json").unlink()
    index, _ = reindex_repair(run)
    assert index.repairs == 4
    assert "repair_log.json" not in index.missing


def test_a_good_bundle_is_left_alone(run: Path) -> None:
    before = contents(run)
    index, changes = reindex_repair(run)
    assert (index.repairs, changes) == (0, [])
    assert contents(run) == before


def test_a_failed_run_stays_failed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broken"), BundleWriter.create(tmp_path / "out") as bundle:
        bundle.write_bytes("b", b"1")
        raise ValueError("broken")
    (bundle.path / "b").write_bytes(b"2")
    reindex_repair(bundle.path)
    assert load_bundle(bundle.path).index.status == "failed"


def test_damaged_index_is_rebuilt_as_partial(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path / "out") as bundle:
        bundle.write_bytes("b", b"1")
    index = bundle.path / "artifact_index.json"
    index.write_bytes(index.read_bytes()[:-5])
    reindex_repair(bundle.path)
    loaded = load_bundle(bundle.path)
    assert (loaded.index.status, loaded.index.repairs) == ("partial", 1)
    assert repair_log(bundle.path)[0]["index_before"]["readable"] is False


def test_truncated_log_still_fails_after_a_repair(run: Path) -> None:
    log = run / "l.jsonl"
    log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    reindex_repair(run)
    assert {finding.code for finding in verify(run).findings} == {"chain_wrong_count", "chain_wrong_head"}


def test_a_bundle_in_progress_is_refused(tmp_path: Path) -> None:
    bundle = BundleWriter.create(tmp_path / "out")
    bundle.write_bytes("b", b"1")
    before = contents(bundle.path)
    with pytest.raises(BundleInProgress):
        reindex_repair(bundle.path)
    assert contents(bundle.path) == before


@pytest.mark.parametrize("damage", ["link", "fifo", "status", "name"])
def test_repair_that_needs_invented_data_is_refused(run: Path, damage: str) -> None:
    match damage:
        case "link":
            (run / "x").symlink_to("b")
        case "fifo":
            os.mkfifo(run / "x")
        case "status":
            (run / "run_status.json").write_text("{}")
        case _:
            (run / "a\\b").touch()
    before = (run / "artifact_index.json").read_bytes()
    with pytest.raises(BundleRepairRefused):
        reindex_repair(run)
    assert (run / "artifact_index.json").read_bytes() == before


def test_interrupted_repair_can_be_repaired(run: Path) -> None:
    (run / "b").write_bytes(b"2")
    (run / "repair_log.json").write_text('{"schema_version":"proofbox.repair_log/1","repairs":[]}')
    (run / ".proofbox-tmp-0123456789abcdef").write_text("half an index")
    reindex_repair(run)
    assert load_bundle(run).index.repairs == 1


def test_the_command(run: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["bundle", "reindex", str(run)]) == 2
    assert main(["bundle", "reindex", str(run), "--strict", "--repair"]) == 2
    assert main(["bundle", "reindex", str(run), "--strict"]) == 0
    (run / "b").write_bytes(b"2")
    capfdbinary.readouterr()
    assert main(["bundle", "reindex", str(run), "--strict", "--json"]) == 1
    output = json.loads(capfdbinary.readouterr().out)
    assert (output["ok"], output["error"]["code"], output["findings"][0]["path"]) == (False, "BUNDLE_CORRUPT", "b")
    assert main(["bundle", "reindex", str(run), "--repair", "--json"]) == 0
    output = json.loads(capfdbinary.readouterr().out)
    assert (output["repairs"], [change["path"] for change in output["changes"]]) == (1, ["b"])
    assert main(["bundle", "reindex", str(run), "--repair"]) == 0
    assert b"nothing to repair" in capfdbinary.readouterr().out
