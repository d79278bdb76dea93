"""Manifests of differences from a base: the same tree as a complete manifest, and nothing without the base."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.core.canonical import canonical_bytes
from proofbox.core.digest import sha256_hex
from proofbox.errors import BundleCorrupt
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.evidence.documents.base_tree import SCHEMA_OF_CHANGES, BaseTree, base_path, read_tree
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.documents.tree import TreeEntry, tree_manifest
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.store.local import Local
from proofbox.evidence.store.transfer import pull_bundle, push_bundle
from proofbox.evidence.verify.check import check_bundle

PATHS = st.sampled_from([b"a", b"a.py", b"b/c", b"b/\xff", b"b/\xc3\xa9", b"z"])
ENTRIES = st.builds(
    TreeEntry, PATHS, st.sampled_from(["100644", "120000"]), st.integers(0, 2), st.sampled_from(["0" * 64, "1" * 64])
)
TREES = st.lists(ENTRIES, unique_by=lambda entry: entry.path).map(sorted)
BEFORE = [TreeEntry(b"a", "100644", 1, "0" * 64), TreeEntry(b"b", "100644", 2, "1" * 64)]
AFTER = [TreeEntry(b"b", "100755", 2, "1" * 64), TreeEntry(b"c", "100644", 3, "2" * 64)]


def base_of(entries: list[TreeEntry]) -> BaseTree:
    base = BaseTree(entries)
    assert base.document == canonical_bytes(tree_manifest(entries)) == BaseTree.parse(base.document).document
    return base


def changed(base: list[TreeEntry], after: list[TreeEntry]) -> dict[str, Any]:
    removed = {entry.path: None for entry in base}
    return base_of(base).manifest({**removed, **{entry.path: entry for entry in after}})


def stored(place: Path, entries: list[TreeEntry]) -> str:
    """Store a base as the run of the attempt at the returned path would."""
    base = base_of(entries)
    path = place / base_path(base.sha256)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(base.document)
    return str(place / "attempts/one")


@given(before=TREES, after=TREES)
def test_differences_and_base_are_the_tree_of_a_complete_manifest(
    tmp_path_factory: pytest.TempPathFactory, before: list[TreeEntry], after: list[TreeEntry]
) -> None:
    document = changed(before, after)
    found = read_tree(document, stored(tmp_path_factory.getbasetemp(), before))
    assert (found.tree_sha256, found.files, list(found.entries)) == (
        tree_manifest(after)["tree_sha256"],
        len(after),
        after,
    )
    assert all(entry not in before for entry in after if entry.as_json() in document["entries"])


def test_complete_manifests_are_still_read(tmp_path: Path) -> None:
    found = read_tree(tree_manifest(AFTER), str(tmp_path))
    assert (found.files, list(found.entries)) == (2, AFTER)


GOOD = changed(BEFORE, AFTER)


@pytest.mark.parametrize(
    "members",
    [
        {"tree_sha256": "0" * 64},
        {"entries": GOOD["entries"][:1]},
        {"entries": GOOD["entries"][::-1]},
        {"entries": [*GOOD["entries"], GOOD["entries"][-1]]},
        {"removed": []},
        {"removed": [{"path": "missing"}]},
        {"removed": [{"path": "a"}, {"path": "b"}]},
        {"removed": [{"path": "../a"}]},
        {"base_sha256": "0" * 64},
        {"base_sha256": "../../etc/passwd"},
        {"more": 1},
    ],
)
def test_inconsistent_differences_are_refused(tmp_path: Path, members: dict[str, Any]) -> None:
    place = stored(tmp_path, BEFORE)
    assert read_tree(GOOD, place).files == 2
    with pytest.raises(ShapeError):
        read_tree({**GOOD, **members}, place)


def test_base_that_is_not_canonical_is_refused() -> None:
    with pytest.raises(ShapeError, match="canonical"):
        BaseTree.parse(canonical_bytes(tree_manifest(BEFORE)).replace(b",", b", ", 1))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A committed run with one attempt, whose manifest lists the differences from a base."""
    with BundleWriter.create(tmp_path / "out", run_id="run") as outer:
        base = base_of(BEFORE)
        outer.write_bytes(base_path(base.sha256), base.document)
        with outer.nested("attempts/one") as attempt:
            attempt.write_json("tree_manifest.json", GOOD)
    return outer.path


def codes(place: Path) -> set[tuple[str, str]]:
    return {(finding.code, finding.path) for finding in check_bundle(str(place)).findings}


def test_run_and_attempt_verify_with_the_base_and_not_without(run: Path) -> None:
    attempt = run / "attempts/one"
    assert (codes(run), codes(attempt)) == (set(), set())
    shutil.rmtree(run / "trees")
    assert codes(run) == {
        ("missing", base_path(GOOD["base_sha256"])),
        ("tree_base_absent", "attempts/one/tree_manifest.json"),
    }
    assert codes(attempt) == {("tree_base_absent", "tree_manifest.json")}
    with pytest.raises(BundleCorrupt, match="copy the run's directory `trees` beside the attempt"):
        load_bundle(attempt)


def test_changed_base_is_found_in_the_run_and_in_the_attempt_alone(run: Path) -> None:
    base = run / base_path(GOOD["base_sha256"])
    base.write_bytes(canonical_bytes(tree_manifest(AFTER)))
    assert ("tree_base_absent", "attempts/one/tree_manifest.json") in codes(run)
    assert codes(run / "attempts/one") == {("tree_base_absent", "tree_manifest.json")}


def test_run_whose_index_does_not_list_the_base_does_not_verify(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path / "out", run_id="run") as outer, outer.nested("attempts/one") as attempt:
        attempt.write_json("tree_manifest.json", GOOD)
    stored(tmp_path / "out", BEFORE)
    assert codes(outer.path) == {("tree_base_absent", "attempts/one/tree_manifest.json")}


def test_attempt_that_was_moved_needs_the_directory_of_bases_beside_it(run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved/one"
    shutil.copytree(run / "attempts/one", moved)
    assert codes(moved) == {("tree_base_absent", "tree_manifest.json")}
    shutil.copytree(run / "trees", tmp_path / "moved/trees")
    assert codes(moved) == set()


def test_pulled_run_has_the_base_of_its_attempts(run: Path, tmp_path: Path) -> None:
    store = Local(tmp_path / "store")
    push_bundle(run, store)
    pulled = pull_bundle(store, tmp_path / "pulled", "run")
    assert codes(Path(pulled.path) / "attempts/one") == set()


def test_policy_counts_the_files_of_base_and_differences(run: Path) -> None:
    inputs = emit_promotion(run / "attempts/one", policy="attempt").document["promotability"]["gating_inputs"]
    assert inputs["tree_unknown"]["observed"] == "2 files"


def test_differences_are_small_however_large_the_base_is() -> None:
    many = [TreeEntry(b"%06d" % number, "100644", number, sha256_hex(b"%d" % number)) for number in range(3000)]
    document = base_of(many).manifest({b"000007": None, b"new": TreeEntry(b"new", "100644", 1, "0" * 64)})
    assert document["schema_version"] == SCHEMA_OF_CHANGES
    assert len(canonical_bytes(document)) < 1000
