"""Threads that outlive a session: what proofbox must know to resume or fork them. Agents can't write to this store."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

import msgspec

from proofbox.core.documents import require_version, stored
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import RuntimeProtocolError, UsageError

SCHEMA = "proofbox.claude_thread/1"
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAMESPACE = uuid.UUID("6f1f5a52-8f0e-4c1c-9a3b-5b6b6f1d7c11")


def uuid_for(id: str) -> str:
    """Return the UUID for an id of proofbox. Claude Code accepts only UUIDs."""
    return str(uuid.uuid5(_NAMESPACE, id))


def is_uuid(text: str) -> bool:
    return _ID.fullmatch(text) is not None


@stored(SCHEMA, at="a trial's home/threads/THREAD.json, for Claude Code")
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


class ClaudeThreadStore:
    """Stores one JSON document per thread."""

    def __init__(self, home: Path) -> None:
        self._directory = home / "threads"
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def save(self, thread: ClaudeThread) -> None:
        """Write the thread atomically. No fsync: a thread is the agent's memory, not evidence."""
        path = self._directory / f"{thread.id}.json"
        temporary = path.with_suffix(".tmp")  # a thread has one session at a time
        temporary.write_bytes(msgspec.json.encode(thread))
        os.replace(temporary, path)

    def load(self, id: str) -> ClaudeThread:
        """Load a thread. Raises `UsageError` if it does not exist, `RuntimeProtocolError` if it can't be read."""
        path = self._directory / f"{id}.json"
        if not is_uuid(id) or not path.is_file():
            raise UsageError(f"thread {id[:80]!r} does not exist in this home", op="thread")
        try:
            data = path.read_bytes()
            require_version(data, SCHEMA, path)
            return parse_json(data, ClaudeThread)
        except (OSError, msgspec.DecodeError) as error:
            raise RuntimeProtocolError(f"can't read thread {id}: {error}", op="thread") from None
