"""Read trees from the store."""

from __future__ import annotations

import os

from proofbox.errors import WorkspaceCorrupt
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.tree import EMPTY_TREE, PAGE_MODE, Row, StoredEntry, decode_rows


def entries_of(store: ObjectStore, tree: bytes) -> dict[str, StoredEntry]:
    """Return the entries of a directory by name."""
    return entries_and_pages(store, tree)[0]


def entries_and_pages(store: ObjectStore, tree: bytes) -> tuple[dict[str, StoredEntry], list[bytes]]:
    """Return the entries of a directory by name, and the digests of its pages."""
    rows, pages = _rows_and_pages(store, tree)
    return {os.fsdecode(row[0]): StoredEntry.of_row(row) for row in rows}, pages


def rows_of(store: ObjectStore, tree: bytes) -> list[Row]:
    """Return the entries of a directory as they are stored."""
    return _rows_and_pages(store, tree)[0]


def differing_rows(store: ObjectStore, old: bytes, new: bytes) -> tuple[dict[bytes, Row], dict[bytes, Row]]:
    """Return the entries that only one of the trees has, by name. Skips pages that both trees share."""
    before, after = set(_read(store, old)), set(_read(store, new))
    sides = []
    for rows in (before - after, after - before):
        sides.append({each for row in rows for each in (_page(store, row[2]) if row[1] == PAGE_MODE else (row,))})
    before, after = sides
    return {row[0]: row for row in before - after}, {row[0]: row for row in after - before}


def _rows_and_pages(store: ObjectStore, tree: bytes) -> tuple[list[Row], list[bytes]]:
    rows, pages = _read(store, tree), []
    if rows and rows[0][1] == PAGE_MODE:
        pages = [digest for _, _, digest in rows]
        rows = [row for page in pages for row in _page(store, page)]
    return rows, pages


def _page(store: ObjectStore, digest: bytes) -> list[Row]:
    rows = _read(store, digest)
    if any(mode == PAGE_MODE for _, mode, _ in rows):
        raise WorkspaceCorrupt(f"malformed page {digest.hex()}", op="store")
    return rows


def _read(store: ObjectStore, tree: bytes) -> list[Row]:
    if tree == EMPTY_TREE:
        return []
    try:
        return decode_rows(store.get(tree))
    except ValueError as error:
        raise WorkspaceCorrupt(f"malformed tree {tree.hex()}", op="store") from error
