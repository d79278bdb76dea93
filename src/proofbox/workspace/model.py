"""What a workspace says about itself: frozen, and the same in code, in JSON and in the store."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["added", "modified", "deleted", "renamed", "mode"]
Method = Literal["tracked", "scan", "sealed"]


class Left(msgspec.Struct, frozen=True, omit_defaults=True):
    """A path that is not in a snapshot, or was not put back, and why."""

    path: str
    reason: str
    path_b64: str | None = None


class EffectsHead(msgspec.Struct, frozen=True):
    """A position in a chained log: how many entries, and the digest that the last of them has in the chain."""

    count: int
    digest: str


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A state of the workspace. `id` names the tree; two snapshots of the same files have the same."""

    id: str
    parent: str | None
    """The state before this one in this workspace's history."""
    message: str
    created_at: str
    changed: int
    """How many paths differ from `parent`."""
    kind: Literal["snapshot", "rollback", "fork"] = "snapshot"
    method: Method
    """How changes were found. `tracked` relies on the kernel's word, `scan` on the times of files, `sealed` is a scan
    that lists every directory anew, and is on the disk when it returns."""
    workspace: str
    ignored: tuple[str, ...] = ()
    """The patterns of what is not part of it."""
    skipped: tuple[Left, ...] = ()
    """What could not be read or is no file, directory or link; a rollback leaves it alone."""
    unstable: tuple[Left, ...] = ()
    """Files that changed while they were read, each time: some moment's content, or a mix."""
    cwd: str = ""
    env: dict[str, str] = {}
    effects_position: int = 0
    """How many effects were logged before it."""
    effects_head: EffectsHead | None = None
    """The effect log's end at that moment: what is before it can't be changed unnoticed."""


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One path that differs. `old_path` is where a renamed file was."""

    path: str
    kind: Kind
    type: Literal["file", "directory", "symlink"]
    path_b64: str | None = None
    old_path: str | None = None
    old_path_b64: str | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    workspace: str
    path: str
    head: str | None
    """The latest snapshot, or the one that was rolled back to."""
    changes: tuple[Change, ...]
    """What the files have that `head` has not."""
    skipped: tuple[Left, ...]
    ignored: tuple[str, ...]
    refs: dict[str, str]


class RollbackResult(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    before: str
    """The state that was left, in the history by its own: rolling back to it goes forward again."""
    restored: tuple[Change, ...]
    irreversible_effects: tuple[str, ...]
    warning: str
    left: tuple[Left, ...]
    """What is not part of any snapshot and stood in the way: it is still there."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    sound: bool
    snapshots: int
    objects: int
    problems: tuple[str, ...]


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    snapshots_dropped: int
    objects_dropped: int
    bytes_freed: int
