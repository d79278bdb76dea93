"""Threads that outlive a session: the texts sent to the agent in each turn, stored in the agent's home."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from proofbox.agents.runtimes.thread_store import StoredThreads
from proofbox.core.documents import stored
from proofbox.errors import UsageError

SCHEMA = "proofbox.thread/1"
_NAME = re.compile(r"thread-[0-9a-z]{26}")


class KeptTurn(msgspec.Struct, frozen=True):
    id: str
    """The turn's id."""
    told: tuple[str, ...]
    """The prompt, followed by the steering texts."""
    status: str = "interrupted"
    """A turn in progress is stored as interrupted, so that the status is correct if proofbox is killed."""


@stored(SCHEMA, at="an agent's home/threads/THREAD.json")
class Thread(msgspec.Struct, frozen=True):
    """A stored conversation of the scripted agent."""

    id: str
    """The conversation's id, which is also the name of its file."""
    turns: tuple[KeptTurn, ...] = ()
    """Oldest first."""
    forked_from: str = ""
    """The thread that this one was forked from; empty if it is not a fork."""
    schema_version: str = SCHEMA

    def with_turn(self, turn: KeptTurn) -> Thread:
        """Return the thread with this turn appended, or replaced if it is already the last one."""
        before = self.turns[:-1] if self.turns and self.turns[-1].id == turn.id else self.turns
        return msgspec.structs.replace(self, turns=(*before, turn))

    def until(self, last_turn: str | None) -> tuple[KeptTurn, ...]:
        if last_turn is None:
            return self.turns
        ids = [turn.id for turn in self.turns]
        if last_turn not in ids:
            raise UsageError(f"thread {self.id} has no turn {last_turn[:80]!r}", op="thread")
        return self.turns[: ids.index(last_turn) + 1]

    def messages(self) -> list[str]:
        return [text for turn in self.turns for text in turn.told]


class ThreadStore(StoredThreads[Thread]):
    def __init__(self, home: Path | None) -> None:
        super().__init__(home, Thread, SCHEMA, lambda id: _NAME.fullmatch(id) is not None)
