"""`tree_manifest.json` of version 2: how an attempt's final tree differs from a base that many attempts share.

    {"schema_version": "proofbox.tree_manifest/2", "base_sha256": …, "tree_sha256": …, "removed": [{"path": "b"}],
     "entries": [{"path": "src/a.py", "mode": "100644", "size": 12, "sha256": …}, …]}

The base is a manifest of version 1 in the run's bundle, at `trees/<SHA-256 of its bytes>.json`. So the digest of this
document covers every file of the tree, and `tree_sha256` is the one that a complete manifest of the same tree has. An
attempt that is moved without its run needs the directory `trees` beside it.
"""

from __future__ import annotations

import hashlib
import heapq
import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from proofbox.core.canonical import CanonicalError, canonical_bytes, check_values, parse_strict
from proofbox.core.digest import sha256_hex
from proofbox.core.documents import declare
from proofbox.core.text import path_fields
from proofbox.evidence.bundle.paths import MAX_JSON_BYTES, read_bounded
from proofbox.evidence.documents import shape
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.documents.tree import (
    ENTRY,
    PATH_MEMBERS,
    SCHEMA,
    TreeEntry,
    parse_entry,
    parse_path,
    parse_tree_manifest,
)

SCHEMA_OF_CHANGES = "proofbox.tree_manifest/2"
FOLDER = "trees"
"""The directory of a run's bundle that holds the bases of its attempts."""
_ABOVE = 2
"""An attempt is at `RUN/attempts/NAME`; one that was moved may have the directory beside it."""

Changes = Mapping[bytes, TreeEntry | None]
"""The entries that differ from a base, by path; None for a removed one."""


class BaseTree:
    """A complete manifest that is used to compute the digests of similar trees without encoding every entry again."""

    def __init__(self, entries: Iterable[TreeEntry]) -> None:
        """Make the manifest of these entries. Raises CanonicalError if there are too many for one document."""
        ordered = sorted(entries)
        rows = [canonical_bytes(entry.as_json()) for entry in ordered]
        self._body = b",".join(rows)
        self._paths = [entry.path for entry in ordered]
        self._starts = array("Q", accumulate((len(row) + 1 for row in rows), initial=0))
        rest = canonical_bytes({"schema_version": SCHEMA, "tree_sha256": self.tree_sha256({})})
        self.document = b"".join((b'{"entries":[', self._body, b"],", rest[1:]))
        check_values(self.document)
        self.sha256 = sha256_hex(self.document)

    @classmethod
    def parse(cls, document: bytes) -> BaseTree:
        """Parse a manifest in canonical form. Raises ShapeError."""
        try:
            found = cls(parse_tree_manifest(parse_strict(document)))
        except CanonicalError as error:
            raise ShapeError(f"the base is not JSON: {error}") from error
        if found.document != document:
            raise ShapeError("the base is not in canonical form")
        return found

    def __len__(self) -> int:
        return len(self._paths)

    def entry(self, path: bytes) -> TreeEntry | None:
        """Return the entry at a path, or None."""
        at = bisect_left(self._paths, path)
        if at == len(self._paths) or self._paths[at] != path:
            return None
        return parse_entry(parse_strict(self._body[self._starts[at] : self._starts[at + 1] - 1]))

    def entries(self) -> Iterator[TreeEntry]:
        return map(parse_entry, parse_strict(self.document)["entries"])

    def tree_sha256(self, changes: Changes) -> str:
        """Return the `tree_sha256` of the tree that these changes make of the base."""
        digest = hashlib.sha256(b"[")
        separator = b""
        for piece in self._pieces(changes):
            digest.update(separator)
            digest.update(piece)
            separator = b","
        digest.update(b"]")
        return digest.hexdigest()

    def _pieces(self, changes: Changes) -> Iterator[bytes | memoryview]:
        """Yield the canonical entries of the changed tree: unchanged ones in long pieces, without the last comma."""
        body, start, at = memoryview(self._body), self._starts, 0
        for path in sorted(changes):
            here = bisect_left(self._paths, path)
            if here > at:
                yield body[start[at] : start[here] - 1]
            at = here + (here < len(self._paths) and self._paths[here] == path)
            entry = changes[path]
            if entry is not None:
                yield canonical_bytes(entry.as_json())
        if at < len(self._paths):
            yield body[start[at] : start[-1] - 1]

    def manifest(self, changes: Changes) -> dict[str, Any]:
        """Return the document of a tree that differs from this base by these changes. Equal entries are left out."""
        differing = {path: entry for path, entry in changes.items() if self.entry(path) != entry}
        return {
            "schema_version": SCHEMA_OF_CHANGES,
            "base_sha256": self.sha256,
            "tree_sha256": self.tree_sha256(differing),
            "removed": [path_fields(path) for path in sorted(differing) if differing[path] is None],
            "entries": [entry.as_json() for _, entry in sorted(differing.items()) if entry is not None],
        }


