"""The manifest of an attempt's final tree: every file, or the differences from the template that attempts share."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from proofbox.core.canonical import canonical_bytes
from proofbox.core.files.atomic import create_only, sync_directory
from proofbox.core.files.modes import git_mode
from proofbox.core.redaction.redactor import Redactor
from proofbox.evidence.documents.base_tree import BaseTree, base_path
from proofbox.evidence.documents.tree import TreeEntry, tree_manifest
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.timeline.diff import differences
from proofbox.workspace.tree import EMPTY_TREE
from proofbox.workspace.workspace import Workspace


class SharedBase(msgspec.Struct, frozen=True):
    """The manifest of a template, stored in the run's bundle for all attempts that are mounted over the template."""

    tree: BaseTree
    snapshot: str


def share_base(workspace: Workspace, snapshot: str, run_dir: Path, redactor: Redactor) -> SharedBase | None:
    """Store the manifest of a template in its run's bundle. It survives a power cut before an attempt relies on it.

    Returns None if the manifest contains a secret: each attempt then has its own, which is removed from its evidence.
    """
    document = canonical_bytes(workspace.compare(snapshot, snapshot, lambda store, _, tree: manifest_of(store, tree)))
    if redactor.contains_secret(document):
        return None
    base = BaseTree(document)
    place = run_dir / base_path(base.sha256)
    place.parent.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):  # another worker has the same template
        create_only(place, document)
    sync_directory(run_dir)
    return SharedBase(base, snapshot)


def manifest_of(store: ObjectStore, tree: bytes, base: SharedBase | None = None) -> dict[str, Any]:
    """Return the manifest of a stored tree: every file or, with a base, the differences from it."""
    changes: dict[bytes, TreeEntry | None] = {}
    for each in differences(store, EMPTY_TREE if base is None else bytes.fromhex(base.snapshot), tree):
        path = each.path.encode("utf-8", "surrogateescape")
        if each.old is not None and each.old.kind != "directory":
            changes[path] = None
        if each.new is not None and each.new.kind != "directory":
            digest = each.new.digest
            changes[path] = TreeEntry(path, git_mode(each.new.mode), store.size(digest), digest.hex())
    if base is not None:
        return base.tree.manifest(changes)
    return tree_manifest(entry for entry in changes.values() if entry is not None)
