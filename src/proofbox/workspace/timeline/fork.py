"""Create a workspace from a snapshot of another. It appears atomically, and shares the other's store."""

from __future__ import annotations

import os
import secrets

import msgspec

from proofbox.core.clock import Clock, isoformat
from proofbox.core.files.atomic import TEMPORARY_PREFIX
from proofbox.core.files.removal import remove_tree
from proofbox.core.ids import IdSource
from proofbox.errors import WorkspaceExists, WorkspacePathRefused
from proofbox.workspace import registry
from proofbox.workspace.identity import identity_of
from proofbox.workspace.model import Snapshot
from proofbox.workspace.registry import Registration
from proofbox.workspace.scanning.scanner import settle
from proofbox.workspace.scanning.working_tree import Known
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.timeline.new_tree import write_new
from proofbox.workspace.tree import Directory

ELSEWHERE = "mounted"
"""In place of a directory's identity: other processes see an empty directory, which is not the workspace."""


def make_fork(
    store: ObjectStore,
    origin: Registration,
    source: Snapshot,
    dest: str | os.PathLike[str],
    clock: Clock,
    known: Directory | None = None,
    *,
    temporary: bool = False,
) -> tuple[Registration, Known]:
    """Write the files of `source`, start a history with it, and register it. The caller holds the store's `use`.

    If the state of the files is `known` already, the directory stays empty, and the caller mounts them there.
    A `temporary` fork is not registered.
    """
    path = os.path.realpath(os.fspath(dest))
    existed = os.path.lexists(path)
    if existed and (not os.path.isdir(path) or os.listdir(path)):
        raise WorkspacePathRefused(f"{path} is not empty", op="workspace fork", fix_hints=["choose a new directory"])
    registry.refuse_own_state(path)
    if existed and registry.is_registered(path):
        hints = ["choose a new directory"]
        raise WorkspaceExists(f"{path} is already a workspace", op="workspace fork", fix_hints=hints)
    making = os.path.join(os.path.dirname(path), TEMPORARY_PREFIX + secrets.token_hex(8))
    os.mkdir(making, 0o755)
    try:
        if known is None:
            directory = write_new(store, making, bytes.fromhex(source.id))
            settle(directory, making)
        else:
            directory = known
        created_at = isoformat(clock.now())
        new = Registration(
            *(IdSource(clock).new_id("ws"), origin.store, os.fsencode(path).hex(), origin.ignore, created_at),
            identity=identity_of(making) if known is None else ELSEWHERE,
        )
        event = msgspec.structs.replace(
            source,
            kind="fork",
            parent=source.id,
            message=f"fork of {origin.id}",
            created_at=created_at,
            changed=0,
            workspace=new.id,
            effects_head=None,
        )
        store.commit(msgspec.json.encode(event))
        os.rename(making, path)
    except BaseException:
        remove_tree(making)
        raise
    # Register last: if killed before this, an ordinary directory remains, never a workspace without a directory.
    if not temporary:
        registry.register(new, replace=not existed)
    return new, (directory, store.position)
