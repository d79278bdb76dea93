"""The files of an attempt after a step: their list, and the content of one.

The list at the end is in the evidence. Earlier trees, and all contents, come from the workspace's store on this
machine. The store finds them by the digests that the evidence states, and compares what it reads with them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from proofbox.core.ids import is_id
from proofbox.core.text import path_fields
from proofbox.errors import NotFoundError, ProofboxError
from proofbox.evidence.documents import tree
from proofbox.evidence.documents.base_tree import read_tree
from proofbox.evidence.documents.shape import ShapeError
from proofbox.viewer.reading import OpenedEvidence, final_snapshot
from proofbox.viewer.timeline import StepRef
from proofbox.workspace import registry
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.store.trees import entries_of

MAX_FILES: Final = 2000
"""Maximum number of files of a tree that a page lists."""
MAX_DIRECTORIES: Final = 2000
"""Maximum number of directories that are looked into for them."""
MAX_CONTENT: Final = 64 << 20
"""Maximum size of a file whose content is shown: each part of it needs the digest of the whole."""
_STORE: Final = "the workspace store on this machine"


@dataclass(frozen=True, slots=True)
class ListedFile:
    path: str
    """For display: escaped if it is not UTF-8."""
    mode: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StepFiles:
    files: tuple[ListedFile, ...]
    cut: bool
    source: str
    """Where the list comes from."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file."""

    file: ListedFile
    data: bytes


def files_after(evidence: OpenedEvidence, step: StepRef | None) -> StepFiles:
    """Return the files after a step, or at the end. Raises NotFoundError if this machine does not have the store."""
    final = final_snapshot(evidence)
    manifest = evidence.document(tree.PATH)
    if step is None or (manifest and step.snapshot_after == final.get("snapshot")):
        return _final_files(manifest, evidence)
    with _store_of(evidence) as store:
        walk = _Walk(store)
        found = tuple(walk.files(bytes.fromhex(step.snapshot_after)))
    return StepFiles(found, walk.cut, _STORE)


def file_after(
    evidence: OpenedEvidence, step: StepRef | None, path: str, sha256: str, start: int, length: int
) -> FilePart:
    """Return a part of a file that `files_after` lists, after comparing the whole file with its digest.

    Raises NotFoundError if the file is not listed, is too large, or is not on this machine.
    """
    listed = files_after(evidence, step).files
    file = next((each for each in listed if (each.path, each.sha256) == (path, sha256)), None)
    if file is None:
        raise NotFoundError(f"no such file after this step: {path[:200]!r}", op="view")
    if file.size > MAX_CONTENT:
        raise NotFoundError(
            f"the file is larger than {MAX_CONTENT >> 20} MiB; fork from the step to read it", op="view"
        )
    found = bytearray()
    position = 0
    with _store_of(evidence) as store:
        for piece in store.chunks(bytes.fromhex(file.sha256)):
            if position < start + length and position + len(piece) > start:
                found += piece[max(0, start - position) : start + length - position]
            position += len(piece)
    return FilePart(file, bytes(found))


@contextmanager
def _store_of(evidence: OpenedEvidence) -> Iterator[ObjectStore]:
    """Open the store that the evidence names. Everything that fails in the block is a NotFoundError."""
    store_id = str(final_snapshot(evidence).get("store", ""))
    place = registry.store_path(store_id) if is_id(store_id, "store") else None
    if place is None or not place.is_dir():
        raise NotFoundError(
            "the workspace store of this attempt is not on this machine; the diffs are in the evidence", op="view"
        )
    try:
        with closing(ObjectStore(place)) as store, store.use():
            yield store
    except (ProofboxError, OSError, ValueError, KeyError) as error:
        raise NotFoundError(f"the workspace store cannot be read: {error}", op="view") from error


def _final_files(manifest: dict[str, Any], evidence: OpenedEvidence) -> StepFiles:
    if not manifest:
        return StepFiles((), False, "the evidence")
    try:
        found = read_tree(manifest, str(evidence.path))
        shown = [
            ListedFile(path_fields(each.path)["path"], each.mode, each.size, each.sha256)
            for each in islice(found.entries, MAX_FILES)
        ]
    except ShapeError as error:
        raise NotFoundError(f"the list of files cannot be read: {error}", op="view") from error
    return StepFiles(tuple(shown), found.files > MAX_FILES, f"the evidence: {tree.PATH}")


class _Walk:
    """Lists the files of a snapshot, at any depth, up to the limits."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.cut = False

    def files(self, snapshot: bytes) -> Iterator[ListedFile]:
        pending = [("", snapshot)]
        files = directories = 0
        while pending:
            path, digest = pending.pop()
            directories += 1
            if directories > MAX_DIRECTORIES:
                self.cut = True
                return
            below = []
            for name, entry in sorted(entries_of(self._store, digest).items()):
                inner = f"{path}{name}"
                if entry.kind == "directory":
                    below.append((f"{inner}/", entry.digest))
                    continue
                if files == MAX_FILES:
                    self.cut = True
                    return
                files += 1
                mode = "120000" if entry.kind == "symlink" else f"100{stat.S_IMODE(entry.mode):o}"
                shown = path_fields(os.fsencode(inner))["path"]
                yield ListedFile(shown, mode, self._store.size(entry.digest), entry.digest.hex())
            pending += reversed(below)
