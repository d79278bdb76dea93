"""The events of one workspace, filtered from those of all workspaces that share a store."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from proofbox.errors import SnapshotUnknown, WorkspaceCorrupt
from proofbox.workspace.model import Snapshot
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.store.trees import entries_and_pages

_SHORTEST = 4
_MAX_KNOWN = 16


class History:
    """The history, oldest first. Reads from the store each time, because another process may have added events.

    Without a workspace's id, it is the history of all workspaces that use or used the store.
    """

    def __init__(self, store: ObjectStore, workspace_id: str | None) -> None:
        self._store = store
        self._workspace = workspace_id
        self._decode = msgspec.json.Decoder(Snapshot).decode
        self._head: tuple[tuple[int, int], Snapshot | None] = ((0, 0), None)
        self._found: dict[str, tuple[tuple[int, int], Snapshot]] = {}
        """Snapshots that were found by their ids, and how many events the store had then."""

    def __iter__(self) -> Iterator[Snapshot]:
        return self._own(self._store.events())

    def head(self) -> Snapshot | None:
        """Return the latest entry. Reads only the events added since the last call."""
        place, head = self._head
        now = self._store.events_position
        if place[0] != now[0]:
            place, head = (now[0], 0), None
        for snapshot in self._own(self._store.events(newest_first=True, since=place[1])):
            head = snapshot
            break
        self._head = now, head
        return head

    def find(self, name: str) -> Snapshot:
        """Find a snapshot by id, id prefix or HEAD. If several have the same id, return the latest."""
        if name == "HEAD" and (head := self.head()):
            return head
        found: dict[str, Snapshot] = {}
        if len(name) >= _SHORTEST:
            since, known = self._known(name)
            for each in self._own(self._store.events(newest_first=True, since=since)):
                if each.id == name:
                    known = each
                    break
                if each.id.startswith(name):
                    found.setdefault(each.id, each)
            if known is not None:
                if len(self._found) >= _MAX_KNOWN:
                    self._found.clear()
                self._found[name] = self._store.events_position, known
                return known
        if len(found) == 1:
            return next(iter(found.values()))
        reason = f"{len(found)} snapshots start with {name}" if found else f"there is no snapshot {name!r}"
        raise SnapshotUnknown(reason, op="workspace")

    def _known(self, id: str) -> tuple[int, Snapshot | None]:
        """Return the snapshot if it was found before, and the number of events that need not be read again.

        A template is forked by the same snapshot each time, an attempt compares the same two again and again, and their
        store has the events of all forks.
        """
        (generation, count), snapshot = self._found.get(id, ((0, 0), None))
        return (count, snapshot) if generation == self._store.events_position[0] else (0, None)

    def _own(self, events: Iterator[bytes]) -> Iterator[Snapshot]:
        for event in events:
            try:
                snapshot = self._decode(event)
            except msgspec.MsgspecError as error:
                raise WorkspaceCorrupt(f"malformed event: {error}", op="store") from error
            if self._workspace is None or snapshot.workspace == self._workspace:
                yield snapshot


def reachable(store: ObjectStore, tree: bytes, seen: set[bytes]) -> None:
    """Add everything a tree references to `seen`. Raises WorkspaceCorrupt if something is missing or damaged."""
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        entries, pages = entries_and_pages(store, each)
        for entry in entries.values():
            if entry.kind == "directory":
                waiting.append(entry.digest)
            elif entry.digest not in seen:
                store.size(entry.digest)
                seen.add(entry.digest)
        if each in store:
            seen.update((each, *pages))
