"""Items in progress: the members needed to report their end, with a limit on their number and size."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from proofbox.agents.runtimes.codex import fields, items
from proofbox.agents.runtimes.codex.fields import JsonObject
from proofbox.agents.runtimes.codex.items import PAYLOAD, Open

MAX_ITEMS = 1000
MAX_BYTES = 64 << 20
_KEPT = ("type", "command", "cwd", "tool", "name", "server", "namespace")

Key = tuple[str, str]
"""A thread and an item."""


class OpenItems:
    """The items in progress. If there are too many, or they are too large, the oldest are dropped."""

    def __init__(self) -> None:
        self._items: dict[Key, tuple[Open, int]] = {}
        self._size = 0

    def add(self, place: Open, id: str, item: JsonObject) -> Iterator[tuple[Key, Open]]:
        """Add an item. Yield the items that were dropped to make room."""
        kept, size = _needed(item)
        self.pop((place.thread, id))
        self._items[place.thread, id] = Open(place.thread, place.turn, kept), size
        self._size += size
        while len(self._items) > MAX_ITEMS or self._size > MAX_BYTES:
            key = next(iter(self._items))
            gone = self.pop(key)
            if gone is not None:
                yield key, gone

    def pop(self, key: Key) -> Open | None:
        opened, size = self._items.pop(key, (None, 0))
        self._size -= size
        return opened

    def get(self, key: Key) -> Open | None:
        return self._items.get(key, (None, 0))[0]

    def of(self, threads: Collection[str] | None = None, turn: str | None = None) -> list[tuple[Key, Open]]:
        """Return the items of some threads and of one turn. None: of any."""
        return [
            (key, opened)
            for key, (opened, _) in self._items.items()
            if (threads is None or opened.thread in threads) and turn in (None, opened.turn)
        ]


def _needed(item: JsonObject) -> tuple[JsonObject, int]:
    texts = {name: fields.cut(item, name, PAYLOAD) for name in _KEPT if name in item}
    paths = items.paths_of(item)
    return {**texts, "changes": [{"path": path} for path in paths]}, sum(map(len, texts.values())) + sum(
        len(path) + 300 for path in paths
    )
