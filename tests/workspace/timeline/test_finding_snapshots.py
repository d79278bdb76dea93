"""Finding snapshots reads each event of a shared store only once."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from proofbox.errors import SnapshotUnknown
from proofbox.workspace.model import Snapshot
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.timeline.history import History


class CountingStore(ObjectStore):
    """A store in memory that counts the events it returns."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.number = 1
        self.read = 0

    def add(self, id: str, message: str = "") -> None:
        at = "2026-01-01T00:00:00Z"
        made = Snapshot(id=id, parent=None, message=message, created_at=at, changed=0, method="scan", workspace="ws-1")
        self.stored.append(msgspec.json.encode(made))

    def events(self, *, newest_first: bool = False, since: int = 0) -> Iterator[bytes]:
        found = self.stored[since:]
        for event in found[::-1] if newest_first else found:
            self.read += 1
            yield event

    @property
    def events_position(self) -> tuple[int, int]:
        return self.number, len(self.stored)


@pytest.fixture
def store() -> CountingStore:
    store = CountingStore()
    for number in range(30):
        store.add(f"snapshot-{number}")
    return store


def test_alternating_searches_read_no_event_again(store: CountingStore) -> None:
    history = History(store, "ws-1")
    for name in ("snapshot-1", "snapshot-29"):
        assert history.find(name).id == name
    before = store.read
    for _ in range(5):
        assert history.find("snapshot-1").id == "snapshot-1"
        assert history.find("snapshot-29").id == "snapshot-29"
    assert store.read == before


def test_later_event_with_the_same_id_is_found(store: CountingStore) -> None:
    history = History(store, "ws-1")
    assert history.find("snapshot-1").message == ""
    store.add("snapshot-1", "again")
    assert history.find("snapshot-1").message == "again"


def test_snapshot_that_a_collection_removed_is_unknown(store: CountingStore) -> None:
    history = History(store, "ws-1")
    assert history.find("snapshot-1").id == "snapshot-1"
    store.number, store.stored = 2, store.stored[5:]
    with pytest.raises(SnapshotUnknown):
        history.find("snapshot-1")
