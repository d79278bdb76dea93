"""A unified diff between two trees for people, with a bounded number of lines. The text may be hostile.

Each line has a kind, so that a caller can colour it, and contains no terminal control sequences.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Literal, NamedTuple

from proofbox.core.text import printable
from proofbox.workspace.model import Change
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.timeline.diff import as_changes, differences
from proofbox.workspace.tree import StoredEntry

LINES = 10_000
"""Maximum number of lines shown."""
_MAX_BYTES = 1 << 20
_MAX_LINES = 5_000
_MAX_WIDTH = 2_000

Kind = Literal["file", "hunk", "added", "removed", "same", "note"]


class DiffLine(NamedTuple):
    kind: Kind
    text: str


def unified(store: ObjectStore, old: bytes, new: bytes) -> list[DiffLine]:
    found = list(differences(store, old, new))
    before = {each.path: each.old for each in found if each.old is not None}
    after = {each.path: each.new for each in found if each.new is not None}
    lines: list[DiffLine] = []
    listed = as_changes(found)
    for number, change in enumerate(listed):
        lines += _of_change(store, change, before, after)
        if len(lines) > LINES:
            rest = len(listed) - number - 1
            return [
                *lines[:LINES],
                DiffLine("note", f"more than {LINES} lines, and {rest} more paths: --json lists them all"),
            ]
    return lines


def _of_change(
    store: ObjectStore, change: Change, before: dict[str, StoredEntry], after: dict[str, StoredEntry]
) -> Iterator[DiffLine]:
    path, old_path = change.path, change.old_path or change.path
    # A file that became a directory is listed as two changes of the same path.
    was = before.get(change.exact_old_path) if change.kind != "added" else None
    now = after.get(change.exact_path) if change.kind != "deleted" else None
    yield DiffLine("file", _shown(f"diff {old_path} {path}" if old_path != path else f"diff {path}"))
    if change.kind == "renamed":
        yield DiffLine("note", _shown(f"renamed from {old_path} to {path}"))
    if was is not None and now is not None and was.mode != now.mode:
        yield DiffLine("note", f"mode {was.mode:o} to {now.mode:o}")
    if was is None and now is not None:
        yield DiffLine("note", f"new {now.kind}, mode {now.mode:o}")
    elif now is None and was is not None:
        yield DiffLine("note", f"deleted {was.kind}, mode {was.mode:o}")
    sides = [entry if entry is not None and entry.kind != "directory" else None for entry in (was, now)]
    if (sides[0] is None and sides[1] is None) or (was and now and was.digest == now.digest):
        return
    texts = [text_lines(store, entry) for entry in sides]
    if texts[0] is None or texts[1] is None:
        sizes = [store.size(entry.digest) if entry is not None else 0 for entry in sides]
        yield DiffLine("note", f"binary or too large to show: {sizes[0]} bytes, then {sizes[1]}")
        return
    yield DiffLine("removed", _shown(f"--- {old_path if was else '(nothing)'}"))
    yield DiffLine("added", _shown(f"+++ {path if now else '(nothing)'}"))
    for line in list(difflib.unified_diff(texts[0], texts[1], lineterm=""))[2:]:
        kind: Kind = {"@": "hunk", "+": "added", "-": "removed"}.get(line[0], "same")  # type: ignore[assignment]
        yield DiffLine(kind, _shown(line[:1] + line[1:].rstrip("\n")))
        if kind != "hunk" and not line.endswith("\n"):
            yield DiffLine("note", "\\ No newline at end of file")


def text_lines(store: ObjectStore, entry: StoredEntry | None) -> list[str] | None:
    """Return the lines of a file, or None if it is not text or too large."""
    if entry is None:
        return []
    if store.size(entry.digest) > _MAX_BYTES:
        return None
    data = store.get(entry.digest)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    lines = text.split("\n")
    whole = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    return None if "\0" in text or len(whole) > _MAX_LINES else whole


def _shown(text: str) -> str:
    return printable(text[:_MAX_WIDTH] + ("…" if len(text) > _MAX_WIDTH else "")).replace("\n", "\\n")
