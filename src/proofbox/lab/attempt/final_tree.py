"""The tree that an agent left, as its final snapshot has it: lookup of paths, and the manifest.

A path exists if there is anything at it: a file, a directory, a symbolic link to anything, or something that a
snapshot does not store, such as a pipe. Links are not followed, so what is below one is unknown, as is what is below
an unreadable directory. Only regular files have content.

The manifest lists every file or, if attempts share a template, the differences from it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from proofbox.core.files.atomic import create_only, sync_directory
from proofbox.core.files.modes import git_mode
from proofbox.core.ids import is_id
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import SnapshotUnknown, StepFilesGone
from proofbox.evidence.documents.base_tree import BaseTree, base_path
from proofbox.evidence.documents.tree import TreeEntry, tree_manifest
from proofbox.workspace import registry
from proofbox.workspace.model import Snapshot, exact
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.store.trees import entries_of
from proofbox.workspace.timeline.diff import differences
from proofbox.workspace.timeline.history import History
from proofbox.workspace.timeline.new_tree import write_new
from proofbox.workspace.tree import EMPTY_TREE, StoredEntry

if TYPE_CHECKING:
    from proofbox.lab.attempt.documents import AttemptRecord, FinalSnapshot
    from proofbox.workspace.workspace import Workspace


T = TypeVar("T")


class FinalEntry(msgspec.Struct, frozen=True):
    """The entry found at a path."""

    what: str
    """A description in words."""
    there: bool | None = True
    """None if unknown."""
    sha256: str | None = None
    """Digest of a regular file's content; None for anything else."""
    size: int = 0
    """Size of a regular file in bytes."""
    has_text: bool = False
    """Whether the regular file contains the requested text."""


Find = Callable[[Sequence[str], str | None], FinalEntry]
"""Looks up a path, given as names from the root, and whether the file there contains a string."""

NOTHING = FinalEntry("nothing", there=False)


def finder(workspace: Workspace, final: Snapshot) -> Find:
    """Return a lookup function for the snapshot."""
    skipped = {exact(each.path, each.path_b64): each.reason for each in final.skipped}

    def find(names: Sequence[str], text: str | None) -> FinalEntry:
        def look(store: ObjectStore, _: bytes, tree: bytes) -> FinalEntry:
            return _find_entry(store, tree, names, text, skipped)

        return workspace.compare(final.id, final.id, look)

    return find


def _find_entry(
    store: ObjectStore, tree: bytes, names: Sequence[str], text: str | None, skipped: dict[str, str]
) -> FinalEntry:
    for depth, name in enumerate(names, 1):
        path = "/".join(names[:depth])
        last = depth == len(names)
        if path in skipped:
            reason = f"{path} is not in the snapshot: {skipped[path]}"
            return FinalEntry(reason, there=True if last else None)
        entry = entries_of(store, tree).get(name)
        if entry is None:
            return NOTHING
        if last:
            return _describe(store, entry, text)
        if entry.kind == "symlink":
            return FinalEntry(f"{path} is a link, which is not followed", there=None)
        if entry.kind != "directory":
            return NOTHING
        tree = entry.digest
    return NOTHING


def _describe(store: ObjectStore, entry: StoredEntry, text: str | None) -> FinalEntry:
    if entry.kind != "file":
        return FinalEntry("a directory" if entry.kind == "directory" else "a link")
    has_text = text is not None and _contains(store.chunks(entry.digest), text.encode())
    return FinalEntry("a file", sha256=entry.digest.hex(), size=store.size(entry.digest), has_text=has_text)


def _contains(chunks: Iterable[bytes], text: bytes) -> bool:
    """Return whether the content contains `text`. All of it is read, because its digest is checked only at the end."""
    found = not text
    kept = b""
    for chunk in chunks:
        window = kept + chunk
        found = found or text in window
        kept = window[max(0, len(window) - len(text) + 1) :]
    return found


class SharedBase(msgspec.Struct, frozen=True):
    """The manifest of a template, stored in the run's bundle for all attempts that are mounted over the template."""

    tree: BaseTree
    snapshot: str


def share_base(workspace: Workspace, snapshot: str, run_dir: Path, redactor: Redactor) -> SharedBase | None:
    """Store the manifest of a template in its run's bundle. It survives a power cut before an attempt relies on it.

    Returns None if the manifest contains a secret: each attempt then has its own, which is removed from its evidence.
    """
    base = workspace.compare(snapshot, snapshot, lambda store, _, tree: BaseTree(_entries(store, EMPTY_TREE, tree)[1]))
    if redactor.contains_secret(base.document):
        return None
    place = run_dir / base_path(base.sha256)
    place.parent.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):  # another worker has the same template
        create_only(place, base.document)
    sync_directory(run_dir)
    return SharedBase(base, snapshot)


def manifest_of(store: ObjectStore, tree: bytes, base: SharedBase | None = None) -> dict[str, Any]:
    """Return the manifest of a stored tree: every file or, with a base, the differences from it."""
    if base is None:
        return tree_manifest(_entries(store, EMPTY_TREE, tree)[1])
    old, new = _entries(store, bytes.fromhex(base.snapshot), tree)
    return base.tree.manifest({**dict.fromkeys(old), **{entry.path: entry for entry in new}})


def _entries(store: ObjectStore, old: bytes, new: bytes) -> tuple[list[bytes], list[TreeEntry]]:
    """Return the differing files of two trees: the paths in the old one, and the entries of the new one."""
    before: list[bytes] = []
    after: list[TreeEntry] = []
    for each in differences(store, old, new):
        path = each.path.encode("utf-8", "surrogateescape")
        if each.old is not None and each.old.kind != "directory":
            before.append(path)
        if each.new is not None and each.new.kind != "directory":
            digest = each.new.digest
            after.append(TreeEntry(path, git_mode(each.new.mode), store.size(digest), digest.hex()))
    return before, after


# Without the workspace that a snapshot was taken of: for verifying an attempt's files again.


class StoredTrees:
    """The trees of a store, as the verifier needs them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def export(self, name: str, dest: str | os.PathLike[str]) -> None:
        os.makedirs(dest)
        write_new(self._store, os.path.realpath(dest), bytes.fromhex(name))

    def compare(self, a: str, b: str, how: Callable[[ObjectStore, bytes, bytes], T]) -> T:
        return how(self._store, bytes.fromhex(a), bytes.fromhex(b))


def final_of(record: AttemptRecord) -> FinalSnapshot:
    """Return where an attempt's final files are. Raises `StepFilesGone` if no final snapshot was taken."""
    if record.final is None:
        raise StepFilesGone(f"{record.attempt_id} ended without a final snapshot of its files", op="attempt")
    return record.final


@contextlib.contextmanager
def stored_trees(found: FinalSnapshot, attempt: str, op: str) -> Iterator[StoredTrees]:
    """Open the store with an attempt's final files. Raises `StepFilesGone` if it is not on this machine."""
    hints = [f"run `proofbox {op}` on the machine where it ran"]
    place = registry.store_path(found.store)
    if not is_id(found.store, "store") or not place.is_dir():
        why = f"the files of {attempt} cannot be restored: their store is not on this machine"
        raise StepFilesGone(why, op=op, fix_hints=hints)
    with contextlib.closing(ObjectStore(place)) as store, store.use():
        try:
            History(store, None).find(found.snapshot)
        except SnapshotUnknown as error:
            why = f"the files of {attempt} cannot be restored: {error.message}"
            raise StepFilesGone(why, op=op, fix_hints=hints) from None
        yield StoredTrees(store)
