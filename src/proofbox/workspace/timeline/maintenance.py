"""Verify a history, collect garbage in a store, and drop a history."""

from __future__ import annotations

import os

import msgspec

from proofbox.core.files.locks import locked
from proofbox.errors import WorkspaceCorrupt
from proofbox.workspace import registry
from proofbox.workspace.model import Collected, Forgotten, HistoryVerification, Snapshot
from proofbox.workspace.registry import REFS, Registration
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.timeline import effects
from proofbox.workspace.timeline.history import History, reachable
from proofbox.workspace.timeline.lower_trees import LowerTrees


def verify(registration: Registration, store: ObjectStore, history: History) -> HistoryVerification:
    """Check every byte against its digest, every tree's references, and the workspace's documents."""
    problems = store.damage()
    home = registry.home_of(registration.id)
    with store.use():
        snapshots: list[Snapshot] = []
        refs: dict[str, str] = {}
        live: set[bytes] = set()
        try:
            snapshots = list(history)
            refs = registry.read(home / REFS, dict[str, str]) or {}
            registry.registered(registration.path)
        except WorkspaceCorrupt as error:
            problems.append(error.message)
        for each in snapshots:
            try:
                reachable(store, bytes.fromhex(each.id), live)
            except (WorkspaceCorrupt, ValueError) as error:
                problems.append(f"snapshot {each.id}: {error}")
        problems += effects.problems(home, registration.id, snapshots)
        known = {each.id for each in snapshots}
        for name, snapshot_id in refs.items() if not problems else ():
            if snapshot_id not in known:
                problems.append(f"the name {name} refers to {snapshot_id}, which is not in the history")
    return HistoryVerification(
        sound=not problems, snapshots=len(snapshots), objects=len(live), problems=tuple(dict.fromkeys(problems))
    )


def forget(path: str | os.PathLike[str]) -> Forgotten:
    """Drop the history and the effect log of the workspace at a path. Files in the directory are kept.

    Content that its forks share remains stored.
    """
    registration = registry.registered_at(os.path.realpath(os.fspath(path)))
    with locked(registry.home_of(registration.id) / registry.LOCK):
        registry.forget(registration)
    registry.drop_store(registration.store)
    shared = registry.store_path(registration.store).exists()
    return Forgotten(workspace=registration.id, path=registration.path, shared=shared)


def collect(store: ObjectStore, history: History, named: set[str], keep: int | None) -> Collected:
    """Remove unreferenced content, and with `keep` older snapshots. The caller holds the store exclusively."""
    own = list(history)
    dropped = [each for each in (own[:-keep] if keep else []) if each.id not in named]
    dropped_events = {msgspec.json.encode(each) for each in dropped}
    events = [event for event in store.events() if event not in dropped_events]
    live: set[bytes] = set()
    for event in events:
        reachable(store, bytes.fromhex(msgspec.json.decode(event, type=Snapshot).id), live)
    objects, freed = store.keep_only(live, events)
    LowerTrees(store).evict(0)
    return Collected(snapshots_dropped=len(dropped), objects_dropped=objects, bytes_freed=freed)
