"""Ids of items that are unique in their thread, regardless of the ids that an agent gives its calls."""

from __future__ import annotations

from typing import Final

REMEMBERED: Final = 20_000
"""Maximum number of ids that are remembered. After that, every item gets a number."""
_SEPARATOR: Final = "#"


class ItemIds:
    """Gives every call of a thread its own id: the agent's, or the agent's with the number of the call.

    Without a separator, an id is used once. With one, it ends in a number that no other call of the thread has. So an
    agent cannot choose an id that another of its calls already has.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._count = 0

    def next(self, given: str) -> str:
        """Return the id for a new call whose id from the agent is `given`."""
        self._count += 1
        if given in self._used or _SEPARATOR in given or len(self._used) >= REMEMBERED:
            return f"{given}{_SEPARATOR}{self._count}"
        self._used.add(given)
        return given
