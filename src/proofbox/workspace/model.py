"""What a workspace says about itself: frozen, and the same in code, in JSON and in the store."""

from __future__ import annotations

import base64
import os
from typing import Literal

import msgspec

Kind = Literal["added", "modified", "deleted", "renamed", "mode"]
Method = Literal["tracked", "scan", "sealed"]


def exact(path: str, path_b64: str | None) -> str:
    """The path that two members of a document mean, as Python gives file names."""
    return os.fsdecode(base64.b64decode(path_b64)) if path_b64 else path


class SkippedPath(msgspec.Struct, frozen=True, omit_defaults=True):
    """A path that is not in a snapshot, or was not put back, and why."""

    path: str
    reason: str
    path_b64: str | None = None


class EffectsHead(msgspec.Struct, frozen=True):
    """A position in a chained log: how many entries, and the digest that the last of them has in the chain."""

    count: int
    """How many entries."""
    digest: str
    """The SHA-256 of the last one's line; while there is none, the chain's origin."""


class SnapshotContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot keeps besides files, for whoever goes on from there."""

    cwd: str = ""
    env: dict[str, str] = {}
    effects_head: EffectsHead | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A state of the workspace. `id` names the tree; two snapshots of the same files have the same."""

    id: str
    """The digest of the tree; the same files have the same."""
    parent: str | None
    """The state before this one in this workspace's history."""
    message: str
    """What this state is, in the words of whoever took it."""
    created_at: str
    changed: int
    """How many paths differ from `parent`."""
    kind: Literal["snapshot", "rollback", "fork"] = "snapshot"
    """`rollback`: the files were put back. `fork`: with this the workspace began."""
    method: Method
    """How changes were found. `tracked` relies on the kernel's word, `scan` on the times of files. `sealed` is a scan
    that lists every directory and reads every file, and is on the disk when it returns."""
    workspace: str
    ignored: tuple[str, ...] = ()
    """The patterns of what is not part of it."""
    skipped: tuple[SkippedPath, ...] = ()
    """What could not be read or is no file, directory or link; a rollback leaves it alone."""
    unstable: tuple[SkippedPath, ...] = ()
    """Files that changed while they were read, each time: some moment's content, or a mix."""
    cwd: str = ""
    """For whoever goes on from here; empty: not given."""
    env: dict[str, str] = {}
    """Variables for whoever goes on from here."""
    effects_head: EffectsHead | None = None
    """The effect log's end at that moment: what is before it can't be changed unnoticed."""
    frozen: bool = False
    """Whether the box that works here was held still meanwhile."""
    overlap: int | None = None
    """How many commands of that box were alive while the files were looked at; None if no box was named."""


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One path that differs. `old_path` is where a renamed file was."""

    path: str
    kind: Kind
    """`mode`: the content is the same, its mode is not. `renamed`: the same content elsewhere."""
    type: Literal["file", "directory", "symlink"]
    """What it is, or was, if it is gone."""
    path_b64: str | None = None
    old_path: str | None = None
    old_path_b64: str | None = None
    """The exact bytes of `old_path`, where it is not UTF-8."""

    @property
    def exact_path(self) -> str:
        """As Python gives file names: `path`, unless that is only a rendering."""
        return exact(self.path, self.path_b64)

    @property
    def exact_old_path(self) -> str:
        """The same of where it was: of `old_path`, or of `path` where it has not moved."""
        return self.exact_path if self.old_path is None else exact(self.old_path, self.old_path_b64)


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What the files have that the latest snapshot has not."""

    workspace: str
    path: str
    head: str | None
    """The latest snapshot, or the one that was rolled back to."""
    changes: tuple[Change, ...]
    """What the files have that `head` has not."""
    skipped: tuple[SkippedPath, ...]
    """What no snapshot can hold: unreadable, or no file, directory or link."""
    ignored: tuple[str, ...]
    """The patterns of what is not part of the workspace."""
    refs: dict[str, str]
    """Names of snapshots, and the ids they stand for."""
    unfinished: str = ""
    """Why an interrupted rollback is still not finished."""


class RollbackResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollback did, and what it could not undo."""

    id: str
    before: str
    """The state that was left, in the history by its own: rolling back to it goes forward again."""
    restored: tuple[Change, ...]
    irreversible_effects: tuple[str, ...]
    warning: str
    left: tuple[SkippedPath, ...]
    """What is not as the snapshot has it: in no snapshot and in the way, or not ours to change."""


class HistoryVerification(msgspec.Struct, frozen=True, kw_only=True):
    sound: bool
    """There are no problems."""
    snapshots: int
    objects: int
    """Contents and trees that the snapshots need, each counted once."""
    problems: tuple[str, ...]


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    snapshots_dropped: int
    """Entries of this history that are gone."""
    objects_dropped: int
    """Contents and trees that no snapshot needed."""
    bytes_freed: int
    """Of the store's files."""


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace whose history was dropped."""

    workspace: str
    path: str
    shared: bool
    """Whether what it recorded is still stored, because forks of it share the store or a process is using it."""