class FinalTree(NamedTuple):
    """The tree of an attempt. `entries` yields every file, sorted by path."""

    tree_sha256: str
    files: int
    entries: Iterable[TreeEntry]


_DOCUMENT = shape.record(
    {
        "schema_version": shape.text(200),
        "base_sha256": shape.sha256.meaning("SHA-256 of the base, which is `trees/<this digest>.json` of the run."),
        "tree_sha256": shape.sha256.meaning("SHA-256 of the canonical JSON of all entries, as in version 1."),
        "removed": shape.array(shape.record(*PATH_MEMBERS)).meaning("Files of the base that are not in the tree."),
        "entries": shape.array(ENTRY).meaning("Files that the base lacks or has differently, sorted as in version 1."),
    }
)
declare(
    SCHEMA_OF_CHANGES,
    at="BUNDLE/tree_manifest.json of an attempt on many files",
    meaning="How a tree differs from a base that is stored once per run.",
    shape=_DOCUMENT.json_schema,
)


def base_sha256(document: Any) -> str | None:
    """Return the digest of the base that a manifest names; None if the manifest is complete."""
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_OF_CHANGES:
        return None
    _DOCUMENT(document, "tree_manifest")
    return str(document["base_sha256"])


def base_path(sha256: str) -> str:
    """Return the path of a base inside its run's bundle."""
    return f"{FOLDER}/{sha256}.json"


def require_base(bundle: str, sha256: str) -> None:
    """Raise ShapeError unless the base of an attempt, whose bundle is at a path, exists and is intact."""
    _read(_place_of(bundle, sha256), sha256)


def complete_tree(document: Any) -> FinalTree | None:
    """Return the tree of a complete manifest; None if it names a base. Raises ShapeError."""
    if base_sha256(document) is not None:
        return None
    entries = parse_tree_manifest(document)
    return FinalTree(document["tree_sha256"], len(entries), entries)


def read_tree(document: Any, bundle: str) -> FinalTree:
    """Return the tree of a manifest of any version, in the bundle at a path. Raises ShapeError."""
    complete = complete_tree(document)
    if complete is not None:
        return complete
    sha256 = document["base_sha256"]
    place = _place_of(bundle, sha256)
    info = os.stat(place)
    base = _parsed(place, sha256, (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    changes = _changes(document)
    before = {path: base.entry(path) for path in changes}
    if any(before[path] == entry for path, entry in changes.items()):
        raise ShapeError("tree_manifest has an entry that does not differ from its base")
    if base.tree_sha256(changes) != document["tree_sha256"]:
        raise ShapeError("tree_manifest.tree_sha256 is not the digest of its entries and its base")
    added = sum(entry is None for entry in before.values())
    files = len(base) + added - len(document["removed"])
    return FinalTree(document["tree_sha256"], files, _Merged(base, changes))


class _Merged:
    """The entries of a base with changes, parsed when they are iterated over."""

    def __init__(self, base: BaseTree, changes: Changes) -> None:
        self._base = base
        self._changes = changes

    def __iter__(self) -> Iterator[TreeEntry]:
        unchanged = (entry for entry in self._base.entries() if entry.path not in self._changes)
        changed = (entry for _, entry in sorted(self._changes.items()) if entry is not None)
        return heapq.merge(unchanged, changed)


def _changes(document: dict[str, Any]) -> Changes:
    entries = [parse_entry(entry) for entry in document["entries"]]
    removed = [parse_path(entry) for entry in document["removed"]]
    paths = [entry.path for entry in entries]
    if paths != sorted(set(paths)) or removed != sorted(set(removed)) or not set(removed).isdisjoint(paths):
        raise ShapeError("tree_manifest has paths that are not sorted, or duplicate paths")
    return {**dict.fromkeys(removed), **{entry.path: entry for entry in entries}}


def _place_of(bundle: str, sha256: str) -> str:
    above = os.path.realpath(bundle)
    for _ in range(_ABOVE):
        above = os.path.dirname(above)
        place = os.path.join(above, base_path(sha256))
        if os.path.lexists(place):
            return place
    raise ShapeError(f"its base {base_path(sha256)} is missing: copy the run's directory `{FOLDER}` beside the attempt")


def _read(place: str, sha256: str) -> bytes:
    try:
        data = read_bounded(place, MAX_JSON_BYTES)
    except OSError as error:
        raise ShapeError(f"its base {base_path(sha256)} can't be read: {error.strerror or error}") from error
    if sha256_hex(data) != sha256:
        raise ShapeError(f"its base {base_path(sha256)} has changed")
    return data


@lru_cache(maxsize=1)
def _parsed(place: str, sha256: str, _: tuple[int, ...]) -> BaseTree:
    """Return a base. The attempts of a run have few of them, and parsing takes longer than anything else."""
    return BaseTree.parse(_read(place, sha256))
