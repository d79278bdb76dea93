"""Files after a step: from the store on this machine, by the digests that the evidence states."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofbox import BundleWriter
from proofbox.core.digest import sha256_hex
from proofbox.core.ids import IdSource
from proofbox.errors import NotFoundError
from proofbox.viewer import snapshots
from proofbox.viewer.reading import OpenedEvidence, open_evidence
from proofbox.viewer.snapshots import file_after, files_after
from proofbox.viewer.timeline import StepRef
from proofbox.workspace import registry
from proofbox.workspace.store import pack
from proofbox.workspace.store.objects import ObjectStore

DEPTH = 1500
CONTENT = b"".join(b"%d\n" % number for number in range(50_000))


def directory(store: ObjectStore, **entries: tuple[int, bytes]) -> bytes:
    """Store a directory, and return its digest."""
    rows = [b"%o %b\0%b" % (mode, name.encode(), digest) for name, (mode, digest) in sorted(entries.items())]
    return store.put(pack.TREE, b"".join(rows))


@pytest.fixture
def made(tmp_path: Path) -> tuple[OpenedEvidence, StepRef]:
    """An attempt, and a step after which its workspace has a file at the top and one in a deep directory."""
    id = IdSource().new_id("store")
    place = registry.store_path(id)
    store = ObjectStore.create(place)
    inner = directory(store, deep=(0o100755, store.put(pack.BLOB, b"deep\n")))
    for _ in range(DEPTH):
        inner = directory(store, d=(0o040755, inner))
    top = directory(store, big=(0o100644, store.put(pack.BLOB, CONTENT)), d=(0o040755, inner))
    store.commit(b"{}")
    store.close()
    with BundleWriter.create(tmp_path / "out", run_id="attempt-1") as bundle:
        bundle.write_json("attempt.json", {"final": {"store": id, "snapshot": "0" * 64}})
    return open_evidence(bundle.path), StepRef(n=1, snapshot_after=top.hex())


def test_files_of_a_deep_tree_are_listed(made: tuple[OpenedEvidence, StepRef]) -> None:
    found = files_after(*made)
    assert [(each.path, each.mode, each.size) for each in found.files] == [
        ("big", "100644", len(CONTENT)),
        ("d/" * (DEPTH + 1) + "deep", "100755", 5),
    ]
    assert not found.cut


def test_list_is_bounded_in_files_and_directories(
    made: tuple[OpenedEvidence, StepRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MAX_DIRECTORIES", 10)
    assert ([each.path for each in files_after(*made).files], files_after(*made).cut) == (["big"], True)
    monkeypatch.setattr(snapshots, "MAX_FILES", 0)
    assert (files_after(*made).files, files_after(*made).cut) == ((), True)


def test_part_of_a_file_is_read(made: tuple[OpenedEvidence, StepRef]) -> None:
    part = file_after(*made, "big", sha256_hex(CONTENT), 100_000, 20)
    assert (part.data, part.file.size) == (CONTENT[100_000:100_020], len(CONTENT))


def test_only_listed_files_up_to_a_size_are_read(
    made: tuple[OpenedEvidence, StepRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, digest in (("big", "0" * 64), ("other", sha256_hex(CONTENT)), ("../big", ""), ("", "")):
        with pytest.raises(NotFoundError, match="no such file"):
            file_after(*made, path, digest, 0, 10)
    monkeypatch.setattr(snapshots, "MAX_CONTENT", 1000)
    with pytest.raises(NotFoundError, match="larger than"):
        file_after(*made, "big", sha256_hex(CONTENT), 0, 10)


def test_damaged_content_is_not_shown(made: tuple[OpenedEvidence, StepRef]) -> None:
    store = registry.store_path(str(made[0].document("attempt.json")["final"]["store"]))
    file = next(store.glob("pack-*"))
    data = bytearray(file.read_bytes())
    data[data.index(b"49999\n")] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(NotFoundError, match="cannot be read"):
        file_after(*made, "big", sha256_hex(CONTENT), 0, 10)


def test_store_of_another_machine_is_named(tmp_path: Path) -> None:
    for id in (IdSource().new_id("store"), "../x", ""):
        with BundleWriter.create(tmp_path / f"out-{len(id)}", run_id="attempt-1") as bundle:
            bundle.write_json("attempt.json", {"final": {"store": id, "snapshot": "0" * 64}})
        with pytest.raises(NotFoundError, match="not on this machine"):
            files_after(open_evidence(bundle.path), StepRef(n=1, snapshot_after="1" * 64))
