"""`tree_manifest.json`: every file of an attempt's final tree, for comparison with a delivery.

    {"schema_version": "proofbox.tree_manifest/1", "tree_sha256": …, "entries": [
        {"path": "src/a.py", "mode": "100644", "size": 12, "sha256": …}, …]}

Modes are git's: 100644 a file, 100755 an executable one, 120000 a symbolic link (whose content is its target). Entries
are sorted by the bytes of their path; a path that is not UTF-8 has `path_b64` with its exact bytes. `tree_sha256` is
the SHA-256 of the canonical JSON of the entries.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

from proofbox.core.digest import digest_of
from proofbox.core.documents import declare
from proofbox.core.files.modes import GitMode
from proofbox.core.text import path_fields
from proofbox.evidence.bundle.index import refuse_other_schema
from proofbox.evidence.documents import shape
from proofbox.evidence.documents.shape import ShapeError

PATH = "tree_manifest.json"
SCHEMA = "proofbox.tree_manifest/1"
MODES = get_args(GitMode)


class TreeEntry(NamedTuple):
    path: bytes
    mode: str
    size: int
    sha256: str

    def as_json(self) -> dict[str, Any]:
        return {**path_fields(self.path), "mode": self.mode, "size": self.size, "sha256": self.sha256}


def tree_manifest(entries: Iterable[TreeEntry]) -> dict[str, Any]:
    """Return the manifest for existing entries, such as those of a snapshot."""
    ordered = [entry.as_json() for entry in sorted(entries)]
    document = {"schema_version": SCHEMA, "tree_sha256": digest_of(ordered), "entries": ordered}
    parse_tree_manifest(document)
    return document


PATH_MEMBERS = (
    {"path": shape.text(1 << 14).meaning("Relative to the tree; escaped if it is not UTF-8.")},
    {"path_b64": shape.text(1 << 14).meaning("The exact bytes of a path that is not UTF-8.")},
)
ENTRY = shape.record(
    {
        **PATH_MEMBERS[0],
        "mode": shape.one_of(*MODES).meaning("Git's mode of a file, an executable or a symbolic link."),
        "size": shape.count.meaning("Size in bytes; for a link, of its target."),
        "sha256": shape.sha256.meaning("SHA-256 of the content; for a link, of its target."),
    },
    PATH_MEMBERS[1],
)
_OBJECT = shape.table(shape.anything)
_DOCUMENT = shape.record(
    {
        "schema_version": shape.text(200),
        "tree_sha256": shape.sha256.meaning("SHA-256 of the canonical JSON of the entries."),
        "entries": shape.array(ENTRY).meaning("Sorted by the bytes of their path."),
    }
)
declare(
    SCHEMA,
    at="BUNDLE/tree_manifest.json of an attempt or a delivery",
    meaning="Every file of a tree, for comparison with a delivery.",
    shape=_DOCUMENT.json_schema,
)


def parse_tree_manifest(document: Any) -> list[TreeEntry]:
    """Return the entries of a manifest. Raises ShapeError for invalid members, paths, order or digest."""
    _OBJECT(document, "tree_manifest")
    refuse_other_schema(document, SCHEMA)
    _DOCUMENT(document, "tree_manifest")
    if digest_of(document["entries"]) != document["tree_sha256"]:
        raise ShapeError("tree_manifest.tree_sha256 is not the digest of its entries")
    entries = [parse_entry(entry) for entry in document["entries"]]
    paths = [entry.path for entry in entries]
    if paths != sorted(set(paths)):
        raise ShapeError("tree_manifest.entries are not sorted or have duplicate paths")
    return entries


def parse_entry(entry: dict[str, Any]) -> TreeEntry:
    return TreeEntry(parse_path(entry), entry["mode"], entry["size"], entry["sha256"])


def parse_path(entry: dict[str, Any]) -> bytes:
    """Return the exact path of an entry. Raises ShapeError if it leads outside the tree."""
    try:
        raw = base64.b64decode(entry["path_b64"], validate=True) if "path_b64" in entry else entry["path"].encode()
    except ValueError:
        raise ShapeError("a path_b64 is not base64") from None
    parts = raw.split(b"/")
    if b"\0" in raw or any(part in (b"", b".", b"..") for part in parts):
        raise ShapeError("a path leads outside the tree or is not normalised")
    if path_fields(raw) != {name: entry[name] for name in ("path", "path_b64") if name in entry}:
        raise ShapeError("path and path_b64 don't name the same path")
    return raw
