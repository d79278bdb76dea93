"""Threads that outlive a session: what was said in each, turn by turn, in the agent's home."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from proofbox.core.documents import stored
from proofbox.errors import RuntimeProtocolError, UsageError

SCHEMA = "proofbox.thread/1"
_NAME = re.compile(r"thread-[0-9a-z]{26}")


class KeptTurn(msgspec.Struct, frozen=True):
    id: str
    """The turn's id."""
    told: tuple[str, ...]
    """The prompt, and what it was steered by."""
    status: str = "interrupted"
    """As long as it is under way it counts as interrupted: that is what it is, if nothing else is ever written."""


@stored(SCHEMA, at="a trial's home/threads/THREAD.json")
class Thread(msgspec.Struct, frozen=True):
    """A conversation that outlives its session: the memory of the scripted agent."""

    id: str
    """The conversation's id; its file has that name."""
    turns: tuple[KeptTurn, ...] = ()
    """Oldest first."""
    forked_from: str = ""
    """The thread whose first turns these are; empty: it is no fork."""
    schema_version: str = SCHEMA

    def with_turn(self, turn: KeptTurn) -> Thread:
        """The thread with this turn at its end, in place of an earlier state of the same turn."""
        before = self.turns[:-1] if self.turns and self.turns[-1].id == turn.id else self.turns
        return msgspec.structs.replace(self, turns=(*before, turn))

    def until(self, last_turn: str | None) -> tuple[KeptTurn, ...]:
        if last_turn is None:
            return self.turns
        ids = [turn.id for turn in self.turns]
        if last_turn not in ids:
            raise UsageError(f"thread {self.id} has no turn {last_turn[:80]!r}", op="thread")
        return self.turns[: ids.index(last_turn) + 1]

    def told(self) -> list[str]:
        return [text for turn in self.turns for text in turn.told]


class ThreadStore:
    """One document a thread."""

    def __init__(self, home: Path) -> None:
        self._directory = home / "threads"
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def save(self, thread: Thread) -> None:
        """Whole or not at all, whenever we are killed. Not synced: a thread is the agent's memory, and no evidence."""
        path = self._directory / f"{thread.id}.json"
        temporary = path.with_suffix(".tmp")  # a thread has one session at a time
        temporary.write_bytes(msgspec.json.encode(thread))
        os.replace(temporary, path)

    def load(self, id: str) -> Thread:
        """Raises `UsageError` for one that is not there, `RuntimeProtocolError` for one that can't be read."""
        path = self._directory / f"{id}.json"
        if not _NAME.fullmatch(id) or not path.is_file():
            raise UsageError(f"there is no thread {id[:80]!r} in this home", op="thread")
        try:
            thread = msgspec.json.decode(path.read_bytes(), type=Thread)
        except (OSError, msgspec.DecodeError) as error:
            raise RuntimeProtocolError(f"the thread {id} can't be read: {error}", op="thread") from None
        if thread.schema_version != SCHEMA:
            raise RuntimeProtocolError(f"the thread {id} has an unknown schema", op="thread")
        return thread
