"""What is at a path of the tree that an agent left, as far as its final snapshot can tell.

A thing of any kind that is there exists: a file, a directory, a symbolic link wherever it leads, and what no snapshot
holds, such as a pipe. Links are not followed, so that nobody can tell what is below one; nor below a directory that
could not be read. Content is asked of regular files alone.
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
    """What is there."""

    what: str
    """In words."""
    there: bool | None = True
    """None: nobody can tell."""
    sha256: str | None = None
    """Of a regular file's content; None: it is none."""
    size: int = 0
    """Of a regular file, in bytes."""
    has_text: bool = False
    """Whether the text that was asked for is in the regular file."""


Find = Callable[[Sequence[str], str | None], FinalEntry]
"""What is at a path, given name by name from the root; and, of a file, whether it contains a text."""

NOTHING = FinalEntry("nothing", there=False)


def finder(workspace: Workspace, final: Snapshot) -> Find:
    """A way to look into that snapshot."""
    skipped = {exact(each.path, each.path_b64): each.reason for each in final.skipped}

    def find(names: Sequence[str], text: str | None) -> FinalEntry:
        def look(store: ObjectStore, _: bytes, tree: bytes) -> FinalEntry:
            return _look(store, tree, names, text, skipped)

        return workspace.compare(final.id, final.id, look)

    return find


def _look(
    store: ObjectStore, tree: bytes, names: Sequence[str], text: str | None, skipped: dict[str, str]
) -> FinalEntry:
    for depth, name in enumerate(names, 1):
        path = "/".join(names[:depth])
        last = depth == len(names)
        if path in skipped:
            reason = f"{path} is in no snapshot: {skipped[path]}"
            return FinalEntry(reason, there=True if last else None)
        entry = entries_of(store, tree).get(name)
        if entry is None:
            return NOTHING
        if last:
            return _describe(store, entry, text)
        if entry.kind == "symlink":
            return FinalEntry(f"{path} is a link, and links are not followed", there=None)
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
    """Of a content of any size. All of it is read: only at its end is it known to be undamaged."""
    found = not text
    kept = b""
    for chunk in chunks:
        window = kept + chunk
        found = found or text in window
        kept = window[max(0, len(window) - len(text) + 1) :]
    return found
