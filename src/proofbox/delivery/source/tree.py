"""The tree to deliver: files with path, mode, size and digest, whose contents are read when they are sent.

    with open_source("out/app.zip") as tree:
        tree.files, tree.left_out

A source is a directory, a zip archive, a snapshot of a workspace, or the final snapshot of an attempt's bundle.
Contents are never modified. Files that look like secrets are left out and listed. A file that contains a secret known
to this process is an error, and so is an unsafe name or archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from proofbox.core.redaction.redactor import Redactor
from proofbox.core.text import path_fields, printable
from proofbox.delivery.client.wire import Mode
from proofbox.delivery.source import names
from proofbox.errors import DeliverySecretFound, SourceRefused
from proofbox.evidence.bundle.paths import INDEX, STATUS
from proofbox.evidence.documents.tree import TreeEntry, tree_manifest
from proofbox.evidence.secrets import SecretScan

Pieces = Callable[[], Iterator[bytes]]


class SourceLimits(msgspec.Struct, frozen=True):
    files: int = 100_000
    file_bytes: int = 100 << 20
    total_bytes: int = 1 << 30
    ratio: int = 200
    """Maximum compression ratio of archive members larger than a megabyte."""


class LeftOut(msgspec.Struct, frozen=True, omit_defaults=True):
    path: str
    reason: str
    path_b64: str | None = None


@dataclass(frozen=True, slots=True)
class SourceFile:
    path: str
    mode: Mode
    size: int
    sha256: str
    pieces: Pieces = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as reported by a source. Unknown members are determined by reading the file."""

    path: str
    mode: Mode
    pieces: Pieces
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class SourceTree:
    """A tree of files, sorted by the bytes of their paths."""

    kind: str
    files: tuple[SourceFile, ...]
    left_out: tuple[LeftOut, ...]
    withheld: tuple[TreeEntry, ...] = ()
    """The entries of files in `left_out` that were left out because of their content, not their name."""

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The `tree_manifest.json` of the files to send."""
        return tree_manifest(self.entries())

    @property
    def tree_sha256(self) -> str:
        return str(self.manifest["tree_sha256"])

    def entries(self) -> list[TreeEntry]:
        return [TreeEntry(each.path.encode(), each.mode, each.size, each.sha256) for each in self.files]


@contextlib.contextmanager
def open_source(
    path: str | os.PathLike[str],
    *,
    snapshot: str | None = None,
    root: str | None = None,
    redactor: Redactor | None = None,
    limits: SourceLimits = SourceLimits(),  # noqa: B008 (frozen)
) -> Iterator[SourceTree]:
    """Open the tree at `path`. `snapshot` selects a snapshot of a workspace; `root` is the subdirectory to deliver.

    The files can be read until the `with` block ends.
    """
    # Imported on demand: only one kind of source is used.
    place = os.fspath(path)
    with contextlib.ExitStack() as stack:
        if snapshot is not None:
            from proofbox.delivery.source.snapshot import workspace_files

            kind, found = "snapshot", stack.enter_context(workspace_files(place, snapshot))
        elif os.path.isfile(place):
            from proofbox.delivery.source.archive import archive_files

            kind, found = "zip", stack.enter_context(archive_files(place, limits))
        elif any(os.path.lexists(os.path.join(place, name)) for name in (INDEX, STATUS)):
            from proofbox.delivery.source.snapshot import attempt_files

            kind, found = "attempt", stack.enter_context(attempt_files(place))
        elif os.path.isdir(place):
            from proofbox.delivery.source.directory import directory_files

            kind, found = "directory", directory_files(place)
        else:
            raise refused("it is not a directory, a zip archive or a bundle", place, "check --source")
        yield _screened(kind, found, root, redactor or Redactor(), limits)


def _screened(
    kind: str, found: Iterable[FoundFile], root: str | None, redactor: Redactor, limits: SourceLimits
) -> SourceTree:
    files: list[SourceFile] = []
    left_out: list[LeftOut] = []
    withheld: list[TreeEntry] = []
    secrets: list[str] = []
    total = 0
    prefix = root.strip("/") + "/" if root else ""
    for each in found:
        if prefix and not each.path.startswith(prefix):
            continue
        path = each.path[len(prefix) :]
        if reason := reason_by_name(path):
            left_out.append(LeftOut(**path_fields(path), reason=reason))
            continue
        file, reason, holds_secret = _read(path, each, redactor, limits.file_bytes)
        if reason:
            left_out.append(LeftOut(**path_fields(path), reason=reason))
            withheld.append(TreeEntry(os.fsencode(path), file.mode, file.size, file.sha256))
            continue
        if wrong := names.problem(path):
            raise refused(f"a repository cannot contain it: {wrong}", path, "rename or remove it")
        files.append(file)
        if holds_secret:
            secrets.append(path)
        total += file.size
        if len(files) > limits.files or total > limits.total_bytes:
            raise refused(f"the source has more than {limits.files} files or {limits.total_bytes} bytes", path)
    if secrets:
        raise DeliverySecretFound(
            f"{secrets[0]} contains a secret that this process knows"
            + (f", and so do {len(secrets) - 1} more" if len(secrets) > 1 else ""),
            op="deliver source",
            details={"paths": secrets[:100]},
        )
    if prefix and not files and not left_out:
        raise refused("the source has no such directory", prefix, "check --root")
    files.sort(key=lambda file: file.path.encode())
    _refuse_clashes(files)
    left_out.sort(key=lambda left: left.path)
    return SourceTree(kind, tuple(files), tuple(left_out), tuple(withheld))


def reason_by_name(path: str) -> str:
    """Return why a file with this path is left out of every delivery, or an empty string."""
    if names.is_git(path):
        return "it belongs to git"
    if names.looks_secret(path):
        return "its name suggests a secret"
    return ""


def _read(path: str, found: FoundFile, redactor: Redactor, limit: int) -> tuple[SourceFile, str, bool]:
    """Return the file with its digest, why its content is left out, and whether it contains a known secret."""
    digest, size = hashlib.sha256(), 0
    scan = SecretScan(redactor)
    reason, target = "", b""
    for piece in found.pieces():
        if found.mode == "120000":
            target += piece
        elif not size and names.begins_private_key(piece[:200]):
            reason = "it starts like a private key"
        digest.update(piece)
        size += len(piece)
        scan.feed(piece)
        if size > limit:
            raise refused(f"it is larger than {limit} bytes", path, "large files do not belong in a repository")
    if found.mode == "120000" and names.leads_out(path, target.decode("utf-8", "surrogateescape")):
        reason = "the link points outside the tree, or could through another link"
    if found.sha256 not in (None, digest.hexdigest()) or found.size not in (None, size):
        raise refused("its content differs from the recorded one", path, "verify the evidence or the workspace")
    return SourceFile(path, found.mode, size, digest.hexdigest(), found.pieces), reason, scan.found


def _refuse_clashes(files: list[SourceFile]) -> None:
    paths = {file.path for file in files}
    if len(paths) != len(files):
        raise refused("a path occurs twice", "", "create the archive again")
    for path in paths:
        above = path
        while "/" in above:
            above = above.rpartition("/")[0]
            if above in paths:
                raise refused("it is both a file and a directory", above, "create the archive again")


def refused(reason: str, path: str, hint: str = "") -> SourceRefused:
    shown: dict[str, Any] = path_fields(path)
    return SourceRefused(
        f"{printable(shown['path'])[:300]}: {reason}" if path else reason,
        op="deliver source",
        fix_hints=[hint] if hint else [],
        details=shown if path else {},
    )
