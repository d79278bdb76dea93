"""Threads that outlive a session: what proofbox must know to resume or fork them. Agents can't write to this store."""

from __future__ import annotations

from pathlib import Path

import msgspec

from proofbox.agents.runtimes.thread_store import StoredThreads
from proofbox.core.documents import stored
from proofbox.core.ids import is_id
from proofbox.errors import CapabilityUnsupported, UsageError

SCHEMA = "proofbox.acp_thread/1"


@stored(SCHEMA, at="an agent's home/threads/THREAD.json, for agents that speak ACP")
class AcpThread(msgspec.Struct, frozen=True):
    """A conversation with an agent that speaks ACP. Its messages are in the agent's own files."""

    id: str
    """The conversation's id, which is also the name of the file."""
    acp_session: str
    """The id that the agent gave to the conversation."""
    folder: str = ""
    """The directory of the workspace that it works in."""
    turns: tuple[str, ...] = ()
    """The ids of its turns, oldest first."""
    checkpoints: dict[str, str] = {}
    """For each turn that was followed by another: the agent's id of a copy of the conversation after that turn."""
    forked_from: str = ""
    """The thread that this one was forked from; empty if it is not a fork."""
    schema_version: str = SCHEMA

    def session_after(self, turn: str | None) -> str:
        """Return the agent's id of the conversation as it was after a turn; None: as it is now."""
        if turn is None or self.turns[-1:] == (turn,):
            return self.acp_session
        if turn in self.turns and turn not in self.checkpoints:
            raise CapabilityUnsupported(
                "the agent has no copy of the conversation after that turn",
                op="thread",
                fix_hints=["agents that can fork copy it before each further turn, unless checkpoints = false"],
                details={"missing": ["supports_thread_fork"]},
            )
        if turn not in self.checkpoints:
            raise UsageError(f"thread {self.id} has no turn {turn[:80]!r} to fork at", op="thread")
        return self.checkpoints[turn]


class AcpThreadStore(StoredThreads[AcpThread]):
    def __init__(self, home: Path | None) -> None:
        super().__init__(home, AcpThread, SCHEMA, lambda id: is_id(id, "thread"))
