"""Bundles: writing, committing and reading; failures, refusals and nesting."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from forging import rebuild

import proofbox
from proofbox import BundleWriter, Redactor, load_bundle, open_bundle_unverified
from proofbox.core.clock import ManualClock
from proofbox.core.digest import digest_of, sha256_hex
from proofbox.core.ids import IdSource
from proofbox.errors import (
    BundleArtifactAbsent,
    BundleCorrupt,
    BundleExists,
    BundleInProgress,
    BundleNotFound,
    BundlePathRefused,
    BundleSchemaUnknown,
    BundleSecretFound,
    UsageError,
)
from proofbox.evidence.bundle import reader
from proofbox.evidence.bundle.index import Artifact, Index, parse_index
from proofbox.evidence.bundle.paths import is_artifact_path
from proofbox.evidence.verify.check import check_bundle

SECRET = "correct-horse-battery-staple"


def write(out: Path, **options: object) -> BundleWriter:
    with BundleWriter.create(out, **options) as bundle:  # type: ignore[arg-type]
        bundle.write_json("results.json", {"schema_version": "example/1", "passed": True})
        with bundle.open_log("logs/events.jsonl") as log:
            log.append({"event": "started"})
            log.extend([{"event": "went", "n": n} for n in range(3)])
        bundle.add_file("blobs/stream", io.BytesIO(b"x" * 3_000_000))
    return bundle


def reindex(directory: Path, **changes: object) -> None:
    """Rewrite the index with other members and a matching digest, like a forger or a later version."""
    path = directory / "artifact_index.json"
    document = {**json.loads(path.read_bytes()), **changes}
    document.pop("index_sha256")
    document["index_sha256"] = digest_of(document)
    path.write_bytes(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())


def test_the_example_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with proofbox.BundleWriter.create("out", expected=["results.json"]) as bundle:
        bundle.write_json("results.json", {"schema_version": "example/1", "passed": True})
        with bundle.open_log("events.jsonl") as log:
            log.append({"event": "started"})
    loaded = proofbox.load_bundle("out")
    assert loaded.read_json("results.json") == {"schema_version": "example/1", "passed": True}
    assert [entry["event"] for entry in loaded.read_log("events.jsonl")] == ["started"]


def test_the_index_states_what_the_contract_says(tmp_path: Path) -> None:
    bundle = write(tmp_path, expected=["results.json", "absent.json"])
    raw = (bundle.path / "artifact_index.json").read_bytes()
    index = json.loads(raw)
    assert set(index) == {
        *("schema_version", "run_id", "world_id", "artifacts", "missing", "status", "repairs", "index_sha256"),
    }
    assert (index["schema_version"], index["run_id"]) == ("proofbox.artifact_index/1", bundle.run_id)
    assert (index["status"], index["missing"]) == ("partial", ["absent.json"])
    files = {str(path.relative_to(bundle.path)) for path in bundle.path.rglob("*") if path.is_file()}
    assert {entry["path"] for entry in index["artifacts"]} == files - {"artifact_index.json"}
    for entry in index["artifacts"]:
        data = (bundle.path / entry["path"]).read_bytes()
        assert (entry["file_size"], entry["sha256"]) == (len(data), sha256_hex(data))
    by_path = {entry["path"]: entry for entry in index["artifacts"]}
    assert by_path["results.json"]["schema_version"] == "example/1"
    assert by_path["logs/events.jsonl"]["chain"]["count"] == 4
    status = json.loads((bundle.path / "run_status.json").read_bytes())
    assert (status["state"], status["failure"], status["dry"]) == ("complete", None, False)
    assert status["writer"]["pid"] == os.getpid()
    assert index["world_id"] == digest_of(status["world"])
    assert index.pop("index_sha256") == digest_of(index)


def test_time_and_ids_are_injected(tmp_path: Path) -> None:
    raw = []
    for place in ("a", "b"):
        clock = ManualClock()
        bundle = write(tmp_path / place, clock=clock, ids=IdSource(clock, lambda n: bytes(n)))
        raw.append((bundle.path / "artifact_index.json").read_bytes())
    assert raw[0] == raw[1]


@pytest.mark.parametrize("chained", [True, False])
def test_log_with_a_missing_line_is_not_read(tmp_path: Path, chained: bool) -> None:
    path = write(tmp_path).path
    log = path / "logs" / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([lines[0], *lines[2:]]))
    index = rebuild(path)
    if not chained:
        artifacts = {
            name: Artifact(name, entry.file_size, entry.sha256, entry.schema_version)
            for name, entry in index.artifacts.items()
        }
        rebuild(path, change=lambda index: index._replace(artifacts=artifacts))
    loaded = load_bundle(path)
    with pytest.raises(BundleCorrupt, match=r"line 2: prev is not" if chained else "not listed as a log"):
        list(loaded.read_log("logs/events.jsonl"))


def test_an_exception_commits_a_failed_bundle_that_verifies(tmp_path: Path) -> None:
    good = write(tmp_path)
    with pytest.raises(ZeroDivisionError), BundleWriter.create(tmp_path, expected=["late.json"]) as bundle:
        bundle.write_json("early.json", {"n": 1})
        log = bundle.open_log("open.jsonl")
        log.append({"n": 1})
        bundle.stage = "grade"
        1 / 0  # noqa: B018
    failed = load_bundle(bundle.path)
    assert failed.index.status == "failed"
    assert failed.index.missing == ("late.json",)
    assert failed.status.failure == {"stage": "grade", "error": "ZeroDivisionError", "message": "division by zero"}
    assert [entry["n"] for entry in failed.read_log("open.jsonl")] == [1]
    assert load_bundle(tmp_path).run_id == good.run_id, "LATEST must not move to a failed run"


def test_a_dry_run_does_not_move_latest(tmp_path: Path) -> None:
    good = write(tmp_path)
    dry = write(tmp_path, dry=True)
    assert (tmp_path / "LATEST").read_text() == good.run_id + "\n"
    assert load_bundle(dry.path).status.dry


def test_missing_artifact_makes_a_run_partial(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path) as bundle:
        bundle.mark_partial(f"attempt 3: the box died, key {'sk-ant-' + 'x1' * 10}")
    loaded = load_bundle(tmp_path)
    assert loaded.index.status == "partial"
    assert "sk-ant" not in loaded.status.partial_reasons[0]


def test_a_bundle_in_progress_is_refused(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path) as bundle:
        bundle.write_json("a.json", {})
        with pytest.raises(BundleInProgress):
            load_bundle(bundle.path)
        with pytest.raises(BundleNotFound) as refused:
            load_bundle(tmp_path)
        assert refused.value.details["runs"] == [bundle.run_id]
        seen = open_bundle_unverified(bundle.path)
        assert (seen.state, seen.index) == ("in_progress", None)
        assert seen.read_bytes("a.json") == b"{}"


def test_a_status_left_in_progress_is_refused_even_with_an_index(tmp_path: Path) -> None:
    bundle = write(tmp_path)
    status = bundle.path / "run_status.json"
    status.write_bytes(status.read_bytes().replace(b'"complete"', b'"in_progress"'))
    with pytest.raises(BundleInProgress):
        load_bundle(tmp_path)


def test_nested_bundles_are_covered_by_their_index(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path) as run:
        with run.nested("attempts/a-1", expected=["outcome.json"]) as attempt:
            attempt.write_json("outcome.json", {"n": 1})
            with attempt.nested("deep/er") as inner:
                inner.write_bytes("x", b"1")
        with pytest.raises(KeyError), run.nested("attempts/a-2") as attempt:
            attempt.write_bytes("trace", b"1")
            raise KeyError
    listed = [entry for entry in load_bundle(tmp_path).artifacts if entry.startswith("attempts/")]
    assert listed == ["attempts/a-1/artifact_index.json", "attempts/a-2/artifact_index.json"]
    loaded = load_bundle(tmp_path)
    assert loaded.index.status == "ok"
    assert loaded.nested["attempts/a-1"].index.status == "ok"
    assert loaded.nested["attempts/a-2"].index.status == "failed"
    assert loaded.read_bytes("attempts/a-1/deep/er/x") == b"1"
    (run.path / "attempts/a-1/deep/er/x").write_bytes(b"2")
    with pytest.raises(BundleCorrupt) as refused:
        load_bundle(tmp_path)
    assert [(f["code"], f["path"]) for f in refused.value.details["findings"]] == [
        ("digest_mismatch", "attempts/a-1/deep/er/x")
    ]


def test_interrupted_nested_bundle_is_listed_as_missing(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path) as run:
        died = BundleWriter.create_nested(run.path, "attempts/a-1")
        died.write_bytes("trace", b"half")
    loaded = load_bundle(tmp_path)
    assert loaded.index.status == "partial"
    assert loaded.index.missing == ("attempts/a-1/artifact_index.json",)
    assert loaded.read_bytes("attempts/a-1/trace") == b"half"


def test_open_nested_bundle_prevents_the_commit(tmp_path: Path) -> None:
    with pytest.raises(UsageError), BundleWriter.create(tmp_path) as run:
        run.nested("attempts/a-1")
    with pytest.raises(BundleInProgress):
        load_bundle(run.path)


def test_files_of_other_programs_are_covered_too(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path, expected=["made.json"]) as bundle:
        (bundle.path / "made.json").write_text('{"schema_version": "other/3"}')
        (bundle.path / "empty" / "directories").mkdir(parents=True)
    loaded = load_bundle(tmp_path)
    assert loaded.artifacts["made.json"].schema_version == "other/3"
    assert not (bundle.path / "empty").exists()


def test_file_changed_before_the_commit_is_detected(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path) as bundle:
        bundle.write_bytes("a", b"what was handed in")
        (bundle.path / "a").write_bytes(b"the new content!!!")
    with pytest.raises(BundleCorrupt):
        load_bundle(tmp_path)


def test_a_log_changed_before_the_commit_is_found_by_its_chain(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path) as bundle:
        with bundle.open_log("l.jsonl") as log:
            log.append({"n": 1})
        path = bundle.path / "l.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"n":1', b'"n":2'))
    codes = [finding.code for finding in check_bundle(str(bundle.path), chains=True).findings]
    assert codes == ["chain_wrong_head"]


def open_files() -> set[str]:
    """Return the paths of the files that this process has open."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one of the listing
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_what_replaced_a_log_is_found_and_left_closed(tmp_path: Path, kind: str) -> None:
    with BundleWriter.create(tmp_path) as bundle, bundle.open_log("l.jsonl") as log:
        log.append({"n": 1})
    path = bundle.path / "l.jsonl"
    path.unlink()
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    checked = check_bundle(str(bundle.path), chains=True)
    assert {"missing", "unreadable"} <= {finding.code for finding in checked.findings}
    with pytest.raises(OSError, match=r"l\.jsonl is not a regular file"):
        [*checked.directory.lines("l.jsonl", 100, hashlib.sha256())]
    assert str(path) not in open_files()


