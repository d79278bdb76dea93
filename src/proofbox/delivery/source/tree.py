"""What is to be delivered: a tree of files by path, mode, size and digest, whose bytes are read when they are sent.

    with open_source("out/app.zip") as tree:
        tree.files, tree.left_out

A source is a directory, a zip archive, a snapshot of a workspace, or the final snapshot in an attempt's bundle. Bytes
are never touched. What looks like a secret is left out and listed; a file that holds a secret this process knows stops
everything; a name or an archive that is not safe is refused, never skipped.
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
    """Of a member's size to what it takes in an archive, for members beyond a megabyte."""


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
    """A file as a kind of source finds it. What is not known yet is found by reading it."""

    path: str
    mode: Mode
    pieces: Pieces
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class SourceTree:
    """Files in the order of their paths' bytes."""

    kind: str
    files: tuple[SourceFile, ...]
    left_out: tuple[LeftOut, ...]
    withheld: tuple[TreeEntry, ...] = ()
    """The entries of those in `left_out` that were left out for their content, not for their name."""

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The `tree_manifest.json` of the files that are sent."""
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
    """The tree at `path`. `snapshot` names one of a workspace; `root` is a directory inside, to be the tree's top.

    The files can be read as long as the block lasts.
    """
    # Imported here: each kind of source brings its own, and one is used.
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
            raise refused("it is neither a directory, a zip archive nor a bundle", place, "check --source")
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
            raise refused(f"no repository can hold it: {wrong}", path, "rename or remove it")
        files.append(file)
        if holds_secret:
            secrets.append(path)
        total += file.size
        if len(files) > limits.files or total > limits.total_bytes:
            raise refused(f"the source has more than {limits.files} files or {limits.total_bytes} bytes", path)
    if secrets:
        raise DeliverySecretFound(
            f"{secrets[0]} holds a secret that this process knows"
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
    """Why a file with this path is left out of every delivery whatever its content, or nothing."""
    if names.is_git(path):
        return "it is git's own"
    if names.looks_secret(path):
        return "its name is one that secrets are kept under"
    return ""


def _read(path: str, found: FoundFile, redactor: Redactor, limit: int) -> tuple[SourceFile, str, bool]:
    """The file with its digest, why its content keeps it out of a delivery, and whether it holds a known secret."""
    digest, size = hashlib.sha256(), 0
    scan = SecretScan(redactor)
    reason, target = "", b""
    for piece in found.pieces():
        if found.mode == "120000":
            target += piece
        elif not size and names.begins_private_key(piece[:200]):
            reason = "it begins as a private key does"
        digest.update(piece)
        size += len(piece)
        scan.feed(piece)
        if size > limit:
            raise refused(f"it is larger than {limit} bytes", path, "large files don't belong in a repository")
    if found.mode == "120000" and names.leads_out(path, target.decode("utf-8", "surrogateescape")):
        reason = "the link leads out of the tree, or could by another one"
    if found.sha256 not in (None, digest.hexdigest()) or found.size not in (None, size):
        raise refused("its bytes are not those that were recorded", path, "verify the evidence or the workspace")
    return SourceFile(path, found.mode, size, digest.hexdigest(), found.pieces), reason, scan.found


def _refuse_clashes(files: list[SourceFile]) -> None:
    paths = {file.path for file in files}
    if len(paths) != len(files):
        raise refused("a path is there twice", "", "make the archive anew")
    for path in paths:
        above = path
        while "/" in above:
            above = above.rpartition("/")[0]
            if above in paths:
                raise refused("it is a file and a directory at once", above, "make the archive anew")


def refused(reason: str, path: str, hint: str = "") -> SourceRefused:
    shown: dict[str, Any] = path_fields(path)
    return SourceRefused(
        f"{printable(shown['path'])[:300]}: {reason}" if path else reason,
        op="deliver source",
        fix_hints=[hint] if hint else [],
        details=shown if path else {},
    )
