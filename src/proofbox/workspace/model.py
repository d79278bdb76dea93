"""Data types of workspaces: frozen, and identical in Python, in JSON and in the store."""

from __future__ import annotations

import base64
import os
from typing import Literal

import msgspec

Kind = Literal["added", "modified", "deleted", "renamed", "mode"]
Method = Literal["tracked", "scan", "sealed"]


def exact(path: str, path_b64: str | None) -> str:
    """Return the exact path, as Python represents file names, from its text and its optional base64 bytes."""
    return os.fsdecode(base64.b64decode(path_b64)) if path_b64 else path


class SkippedPath(msgspec.Struct, frozen=True, omit_defaults=True):
    """A path that was not included in a snapshot or not restored, and the reason."""

    path: str
    reason: str
    path_b64: str | None = None


class EffectsHead(msgspec.Struct, frozen=True):
    """A position in a hash-chained log: the number of entries and the digest of the last one."""

    count: int
    """Number of entries."""
    digest: str
    """SHA-256 of the last entry's line, or the chain's origin if the log is empty."""


class SnapshotContext(msgspec.Struct, frozen=True, kw_only=True):
    """Settings stored with a snapshot, to be used by the next process that continues from it."""

    cwd: str = ""
    env: dict[str, str] = {}
    effects_head: EffectsHead | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A state of the workspace. `id` is the tree id, so snapshots of identical files have the same id."""

    id: str
    """Digest of the tree. Identical files have the same digest."""
    parent: str | None
    """The previous state in this workspace's history."""
    message: str
    """Description given by the caller."""
    created_at: str
    changed: int
    """Number of paths that differ from `parent`."""
    kind: Literal["snapshot", "rollback", "fork"] = "snapshot"
    """`rollback`: the files were restored. `fork`: the first entry of a forked workspace."""
    method: Method
    """How changes were found. `tracked` relies on kernel notifications, `scan` on file timestamps. `sealed` is a scan
    that lists every directory, reads every file and syncs the snapshot to disk before it returns."""
    workspace: str
    ignored: tuple[str, ...] = ()
    """Patterns of paths that are excluded."""
    skipped: tuple[SkippedPath, ...] = ()
    """Paths that could not be read or are not a file, directory or link. A rollback does not touch them."""
    unstable: tuple[SkippedPath, ...] = ()
    """Files that kept changing while they were read. Their content is from some moment, or mixed."""
    cwd: str = ""
    """Working directory to continue in. Empty if not given."""
    env: dict[str, str] = {}
    """Environment variables to continue with."""
    effects_head: EffectsHead | None = None
    """End of the effect log at that moment. Later changes to earlier entries are detected."""
    frozen: bool = False
    """Whether the box that uses the workspace was frozen during the snapshot."""
    overlap: int | None = None
    """Number of commands of that box that were running during the scan. None if no box was given."""


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One path that differs. `old_path` is the previous path of a renamed file."""

    path: str
    kind: Kind
    """`mode`: same content, different mode. `renamed`: same content at a different path."""
    type: Literal["file", "directory", "symlink"]
    """The type of the entry. For a deleted entry, its previous type."""
    path_b64: str | None = None
    old_path: str | None = None
    old_path_b64: str | None = None
    """The exact bytes of `old_path`, if it is not UTF-8."""

    @property
    def exact_path(self) -> str:
        """The exact path as Python represents file names. `path` may only be a printable rendering of it."""
        return exact(self.path, self.path_b64)

    @property
    def exact_old_path(self) -> str:
        """The exact previous path: `old_path`, or `path` if the entry was not renamed."""
        return self.exact_path if self.old_path is None else exact(self.old_path, self.old_path_b64)


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between the files and the latest snapshot."""

    workspace: str
    path: str
    head: str | None
    """The latest snapshot, or the target of the latest rollback."""
    changes: tuple[Change, ...]
    """Differences between `head` and the files."""
    skipped: tuple[SkippedPath, ...]
    """Paths that no snapshot can contain: unreadable, or not a file, directory or link."""
    ignored: tuple[str, ...]
    """Patterns of paths that are excluded from the workspace."""
    refs: dict[str, str]
    """Snapshot ids by reference name."""
    unfinished: str = ""
    """Why an interrupted rollback could not be completed yet."""


class RollbackResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollback changed, and what it could not undo."""

    id: str
    before: str
    """The state before the rollback, recorded in the history. Roll back to it to undo the rollback."""
    restored: tuple[Change, ...]
    irreversible_effects: tuple[str, ...]
    warning: str
    left: tuple[SkippedPath, ...]
    """Paths that still differ from the snapshot: not in any snapshot and in the way, or not permitted to change."""


class HistoryVerification(msgspec.Struct, frozen=True, kw_only=True):
    sound: bool
    """True if no problems were found."""
    snapshots: int
    objects: int
    """Contents and trees that the snapshots reference, each counted once."""
    problems: tuple[str, ...]


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    snapshots_dropped: int
    """Entries removed from this history."""
    objects_dropped: int
    """Contents and trees that no snapshot referenced."""
    bytes_freed: int
    """Freed space in the store's files."""


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace whose history was dropped."""

    workspace: str
    path: str
    shared: bool
    """Whether its recorded content is still stored, because forks share the store or a process is using it."""
