"""Compare two trees by their ids: equal subtrees are not read.

Added and deleted directories are listed with everything in them. A file that is deleted at one path and added with the
same content at another is reported as renamed; if there are several candidates, paths are paired in order.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Literal, NamedTuple, cast

from proofbox.core.text import path_fields
from proofbox.workspace.model import Change, Kind
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.store.trees import differing_rows
from proofbox.workspace.tree import EMPTY_FILE, EMPTY_TREE, StoredEntry


class TreeDifference(NamedTuple):
    path: str
    old: StoredEntry | None
    new: StoredEntry | None


def differences(store: ObjectStore, old: bytes, new: bytes, folder: str = "") -> Iterator[TreeDifference]:
    """Yield every path that differs, parents first, without detecting renames."""
    if old == new:
        return
    before, after = differing_rows(store, old, new)
    for raw in sorted(before.keys() | after.keys()):
        name = os.fsdecode(raw)
        was, now = (StoredEntry.of_row(side[raw]) if raw in side else None for side in (before, after))
        path = f"{folder}/{name}" if folder else name
        was_dir, now_dir = (entry is not None and stat.S_ISDIR(entry.mode) for entry in (was, now))
        if was_dir and now_dir:
            was, now = cast(StoredEntry, was), cast(StoredEntry, now)
            if was.mode != now.mode:
                yield TreeDifference(path, was, now)
            yield from differences(store, was.digest, now.digest, path)
        elif was_dir or now_dir:
            if was:
                yield TreeDifference(path, was, None)
                if was_dir:
                    yield from differences(store, was.digest, EMPTY_TREE, path)
            if now:
                yield TreeDifference(path, None, now)
                if now_dir:
                    yield from differences(store, EMPTY_TREE, now.digest, path)
        elif was != now:
            yield TreeDifference(path, was, now)


def changes(store: ObjectStore, old: bytes, new: bytes) -> list[Change]:
    """Return the changes from one tree to another with renames detected, sorted by path."""
    return as_changes(list(differences(store, old, new)))


def as_changes(found: list[TreeDifference]) -> list[Change]:
    """Convert differences to changes, with renames detected, sorted by path."""
    added_files: dict[bytes, list[TreeDifference]] = {}
    for each in found:
        if each.old is None and each.new is not None and _can_be_renamed(each.new):
            added_files.setdefault(each.new.digest, []).append(each)
    result: list[Change] = []
    renamed: set[str] = set()
    for each in found:
        if each.new is None and each.old is not None and _can_be_renamed(each.old) and added_files.get(each.old.digest):
            arrival = added_files[each.old.digest].pop(0)
            renamed.add(arrival.path)
            result.append(_change(arrival.path, "renamed", cast(StoredEntry, arrival.new), each.path))
        elif each.new is None:
            result.append(_change(each.path, "deleted", cast(StoredEntry, each.old)))
        elif each.old is not None:
            same = each.old.digest == each.new.digest and each.old.kind == each.new.kind
            result.append(_change(each.path, "mode" if same or each.new.kind == "directory" else "modified", each.new))
    result += [
        _change(each.path, "added", each.new)
        for each in found
        if each.old is None and each.new is not None and each.path not in renamed
    ]
    return sorted(result, key=lambda change: (change.path, change.kind))


def _can_be_renamed(entry: StoredEntry) -> bool:
    """Return whether the entry takes part in rename detection. Empty files do not: they are all alike."""
    return entry.kind == "file" and entry.digest != EMPTY_FILE


def _change(path: str, kind: Kind, entry: StoredEntry, old_path: str | None = None) -> Change:
    old = path_fields(old_path) if old_path is not None else {}
    return Change(
        **path_fields(path),
        kind=kind,
        type=cast(Literal["file", "directory", "symlink"], entry.kind),
        old_path=old.get("path"),
        old_path_b64=old.get("path_b64"),
    )