@pytest.mark.parametrize("kind", ["symlink", "fifo"])
def test_special_files_prevent_the_commit(tmp_path: Path, kind: str) -> None:
    with pytest.raises(BundlePathRefused), BundleWriter.create(tmp_path) as bundle:
        if kind == "symlink":
            (bundle.path / "x").symlink_to("/etc/passwd")
        else:
            os.mkfifo(bundle.path / "x")
    with pytest.raises(BundleInProgress):
        load_bundle(bundle.path)


@pytest.mark.parametrize(
    "path",
    [
        *("", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/.", "a\\b", "a\nb", "a\0b", "x" * 300, "\udcff"),
        *("artifact_index.json", "run_status.json", "sub/artifact_index.json", ".proofbox-tmp-1", "repair_log.json"),
    ],
)
def test_invalid_names_are_refused(tmp_path: Path, path: str) -> None:
    with BundleWriter.create(tmp_path) as bundle:
        with pytest.raises(BundlePathRefused):
            bundle.write_json(path, {})
        with pytest.raises(BundlePathRefused):
            bundle.open_log(path)
        with pytest.raises(BundlePathRefused):
            bundle.nested(path)
    assert list(load_bundle(tmp_path).artifacts) == ["run_status.json"]


@pytest.mark.parametrize("path", ["a", "a/b.c/d", "...", "é/ü", "a b", ".hidden", "-x"])
def test_valid_names_are_accepted(path: str) -> None:
    assert is_artifact_path(path)


@pytest.mark.parametrize("run_id", ["", "..", "a/b", "LATEST", ".runtime.lock", "x" * 200, "a\n"])
def test_invalid_run_ids_are_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(BundlePathRefused):
        BundleWriter.create(tmp_path, run_id=run_id)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    first = write(tmp_path, run_id="one")
    with pytest.raises(BundleExists):
        BundleWriter.create(tmp_path, run_id="one")
    assert load_bundle(first.path).run_id == "one"
    with BundleWriter.create(tmp_path) as bundle:
        bundle.write_json("a.json", 1)
        with pytest.raises(BundleExists):
            bundle.write_json("a.json", 2)
        with pytest.raises(BundleExists):
            bundle.open_log("a.json")
    assert load_bundle(tmp_path).read_json("a.json") == 1


def test_failing_source_leaves_no_partial_artifact(tmp_path: Path) -> None:
    class Broken(io.RawIOBase):
        reads = 0

        def read(self, size: int = -1, /) -> bytes:
            self.reads += 1
            if self.reads > 1:
                raise OSError("the disk is gone")
            return b"half"

    with BundleWriter.create(tmp_path) as bundle:
        with pytest.raises(OSError, match="the disk is gone"):
            bundle.add_file("deep/blob", Broken())  # type: ignore[arg-type]
        bundle.write_bytes("deep/blob", b"whole")
    assert load_bundle(tmp_path).read_bytes("deep/blob") == b"whole"


@pytest.mark.parametrize("end", [BundleWriter.commit, BundleWriter.abort, lambda bundle: bundle.fail(KeyError())])
def test_closed_bundle_refuses_writes_and_a_second_end(tmp_path: Path, end: Callable[[BundleWriter], None]) -> None:
    bundle = BundleWriter.create(tmp_path)
    end(bundle)
    for refused in (lambda: bundle.write_json("a.json", 1), bundle.commit, bundle.__enter__):
        with pytest.raises(UsageError, match="closed"):
            refused()


def test_aborted_bundle_stays_in_progress_and_can_be_taken_over(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path, run_id="r") as bundle:
        log = bundle.open_log("l.jsonl")
        log.append({"n": 1})
        bundle.abort()
    with pytest.raises(BundleInProgress):
        load_bundle(tmp_path / "r")
    with pytest.raises(BundleInProgress, match="still alive"):
        BundleWriter.take_over(tmp_path, "r")
    BundleWriter.take_over(tmp_path, "r", released=True).commit()
    assert "l.jsonl" in load_bundle(tmp_path).artifacts


def test_threads_share_a_writer(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path) as bundle, bundle.open_log("l.jsonl") as log:

        def work(number: int) -> None:
            for n in range(20):
                bundle.write_json(f"{number}/{n}.json", {"n": n})
                log.append({"by": number, "n": n})

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    loaded = load_bundle(tmp_path)
    assert len(loaded.artifacts) == 162
    assert len(list(loaded.read_log("l.jsonl"))) == 160


# Secrets


@pytest.mark.parametrize("way", ["json", "stream", "foreign", "base64"])
def test_a_known_secret_prevents_the_commit(tmp_path: Path, way: str) -> None:
    with (
        pytest.raises(BundleSecretFound) as refused,
        BundleWriter.create(tmp_path, redactor=Redactor([SECRET])) as bundle,
    ):
        match way:
            case "json":
                bundle.write_json("x", {"env": {"KEY": SECRET}})
            case "stream":  # across the seam of two reads
                bundle.add_file("x", io.BytesIO(b"." * ((1 << 20) - 5) + SECRET.encode() + b"."))
            case "base64":
                import base64

                bundle.write_bytes("x", base64.b64encode(b"user:" + SECRET.encode()))
            case _:
                (bundle.path / "x").write_text(SECRET)
    assert refused.value.details["paths"] == ["x"]
    assert SECRET not in str(refused.value.as_dict())
    with pytest.raises(BundleInProgress):
        load_bundle(bundle.path)


def test_logs_are_redacted_and_commit(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path, redactor=Redactor([SECRET])) as bundle, bundle.open_log("l.jsonl") as log:
        log.append({"argv": ["curl", "-u", f"me:{SECRET}"]})
    assert SECRET.encode() not in (bundle.path / "l.jsonl").read_bytes()
    assert load_bundle(tmp_path).index.status == "ok"


def test_failure_message_with_a_secret_is_redacted(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as raised, BundleWriter.create(tmp_path, redactor=Redactor([SECRET])) as bundle:
        raise RuntimeError(f"login with {SECRET} failed")
    assert load_bundle(bundle.path).status.failure == {
        "stage": "run",
        "error": "RuntimeError",
        "message": "login with [redacted] failed",
    }
    with pytest.raises(RuntimeError) as raised, BundleWriter.create(tmp_path, redactor=Redactor([SECRET])) as bundle:
        bundle.write_bytes("x", SECRET.encode())
        raise RuntimeError("broken")
    assert "not committed" in raised.value.__notes__[0]


# Reading strictly


def test_inconsistent_index_with_a_valid_digest_is_refused(tmp_path: Path) -> None:
    bundle = write(tmp_path)
    lies: list[dict[str, object]] = [{"status": "failed"}, {"run_id": "x"}, {"world_id": "0" * 64}, {"artifacts": []}]
    for changes in lies:
        before = (bundle.path / "artifact_index.json").read_bytes()
        reindex(bundle.path, **changes)
        with pytest.raises(BundleCorrupt):
            load_bundle(tmp_path)
        (bundle.path / "artifact_index.json").write_bytes(before)
    assert load_bundle(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        {"path": "../../etc/passwd"},
        {"path": "/etc/passwd"},
        {"path": "a/../../b"},
        {"path": 7},
        {"file_size": -1},
        {"file_size": True},
        {"sha256": "AB" * 32},
        {"more": 1},
        {"chain": None},
        {"chain": {"count": 1}},
        {"schema_version": None},
    ],
)
def test_hostile_entries_are_refused(tmp_path: Path, entry: dict[str, object]) -> None:
    bundle = write(tmp_path)
    good = {"path": "zz", "file_size": 0, "sha256": sha256_hex(b"")}
    entries = json.loads((bundle.path / "artifact_index.json").read_bytes())["artifacts"]
    reindex(bundle.path, artifacts=sorted([*entries, {**good, **entry}], key=lambda e: str(e["path"])))
    with pytest.raises(BundleCorrupt) as refused:
        load_bundle(tmp_path)
    assert refused.value.details["findings"][0]["code"] == "index_malformed"


def test_future_schema_versions_are_refused(tmp_path: Path) -> None:
    bundle = write(tmp_path)
    reindex(bundle.path, schema_version="proofbox.artifact_index/2", novelty=True)
    with pytest.raises(BundleSchemaUnknown, match="artifact_index/2"):
        load_bundle(tmp_path)


def test_reading_checks_again(tmp_path: Path) -> None:
    bundle = write(tmp_path)
    loaded = load_bundle(tmp_path)
    (bundle.path / "results.json").write_text('{"schema_version":"example/1","passed":true }')
    with pytest.raises(BundleCorrupt):
        loaded.read_json("results.json")
    with pytest.raises(BundleArtifactAbsent):
        loaded.read_json("nothing.json")
    with pytest.raises(BundleArtifactAbsent):
        loaded.read_bytes("../LATEST")


def test_reading_a_document_of_another_schema_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    loaded = load_bundle(tmp_path)
    assert loaded.read_json("results.json", schema="example/1")
    with pytest.raises(BundleSchemaUnknown):
        loaded.read_json("results.json", schema="example/2")


@pytest.mark.parametrize("content", ["../elsewhere", "", "absent", "a/b", "x" * 5000, "run\0"])
def test_a_latest_that_names_no_run_is_refused(tmp_path: Path, content: str) -> None:
    write(tmp_path)
    (tmp_path / "LATEST").write_text(content)
    with pytest.raises(BundleNotFound):
        load_bundle(tmp_path)


def test_a_latest_that_is_a_link_is_refused(tmp_path: Path) -> None:
    bundle = write(tmp_path / "out")
    (tmp_path / "name").write_text(bundle.run_id)
    (tmp_path / "out" / "LATEST").unlink()
    (tmp_path / "out" / "LATEST").symlink_to(tmp_path / "name")
    with pytest.raises(BundleNotFound):
        load_bundle(tmp_path / "out")


def test_unverified_bundle_lists_differences(tmp_path: Path) -> None:
    bundle = write(tmp_path, expected=["never.json"])
    (bundle.path / "results.json").write_text("changed")
    (bundle.path / "blobs" / "stream").unlink()
    (bundle.path / "stray").write_text("")
    os.symlink("/etc/passwd", bundle.path / "link")
    seen = open_bundle_unverified(tmp_path)
    assert seen.missing == ("blobs/stream", "never.json")
    assert seen.digest_mismatches == ("results.json",)
    assert seen.unlisted == ("blobs", "stray")
    assert "symlink" in {finding.code for finding in seen.findings}
    assert not hasattr(seen, "read_json")


def test_findings_are_bounded(tmp_path: Path) -> None:
    bundle = write(tmp_path)
    for number in range(1200):
        (bundle.path / f"stray-{number}").touch()
    (bundle.path / os.fsdecode(b"\xff\xfe")).touch()
    findings = open_bundle_unverified(tmp_path).findings
    assert len(findings) == 1001
    assert findings[-1].code == "more"
    for path in bundle.path.glob("stray-*"):
        path.unlink()
    (finding,) = open_bundle_unverified(tmp_path).findings
    assert (finding.path, finding.path_b64) == ("\\xff\\xfe", "//4=")


def test_index_round_trips_through_bytes(tmp_path: Path) -> None:
    bundle = write(tmp_path, expected=["absent"])
    data = (bundle.path / "artifact_index.json").read_bytes()
    index = parse_index(data)
    assert isinstance(index, Index)
    assert index.to_bytes() == data


def test_a_run_with_many_attempts_is_checked_in_one_pass(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path) as run:
        for number in range(150):
            with run.nested(f"attempts/{number}") as attempt:
                attempt.write_bytes("x", b"1")
    loaded = load_bundle(tmp_path)
    assert len(loaded.nested) == 150
    strange = run.path / "attempts" / "7" / os.fsdecode(b"\xff")
    strange.touch()
    (finding,) = open_bundle_unverified(tmp_path).findings
    assert (finding.code, finding.path, finding.path_b64) == ("unlisted", "attempts/7/\\xff", "YXR0ZW1wdHMvNy//")


def test_bundle_in_progress_lists_what_is_missing(tmp_path: Path) -> None:
    bundle = BundleWriter.create(tmp_path, expected=["made.json", "late.json", "later.json"])
    bundle.write_json("made.json", 1)
    assert open_bundle_unverified(bundle.path).missing == ("late.json", "later.json")
    bundle.abort()


def test_unverified_bundle_does_not_read_more_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BundleWriter.create(tmp_path) as bundle:
        bundle.write_bytes("large", b"x" * 5000)
        bundle.write_bytes("small", b"x")
    monkeypatch.setattr(reader, "MAX_UNVERIFIED_BYTES", 4000)
    found = open_bundle_unverified(bundle.path).findings
    assert [(each.code, each.path) for each in found] == [("not_checked", "large")]
