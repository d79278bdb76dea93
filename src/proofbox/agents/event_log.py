"""The entries of `events.jsonl`, which leave out what the entry before them says.

`session`, `thread` and `turn` are absent if they are the same as in the entry before, and `number` if it is one more.
Before the first entry, the three are empty and the number is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

_PLACE = ("session", "thread", "turn")


class EntryShortener:
    """Shortens the entries of one log, in order."""

    def __init__(self) -> None:
        self._place = dict.fromkeys(_PLACE, "")
        self._number = 0

    def shorten(self, entry: dict[str, Any]) -> dict[str, Any]:
        place = {name: entry.pop(name, "") for name in _PLACE}
        number = entry.pop("number")
        entry |= {name: value for name, value in place.items() if value != self._place[name]}
        if number != self._number + 1:
            entry["number"] = number
        self._place, self._number = place, number
        return entry


def completed(entries: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Add its session, thread, turn and number to each entry of a log, and yield it."""
    session = thread = turn = ""
    number = 0
    for entry in entries:
        session = entry.setdefault("session", session)
        thread = entry.setdefault("thread", thread)
        turn = entry.setdefault("turn", turn)
        number = entry.setdefault("number", number + 1)
        yield entry
