"""Read a snapshot of a workspace, or the final snapshot of an attempt, from the store.

`attempt_files` describes which documents of an attempt's bundle are read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from proofbox.core.canonical import CanonicalError
from proofbox.core.files.modes import git_mode
from proofbox.core.ids import is_id
from proofbox.delivery.source.tree import FoundFile, Pieces, refused
from proofbox.errors import SourceRefused
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.documents import tree as evidence_tree
from proofbox.evidence.documents.base_tree import read_tree
from proofbox.evidence.documents.shape import SHA256, ShapeError
from proofbox.workspace import registry
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.timeline.diff import differences
from proofbox.workspace.tree import EMPTY_TREE
from proofbox.workspace.workspace import Workspace

ATTEMPT = "attempt.json"
ATTEMPT_SCHEMA = "proofbox.attempt/2"


@contextlib.contextmanager
def workspace_files(place: str, name: str) -> Iterator[Iterator[FoundFile]]:
    """Yield the files of a snapshot, given by id, id prefix, name, or HEAD."""
    real = registry.real_directory(place)
    with Workspace.open(real, track=False) as workspace:
        tree = workspace.resolve(name).id
    with _stored(registry.registered(real).store, tree) as files:
        yield files


@contextlib.contextmanager
def attempt_files(place: str) -> Iterator[Iterator[FoundFile]]:
    """Yield the files of an attempt's final snapshot. Two documents of its verified bundle are read:

    attempt.json         {"schema_version": "proofbox.attempt/2", "final": {"store": …, "snapshot": …}}: the id of the
                         workspace store on this machine that holds the tree, and the tree's id
    tree_manifest.json   the mode, size and SHA-256 of every file; no other files are delivered
    """
    bundle = load_bundle(place)
    try:
        proven = read_tree(bundle.read_json(evidence_tree.PATH), bundle.path)
    except (ShapeError, CanonicalError) as error:
        raise refused(f"its {evidence_tree.PATH} is malformed: {error}", place) from error
    final: Any = bundle.read_json(ATTEMPT, schema=ATTEMPT_SCHEMA).get("final")
    store, snapshot = (final.get("store"), str(final.get("snapshot"))) if isinstance(final, dict) else (None, "")
    if not (isinstance(store, str) and is_id(store, "store") and SHA256.fullmatch(snapshot)):
        raise refused(f"its {ATTEMPT} does not name a snapshot", place)
    expected = {os.fsdecode(entry.path): entry for entry in proven.entries}
    with _stored(store, snapshot) as files:
        yield _compared(files, expected)


def _compared(files: Iterator[FoundFile], expected: dict[str, evidence_tree.TreeEntry]) -> Iterator[FoundFile]:
    left = dict(expected)
    for file in files:
        entry = left.pop(file.path, None)
        if entry is None or entry.mode != file.mode:
            raise refused(
                f"its entry in {evidence_tree.PATH} differs from the snapshot", file.path, "verify the bundle"
            )
        yield FoundFile(file.path, file.mode, file.pieces, entry.size, entry.sha256)
    if left:
        raise refused(f"it is in {evidence_tree.PATH} but not in the snapshot", next(iter(left)), "verify the bundle")


@contextlib.contextmanager
def _stored(store_id: str, tree: str) -> Iterator[Iterator[FoundFile]]:
    directory = registry.store_path(store_id)
    if not directory.is_dir():
        raise SourceRefused(
            "the store with the snapshot is not on this machine",
            op="deliver source",
            fix_hints=["deliver from the machine where the attempt ran", "or from a directory with the same files"],
        )
    store = ObjectStore(directory)
    try:
        # Prevents garbage collection until all files are read.
        with store.use():
            yield _files(store, bytes.fromhex(tree))
    finally:
        store.close()


def _files(store: ObjectStore, tree: bytes) -> Iterator[FoundFile]:
    for each in differences(store, EMPTY_TREE, tree):
        entry = each.new
        if entry is None or entry.kind == "directory":
            continue
        yield FoundFile(each.path, git_mode(entry.mode), _object(store, entry.digest), sha256=entry.digest.hex())


def _object(store: ObjectStore, digest: bytes) -> Pieces:
    return lambda: store.chunks(digest)
