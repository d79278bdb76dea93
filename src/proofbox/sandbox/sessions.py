"""Sessions that outlive the process that made them: one directory each in the user's state directory, mode 0700.

    sessions/<id>/session.json   what a client must know to use it
                  box/sock       where its box agent listens; all of the session that a box may see
                  agent.log      what its programs said
                  network.jsonl  what its allowlist decided, where it has one

Whether a session runs is asked of its socket, never read from the record: a record can't know that its box has died.
A box ends by `stop`, by its own idle TTL, or with the machine; its record stays, as a tombstone, until it is pruned.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any, Literal

import msgspec

from proofbox.core.documents import stored
from proofbox.core.files.atomic import write_document
from proofbox.core.files.removal import remove_tree
from proofbox.core.ids import is_id
from proofbox.errors import PathRefused, ProofboxError, SandboxLost, SessionUnknown
from proofbox.sandbox.box_handle import BoxHandle
from proofbox.sandbox.contract import Isolation, Policy
from proofbox.sandbox.host.unix_sockets import connect_at

PREFIX = "ses"
SCHEMA = "proofbox.session_record/1"
State = Literal["running", "stopped", "lost"]


class SessionInfo(msgspec.Struct, frozen=True):
    """What anyone may know of a session."""

    id: str
    """What other commands of `session` take."""
    provider: str
    isolation: Isolation
    state: State
    """Asked of its box. `stopped`: by whoever stopped it. `lost`: idle for too long, killed, or gone with the
    machine."""
    created_at: str
    project: str
    policy: Policy
    detached: bool
    ttl: float | None

    @classmethod
    def of(cls, id: str, created_at: str, inside: BoxHandle, state: State, *, ttl: float | None) -> SessionInfo:
        """With a ttl it is detached: it outlives its client."""
        return cls(
            id=id,
            provider=inside.provider,
            isolation=inside.isolation,
            state=state,
            created_at=created_at,
            project=str(inside.project),
            policy=inside.policy,
            detached=ttl is not None,
            ttl=ttl,
        )


@stored(SCHEMA, at="STATE/sessions/SESSION/session.json")
class SessionRecord(msgspec.Struct, frozen=True):
    """A session that outlives its client: where its box is, and how it was asked for."""

    id: str
    """The session's; its directory has that name."""
    created_at: str
    ttl: float
    inside: BoxHandle
    """What a client must know of its box."""
    holder: str = ""
    """The process that holds the box: boot, pid namespace, pid and start. Empty: an engine's container is the box."""
    stopped: bool = False
    """Whoever stopped it said so; that it runs, only its socket says."""
    schema_version: str = SCHEMA

    def info(self, state: State) -> SessionInfo:
        return SessionInfo.of(self.id, self.created_at, self.inside, state, ttl=self.ttl)

    def explain_loss(self, error: ProofboxError, greeted: bool) -> ProofboxError:  # noqa: ARG002 (as `Opened` has it)
        return self.inside.annotate(error)


class SessionStore:
    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, id: str) -> Path:
        """Make the session's directory; the directory its box will listen in."""
        directory = self._sockets(id)
        directory.parent.mkdir(parents=True, mode=0o700)  # the mode is the last directory's alone
        directory.mkdir(mode=0o700)
        return directory

    def log(self, id: str) -> Path:
        return self._root / id / "agent.log"

    def network_log(self, id: str) -> Path:
        """What its allowlist decided, where it has one."""
        return self._root / id / "network.jsonl"

    def save(self, record: SessionRecord) -> None:
        try:
            data = msgspec.json.encode(record, enc_hook=_encode)
        except UnicodeEncodeError:
            raise PathRefused(
                "a session that outlives its client needs paths in UTF-8",
                op="session start",
                fix_hints=["rename the project's directory, or use exec"],
            ) from None
        write_document(self._root / record.id / "session.json", data, mode=0o600)

    def load(self, id: str) -> SessionRecord:
        if is_id(id, PREFIX):  # an id becomes a path: nothing else may
            with contextlib.suppress(OSError, msgspec.MsgspecError, RecursionError):
                data = (self._root / id / "session.json").read_bytes()
                record = msgspec.json.decode(data, type=SessionRecord, dec_hook=_decode)
                if record.schema_version == SCHEMA and record.id == id:
                    return record
        raise SessionUnknown(
            f"no session is called {id[:80]!r}",
            op="session",
            details={"session": id[:80]},
        )

    def records(self) -> list[SessionRecord]:
        found = []
        with contextlib.suppress(OSError):
            for entry in sorted(os.listdir(self._root)):
                with contextlib.suppress(SessionUnknown):
                    found.append(self.load(entry))
        return found

    def connect(self, id: str) -> socket.socket:
        """A stream to its box agent, or `SandboxLost` if there is none any more."""
        try:
            return connect_at(self._sockets(id))
        except OSError as error:
            raise SandboxLost(
                f"session {id} has ended: its box no longer answers",
                op="session",
                fix_hints=["start another: proofbox session start", "see its log: " + str(self.log(id))],
                details={"session": id, "cause": str(error)},
            ) from None

    def info(self, record: SessionRecord) -> SessionInfo:
        """The record, with the state its socket tells."""
        return record.info("running" if self.running(record.id) else "stopped" if record.stopped else "lost")

    def running(self, id: str) -> bool:
        with contextlib.suppress(SandboxLost):
            self.connect(id).close()
            return True
        return False

    def forget(self, id: str) -> None:
        remove_tree(self._root / id)

    def _sockets(self, id: str) -> Path:
        return self._root / id / "box"

    def leftovers(self) -> list[str]:
        """Directories whose start was interrupted before there was a record; nothing listens there."""
        known = {record.id for record in self.records()}
        with contextlib.suppress(OSError):
            return [e for e in os.listdir(self._root) if is_id(e, PREFIX) and e not in known and not self.running(e)]
        return []


def _encode(value: object) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value).__name__)


def _decode(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(kind.__name__)
