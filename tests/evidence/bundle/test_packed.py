"""A packed bundle is read and verified like its directory."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from proofbox import BundleWriter, emit_promotion, load_bundle, open_bundle_unverified, verify
from proofbox.errors import BundleCorrupt, BundleError, BundleExists, BundleInProgress, BundleNotFound, UsageError
from proofbox.evidence.bundle import packed
from proofbox.evidence.bundle.packed import pack_bundle
from proofbox.evidence.bundle.repair import reindex_repair, reindex_strict

VERIFIER = Path(__file__).parents[3] / "src/proofbox/evidence/verify"
LOG = "parts/a/events.jsonl"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpacked bundles stay until the process ends; those of a test are removed with its files."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A committed run with a nested bundle, a log, an empty file and one larger than a block."""
    with BundleWriter.create(tmp_path / "out", run_id="run-1") as bundle:
        bundle.write_json("runtime_results.json", {"schema_version": "example/1", "passed": True})
        bundle.write_bytes("empty.txt", b"")
        bundle.write_bytes("large.bin", bytes(range(256)) * 1000)
        with bundle.nested("parts/a", run_id="run-1.a") as inner, inner.open_log("events.jsonl") as log:
            log.append({"event": "started"})
    return bundle.path


def changed(file: Path, change: Callable[[tarfile.TarInfo, bytes], tuple[tarfile.TarInfo, bytes]]) -> Path:
    """Write a copy of an archive with changed members."""
    made = file.with_name(f"changed-{file.name}")
    with tarfile.open(file) as old, tarfile.open(made, "w:gz") as new:
        for member in old:
            content = old.extractfile(member)
            assert content is not None
            about, data = change(member, content.read())
            about.size = len(data)
            new.addfile(about, io.BytesIO(data))
    return made


def test_packed_bundle_has_the_same_content_and_digests(run: Path) -> None:
    file = pack_bundle(run).file
    assert file == run.with_name("run-1.bundle.tar.gz")
    before, packed = load_bundle(run), load_bundle(file)
    assert (packed.index, packed.index_sha256) == (before.index, before.index_sha256)
    for path in before.artifacts:
        assert packed.read_bytes(path) == before.read_bytes(path)
    assert list(packed.read_log(LOG)) == list(before.read_log(LOG))
    found = verify(file)
    assert (found.findings, found.run_id, found.bundle) == ([], "run-1", str(file))
    assert found.checked == verify(run).checked
    assert reindex_strict(file).ok
    assert open_bundle_unverified(file).findings == ()


def test_packing_twice_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    files = [pack_bundle(run, tmp_path / f"{name}.bundle.tar.gz") for name in "ab"]
    assert files[0].file.read_bytes() == files[1].file.read_bytes()


def test_packed_bundle_of_a_packed_bundle_is_the_same(run: Path, tmp_path: Path) -> None:
    file = pack_bundle(run).file
    assert pack_bundle(file, tmp_path / "again.bundle.tar.gz").file.read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("runtime_results.json", "digest_mismatch"),
        ("parts/a/events.jsonl", "digest_mismatch"),
        ("artifact_index.json", "index_malformed"),
    ],
)
def test_changed_byte_in_an_archive_is_found(run: Path, name: str, code: str) -> None:
    def flip(member: tarfile.TarInfo, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
        return member, data[:-3] + bytes([data[-3] ^ 1]) + data[-2:] if member.name == f"run-1/{name}" else data

    file = changed(pack_bundle(run).file, flip)
    assert code in {each.code for each in verify(file).findings}
    with pytest.raises(BundleCorrupt):
        load_bundle(file)


def test_unlisted_member_is_a_finding(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "more.bundle.tar.gz"
    (run / "more.txt").write_text("more")
    with tarfile.open(file, "w:gz") as archive:
        archive.add(run, "run-1")
    assert [(each.code, each.path) for each in verify(file).findings] == [("unlisted", "more.txt")]


@pytest.mark.parametrize("name", ["../run-1/x", "/tmp/proofbox-escaped", "run-2/x"])
def test_archive_with_anything_beside_the_run_is_refused(run: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / "odd.bundle.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        archive.add(run, "run-1")
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises((BundleCorrupt, BundleNotFound)):
        load_bundle(file)
    assert not Path("/tmp/proofbox-escaped").exists()


@pytest.mark.parametrize("data", [b"", b"not an archive", gzip.compress(b"x" * 2000)], ids=["empty", "other", "no-tar"])
def test_malformed_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "torn.bundle.tar.gz"
    file.write_bytes(data)
    with pytest.raises(BundleError):
        verify(file)


def test_small_archive_with_huge_files_is_neither_written_nor_unpacked(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bomb.bundle.tar.gz"
    (run / "zeros").write_bytes(bytes(1 << 20))
    with tarfile.open(file, "w:gz") as archive:
        archive.add(run, "run-1")
    monkeypatch.setattr(packed, "SMALL", 1000)
    monkeypatch.setattr(packed, "MAX_RATIO", 10)
    with pytest.raises(BundleCorrupt, match="cannot be unpacked"):
        load_bundle(file)
    (run / "zeros").unlink()
    monkeypatch.setattr(packed, "MAX_RATIO", 0.1)
    with pytest.raises(UsageError, match="so much from so little"):
        pack_bundle(run)
    assert not list(run.parent.glob("run-1*.gz"))


def test_packet_is_valid_with_the_packed_bundle_alone(run: Path) -> None:
    packet = emit_promotion(run).path
    file = pack_bundle(run).file
    shutil.rmtree(run)
    for found in (verify(packet), verify(file), verify(packet, bundle=str(file))):
        assert (found.findings, found.packet) == ([], str(packet))


def test_packed_bundle_is_never_changed(run: Path) -> None:
    file = pack_bundle(run).file
    for change in (reindex_repair, emit_promotion):
        with pytest.raises(UsageError, match="can't be changed"):
            change(file)


def test_only_whole_committed_runs_are_packed_and_nothing_is_replaced(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="inside another bundle"):
        pack_bundle(run / "parts/a")
    with pytest.raises(UsageError, match="does not end with"):
        pack_bundle(run, tmp_path / "run.tar")
    pack_bundle(run)
    with pytest.raises(BundleExists):
        pack_bundle(run)
    going = BundleWriter.create(tmp_path / "other")
    with pytest.raises(BundleInProgress):
        pack_bundle(going.path)
    going.abort()


def test_auditor_verifies_an_archive_and_leaves_nothing_behind(run: Path, tmp_path: Path) -> None:
    """With the standard library alone, and without the temporary directory that it unpacked into."""
    file, temporary = pack_bundle(run).file, tmp_path / "tmp"
    env = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-I", "-S", str(VERIFIER), str(file)], capture_output=True, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert list(temporary.iterdir()) == []
