"""Track which of the caller's threads each thread belongs to. Sub-agents work in separate threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from proofbox.agents.runtimes.codex import fields

MAX_SUB_AGENTS = 10_000
"""Limits memory, because Codex may create any number of threads. Threads beyond the limit have no known owner."""


class Lineage:
    """The threads that the caller started, and the sub-agents below each of them.

    The parent of a thread is recorded once and never replaced, so that an agent can't claim the thread of another.
    """

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}
        self._sub_agents = 0

    def start(self, thread: str) -> None:
        """Add a thread that the caller started."""
        self._parents[thread] = ""

    def adopt(self, thread: str, parent: str) -> None:
        is_new = bool(thread) and thread not in self._parents
        if is_new and parent in self._parents and self._sub_agents < MAX_SUB_AGENTS:
            self._sub_agents += 1
            self._parents[thread] = parent

    def owner(self, thread: str) -> str:
        """Return the caller's thread that this one belongs to: itself or an ancestor. Empty: unknown."""
        while parent := self._parents.get(thread, ""):
            thread = parent
        return thread if thread in self._parents else ""

    def family(self, owner: str) -> list[str]:
        """Return a thread of the caller and those of all its sub-agents."""
        return [thread for thread in self._parents if self.owner(thread) == owner]

    def update(self, method: str, params: Any, thread_of: Callable[[str], str]) -> None:
        """Record the sub-agents that a notification names. `thread_of` returns the thread of a known turn."""
        for thread, parent in _named(method, params if isinstance(params, dict) else {}, thread_of):
            self.adopt(thread, parent)


def _named(method: str, members: dict[str, Any], thread_of: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    if method == "turn/started":
        yield fields.id(members, "threadId"), thread_of(fields.id(fields.inner(members, "turn"), "rootTurnId"))
    elif method == "thread/started":
        thread = fields.inner(members, "thread")
        yield fields.id(thread), fields.id(thread, "parentThreadId")
    elif method in ("item/started", "item/completed"):
        parent, item = fields.id(members, "threadId"), fields.inner(members, "item")
        kind = fields.text(item, "type")
        if kind == "collabAgentToolCall" and isinstance(item.get("receiverThreadIds"), list):
            yield from ((fields.id({"id": each}), parent) for each in item["receiverThreadIds"])
        elif kind == "subAgentActivity":
            yield fields.id(item, "agentThreadId"), parent
