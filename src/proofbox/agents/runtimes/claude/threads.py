"""Threads that outlive a session: what proofbox must know to resume or fork them. Agents can't write to this store."""

from __future__ import annotations

import functools
import re
import uuid
from pathlib import Path

import msgspec

from proofbox.agents.runtimes.thread_store import StoredThreads
from proofbox.core.documents import stored
from proofbox.errors import UsageError

SCHEMA = "proofbox.claude_thread/1"
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAMESPACE = uuid.UUID("6f1f5a52-8f0e-4c1c-9a3b-5b6b6f1d7c11")


@functools.lru_cache(maxsize=1024)
def uuid_for(id: str) -> str:
    """Return the UUID for an id of proofbox. Claude Code accepts only UUIDs."""
    return str(uuid.uuid5(_NAMESPACE, id))


def is_uuid(text: str) -> bool:
    return _ID.fullmatch(text) is not None


@stored(SCHEMA, at="an agent's home/threads/THREAD.json, for Claude Code")
class ClaudeThread(msgspec.Struct, frozen=True):
    """A conversation with Claude Code. Its messages are in the program's own files."""

    id: str
    """The conversation's id, which is also the id of Claude Code's session and the name of the file."""
    folder: str = ""
    """The directory of the workspace that it works in; Claude Code finds a session only from there."""
    turns: dict[str, str] = {}
    """The id of each turn's last message in Claude Code's files."""
    forked_from: str = ""
    """The thread that this one was forked from; empty if it is not a fork."""
    forked_at: str = ""
    """The last message that the fork has of that thread; empty for all of it."""
    schema_version: str = SCHEMA

    def last_message(self, turn: str) -> str:
        if turn not in self.turns:
            raise UsageError(f"thread {self.id} has no turn {turn[:80]!r} with a message", op="thread")
        return self.turns[turn]


class ClaudeThreadStore(StoredThreads[ClaudeThread]):
    def __init__(self, home: Path | None) -> None:
        super().__init__(home, ClaudeThread, SCHEMA, is_uuid)
