"""Sessions that outlive the process that started them: one directory each in the user's state directory, mode 0700.

    sessions/<id>/session.json   the record that a client needs to use it
                  box/sock       the socket of its box agent; the only part of the session that its box can see
                  agent.log      stderr of its programs
                  network.jsonl  decisions of its allowlist, if it has one

Whether a session runs is determined by connecting to its socket, never from the record: a record can't show that its
box has died. A box ends by `stop`, by its idle TTL, or with the machine. Its record is kept until it is pruned.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any, Literal

import msgspec

from proofbox.core.dirs import state_dir
from proofbox.core.documents import require_version, stored
from proofbox.core.files.atomic import write_document
from proofbox.core.ids import is_id
from proofbox.errors import PathRefused, ProofboxError, SandboxLost, SessionUnknown, VersionUnknown
from proofbox.sandbox.box_handle import BoxHandle
from proofbox.sandbox.contract import Isolation, Policy
from proofbox.sandbox.host import cgroups
from proofbox.sandbox.host.processes import kill_group_of
from proofbox.sandbox.host.unix_sockets import connect_at

PREFIX = "ses"
SCHEMA = "proofbox.session_record/1"
State = Literal["running", "stopped", "lost"]


class SessionInfo(msgspec.Struct, frozen=True):
    """Public information about a session."""

    id: str
    """The id that the `session` commands take."""
    provider: str
    isolation: Isolation
    state: State
    """Determined by connecting to its box. `stopped`: by a client. `lost`: the idle time was exceeded, the box was
    killed, or the machine restarted."""
    created_at: str
    project: str
    policy: Policy
    detached: bool
    ttl: float | None

    @classmethod
    def of(cls, id: str, created_at: str, inside: BoxHandle, state: State, *, ttl: float | None) -> SessionInfo:
        """Describe a session. A session with a ttl is detached: it outlives its client."""
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
    """A session that outlives its client: where its box is, and which policy was requested."""

    id: str
    """The session's id, also the name of its directory."""
    created_at: str
    ttl: float
    inside: BoxHandle
    """The information that a client needs to use the box."""
    holder: str = ""
    """The process that holds the box: boot, pid namespace, pid and start time. Empty if the box is a container."""
    stopped: bool = False
    """A client stopped it. Only its socket shows whether it is running."""
    schema_version: str = SCHEMA

    def info(self, state: State) -> SessionInfo:
        return SessionInfo.of(self.id, self.created_at, self.inside, state, ttl=self.ttl)

    def explain_loss(self, error: ProofboxError, greeted: bool) -> ProofboxError:  # noqa: ARG002 (same as `OpenedBox`)
        return self.inside.add_diagnostics(error)


class SessionStore:
    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, id: str) -> Path:
        """Create the session's directory; return the directory for the socket of its box."""
        directory = self._sockets(id)
        directory.parent.mkdir(parents=True, mode=0o700)  # the mode applies to the last directory only
        directory.mkdir(mode=0o700)
        return directory

    def log(self, id: str) -> Path:
        return self._root / id / "agent.log"

    def network_log(self, id: str) -> Path:
        """The log of its allowlist's decisions."""
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
        if is_id(id, PREFIX):  # the id becomes part of a path
            with contextlib.suppress(OSError, msgspec.MsgspecError, RecursionError):
                path = self._root / id / "session.json"
                data = path.read_bytes()
                require_version(data, SCHEMA, path)
                record = msgspec.json.decode(data, type=SessionRecord, dec_hook=_decode)
                if record.id == id:
                    return record
        raise SessionUnknown(
            f"unknown session {id[:80]!r}",
            op="session",
            details={"session": id[:80]},
        )

    def records(self) -> list[SessionRecord]:
        found = []
        with contextlib.suppress(OSError):
            for entry in sorted(os.listdir(self._root)):
                with contextlib.suppress(SessionUnknown, VersionUnknown):
                    found.append(self.load(entry))
        return found

    def connect(self, id: str) -> socket.socket:
        """Connect to its box agent; raise `SandboxLost` if the box has ended."""
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
        """Return the record's information, with the current state of its box."""
        return record.info("running" if self.running(record.id) else "stopped" if record.stopped else "lost")

    def running(self, id: str) -> bool:
        with contextlib.suppress(SandboxLost):
            self.connect(id).close()
            return True
        return False

    def forget(self, id: str) -> None:
        from proofbox.core.files.removal import remove_tree

        remove_tree(self._root / id)

    def _sockets(self, id: str) -> Path:
        return self._root / id / "box"

    def leftovers(self) -> list[str]:
        """Return the directories left by starts that were interrupted before the record was written."""
        known = {record.id for record in self.records()}
        with contextlib.suppress(OSError):
            return [e for e in os.listdir(self._root) if is_id(e, PREFIX) and e not in known and not self.running(e)]
        return []


def session_store() -> SessionStore:
    return SessionStore(state_dir() / "sessions")


def kill_detached(record: SessionRecord) -> None:
    """Kill the box of a detached session whose agent does not answer, through its process group or its engine."""
    if record.holder:
        cgroups.sweep(cgroups.tree(), record.id)
        kill_group_of(record.holder)
        return
    from proofbox.sandbox.containers.engine import ContainerEngine
    from proofbox.sandbox.containers.ownership import kill_container, our_containers

    engine = ContainerEngine.find()
    container = our_containers(engine).get(record.id)
    if container is not None:
        kill_container(engine, container)


def stop_recorded(record: SessionRecord) -> None:
    """Record that a detached session was stopped, and remove the rest of it."""
    session_store().save(msgspec.structs.replace(record, stopped=True))
    cgroups.sweep(cgroups.tree(), record.id)


def list_detached() -> list[SessionInfo]:
    """List all detached sessions of this user."""
    store = session_store()
    return [store.info(record) for record in store.records()]


def prune_detached() -> list[str]:
    """Remove every session that has ended, and the leftovers of interrupted starts."""
    from proofbox.sandbox.containers.ownership import reap_containers
    from proofbox.sandbox.host.scratch import sweep_scratch

    store = session_store()
    gone = [record.id for record in store.records() if not store.running(record.id)] + store.leftovers()
    for id in gone:
        store.forget(id)
        cgroups.sweep(cgroups.tree(), id)
    cgroups.sweep(cgroups.tree())
    gone += reap_containers(store.running)
    sweep_scratch()
    return sorted(set(gone))


def _encode(value: object) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value).__name__)


def _decode(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(kind.__name__)
