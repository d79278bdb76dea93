"""Lookup of paths in the tree that an agent left, as far as its final snapshot can answer.

A path exists if there is anything at it: a file, a directory, a symbolic link to anything, or something that a
snapshot does not store, such as a pipe. Links are not followed, so what is below one is unknown, as is what is below
an unreadable directory. Only regular files have content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from proofbox.workspace.model import Snapshot, exact
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.store.trees import entries_of
from proofbox.workspace.tree import StoredEntry
from proofbox.workspace.workspace import Workspace


class FinalEntry(msgspec.Struct, frozen=True):
    """What was found at a path."""

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
"""Looks up a path, given as names from the root, and whether the file there contains a text."""

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
