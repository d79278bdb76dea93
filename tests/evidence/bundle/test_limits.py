"""Artifacts may have any size: reads into memory are bounded, and larger documents are reported."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proofbox import BundleWriter, load_bundle, verify
from proofbox.core import canonical
from proofbox.core.canonical import CanonicalError, canonical_bytes, parse_strict
from proofbox.errors import BundlePathRefused, BundleTooLarge
from proofbox.evidence.bundle import index as indexes
from proofbox.evidence.bundle.index import Artifact, index_of, parse_index
from proofbox.evidence.bundle.paths import MAX_INDEX_BYTES, MAX_JSON_BYTES
from proofbox.evidence.documents import outcome
from proofbox.evidence.documents.outcome import Outcome, Verdict
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.promotion import policies
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.promotion.policy import MAX_RULES, check_policy

IN_A_GIGABYTE = """
import json, resource, sys
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.verify.verifier import verify
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
found = [finding.code for finding in verify(sys.argv[1]).findings]
try:
    reasons = emit_promotion(sys.argv[1]).reasons
except Exception as error:
    reasons = [type(error).__name__]
print(json.dumps({"found": found, "reasons": list(reasons)}))
"""


def in_a_gigabyte(bundle: Path) -> dict[str, list[str]]:
    done = subprocess.run([sys.executable, "-c", IN_A_GIGABYTE, bundle], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, list[str]] = json.loads(done.stdout)
    return answer


def sparse(path: Path, size: int) -> Path:
    with open(path, "wb") as stream:
        os.truncate(stream.fileno(), size)
    return path


def test_documents_of_any_size_are_covered_and_not_read_whole(tmp_path: Path) -> None:
    huge = sparse(tmp_path / "huge", MAX_JSON_BYTES + 1)
    with BundleWriter.create(tmp_path / "out") as bundle:
        for path in ("outcome.json", "tree_manifest.json"):
            os.link(huge, bundle.path / path)
    output = in_a_gigabyte(bundle.path)
    assert output == {"found": [], "reasons": ["outcome_not_verified", "infra_failed", "tree_unknown"]}
    packet = json.loads(Path(f"{bundle.path}.promotion.json").read_bytes())
    observed = packet["promotability"]["gating_inputs"]["tree_unknown"]["observed"]
    assert observed == {"unknown": "BUNDLE_TOO_LARGE"}
    with pytest.raises(BundleTooLarge):
        load_bundle(bundle.path).read_json("outcome.json")


NESTED = b"[" * 60 + b"]" * 60 + b","


@pytest.mark.parametrize(
    ("place", "shape"),
    [
        *(("artifact_index.json", shape) for shape in (b"[],", b'{"":0},', b"9999,", NESTED)),
        *((place, NESTED) for place in ("run_status.json", "outcome.json", "log.jsonl")),
    ],
)
def test_small_bytes_that_are_large_values_are_refused(tmp_path: Path, place: str, shape: bytes) -> None:
    size = 3 << 24 if place == "artifact_index.json" else (1 << 24) - 300
    bomb = b'{"a":[' + shape * (size // len(shape)) + b"0]}"
    with BundleWriter.create(tmp_path / "out") as bundle:
        bundle.write_bytes("present.json", b"{}")
        if place == "log.jsonl":
            bundle.open_log(place).append({"n": 1})
        elif place == "outcome.json":
            bundle.write_json(place, Outcome().as_json())
    (bundle.path / place).write_bytes(bomb + b"\n")
    assert in_a_gigabyte(bundle.path)["found"]


def test_index_over_the_limit_has_a_separate_finding(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path / "out") as bundle:
        bundle.write_bytes("a", b"a")
    sparse(bundle.path / "artifact_index.json", MAX_INDEX_BYTES + 1)
    assert "too_large" in [finding.code for finding in verify(bundle.path).findings]


def test_an_index_of_very_many_files_is_read() -> None:
    entries = [Artifact(f"attempts/a-{n:06}/trace/events-{n:040}.jsonl", n, "0" * 64) for n in range(100_000)]
    data = indexes.bounded_bytes(index_of("r", "0" * 64, "ok", entries, ()))
    assert len(data) < MAX_INDEX_BYTES * 2 // 3
    assert len(parse_index(data).artifacts) == 100_000


@pytest.mark.parametrize("limit", ["bytes", "values"])
def test_index_over_the_read_limit_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    if limit == "bytes":
        monkeypatch.setattr(indexes, "MAX_INDEX_BYTES", 1000)
    with pytest.raises(BundleTooLarge, match="too many files"), BundleWriter.create(tmp_path / "out") as bundle:
        for n in range(20):
            bundle.write_bytes(str(n), b"")
        if limit == "values":
            monkeypatch.setattr(canonical, "MAX_VALUES", 80)
    monkeypatch.undo()
    assert json.loads((bundle.path / "run_status.json").read_bytes())["state"] == "in_progress"


def test_writer_and_reader_have_the_same_limit_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "MAX_VALUES", 10)
    assert parse_strict(canonical_bytes([0] * 10)) == [0] * 10
    for refused in (lambda: canonical_bytes([0] * 11), lambda: parse_strict(b"[" + b"0," * 10 + b"0]")):
        with pytest.raises(CanonicalError, match="more than 10 values"):
            refused()


def test_the_largest_outcome_fits() -> None:
    worst = Verdict("passed", "\x01" * 1000, "\x01" * 1000, "\x01" * (1 << 16))
    largest = Outcome(worst, worst, Verdict("ok", worst.by, worst.how, worst.detail))
    assert len(canonical_bytes(largest.as_json())) <= outcome.MAX_BYTES


def test_the_rules_of_a_policy_are_counted() -> None:
    more = [{"reason": f"r{n}", "check": "not_dry"} for n in range(MAX_RULES)]
    with pytest.raises(ShapeError, match=f"more than {MAX_RULES}"):
        check_policy({**policies.ATTEMPT, "rules": [*policies.ATTEMPT["rules"], *more]})


def test_present_means_listed_and_whole(tmp_path: Path) -> None:
    rules = [{"reason": "broken", "check": "integrity"}]
    rules += [{"reason": path, "check": "present", "artifact": path} for path in ("a", "b", "c", "in/d")]
    mine = {**policies.ATTEMPT, "name": "mine", "acceptable": [], "rules": rules}
    (tmp_path / "policy.json").write_text(json.dumps(mine))
    with BundleWriter.create(tmp_path / "out") as bundle:
        bundle.write_bytes("a", b"a")
        bundle.write_bytes("b", b"b")
        with bundle.nested("in") as inner:
            inner.write_bytes("d", b"d")
    assert emit_promotion(bundle.path, policy=str(tmp_path / "policy.json")).reasons == ("c",)
    (bundle.path / "b").write_bytes(b"B")
    (inner.path / "d").unlink()
    done = emit_promotion(bundle.path, policy=str(tmp_path / "policy.json"), output=tmp_path / "p")
    assert done.reasons == ("broken", "b", "c", "in/d")


def test_a_directory_deeper_than_any_path_is_a_finding(deep_path: Path) -> None:
    with BundleWriter.create(deep_path / "out") as bundle:
        bundle.write_bytes("a", b"a")
    inside = os.open(bundle.path, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("d" * 200, dir_fd=inside)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=inside)
        os.close(inside)
        inside = below
    os.close(inside)
    result = verify(bundle.path)
    assert [(finding.code, finding.path.count("/")) for finding in result.findings] == [("unreadable", 5)]
    with pytest.raises(BundlePathRefused, match="path is too long"), BundleWriter.create(deep_path / "out") as other:
        os.rename(bundle.path / ("d" * 200), other.path / "d")


def test_unreadable_directory_is_a_finding(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path / "out") as bundle:
        bundle.write_bytes("closed/a", b"a")
    real = os.open

    def closed(path: Any, *args: Any, **options: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", closed)
        found = {finding.code for finding in verify(bundle.path).findings}
    assert found == {"unreadable", "missing"}


@pytest.mark.parametrize("name", ["run_status.json", "app.tar", "events.jsonl"])
def test_a_file_of_another_size_is_not_read(tmp_path: Path, name: str) -> None:
    with BundleWriter.create(tmp_path / "out") as bundle:
        bundle.write_bytes("app.tar", b"app")
        with bundle.open_log("events.jsonl") as log:
            log.append({"event": "started"})
    os.truncate(bundle.path / name, 1 << 40)
    with reading_at_most(1 << 20):
        found = {(finding.code, finding.path) for finding in verify(bundle.path).findings}
    assert ("size_mismatch", name) in found


def test_a_status_that_the_index_lists_as_huge_is_not_read(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path / "out") as bundle:
        bundle.write_bytes("app.tar", b"app")
    index = parse_index((bundle.path / "artifact_index.json").read_bytes())
    listed = index.artifacts["run_status.json"]
    huge = Artifact(listed.path, 1 << 40, listed.sha256, listed.schema_version)
    forged = index._replace(artifacts={**index.artifacts, "run_status.json": huge})
    (bundle.path / "artifact_index.json").write_bytes(forged.to_bytes())
    os.truncate(bundle.path / "run_status.json", 1 << 40)
    with reading_at_most(1 << 20):
        found = {(finding.code, finding.path) for finding in verify(bundle.path).findings}
    assert ("too_large", "run_status.json") in found


def test_growing_file_is_read_only_up_to_its_listed_size(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path / "out") as bundle:
        bundle.write_bytes("app.tar", b"app")
    grown = (bundle.path / "app.tar").stat().st_ino

    def grow(fd: int) -> None:
        if os.fstat(fd).st_ino == grown:
            with open(bundle.path / "app.tar", "ab") as stream:
                stream.write(bytes(1 << 19))

    with reading_at_most(1 << 20, before=grow):
        found = [(finding.code, finding.path) for finding in verify(bundle.path).findings]
    assert found == [("size_mismatch", "app.tar")]


@contextlib.contextmanager
def reading_at_most(limit: int, *, before: Callable[[int], None] = lambda fd: None) -> Iterator[None]:
    """Fail if more than `limit` bytes are read with read and pread, which hashing uses."""
    total = 0

    def counting(real: Callable[..., bytes]) -> Callable[..., bytes]:
        def counted(fd: int, *span: int) -> bytes:
            nonlocal total
            before(fd)
            data = real(fd, *span)
            total += len(data)
            assert total <= limit, "more is read than the index lists"
            return data

        return counted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "read", counting(os.read))
        patch.setattr(os, "pread", counting(os.pread))
        yield
