"""The sandbox service: probe, exec, sessions. `async_service.py` is the same for async callers.

with Sandboxes(project_root=".") as boxes:
    result = boxes.exec(["pytest", "-q"], timeout=60)
    with boxes.start_session(network="none") as session:
        session.exec(["make"]).exit_code
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, Unpack

from proofbox.config.settings import Settings
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.errors import ProofboxError, SandboxLost, UsageError
from proofbox.sandbox.box_handle import BoxHandle
from proofbox.sandbox.client.connection import Connection, RunningCall
from proofbox.sandbox.client.requests import check_ttl, encode_env
from proofbox.sandbox.client.signals import passing_on
from proofbox.sandbox.client.terminal import (
    following_size,
    is_terminal,
    own_stdin,
    pass_on,
    raw_terminal,
    terminal_size,
)
from proofbox.sandbox.contract import DEFAULT_TTL, Event, ExecResult, OnEvent, ProbeResult, stream_of
from proofbox.sandbox.host import freezing
from proofbox.sandbox.options import ExecOptions, PolicyOptions, RunOptions, split_options
from proofbox.sandbox.service_core import OpenedBox, ServiceCore, kill_detached
from proofbox.sandbox.sessions import SessionInfo, SessionRecord

START_PATIENCE = 30.0


class Session:
    """A box that stays alive between commands. As a context manager, it stops at the end of the block."""

    def __init__(
        self,
        core: ServiceCore,
        inside: BoxHandle,
        connection: Connection,
        origin: OpenedBox | SessionRecord,
        on_end: Callable[[SessionInfo], None] | None = None,
    ) -> None:
        self._core = core
        self._on_end = on_end
        self._inside = inside
        self._environment = encode_env(inside.environment)
        self._connection = connection
        self._origin = origin
        self._stopped = False

    @property
    def id(self) -> str:
        return self._origin.id

    @property
    def info(self) -> SessionInfo:
        return self._origin.info("stopped" if self._stopped else "lost" if self._connection.lost else "running")

    @property
    def inside(self) -> BoxHandle:
        """The box's handle: paths and environment as a command sees them."""
        return self._inside

    def exec(self, argv: Sequence[str | bytes], **options: Unpack[ExecOptions]) -> ExecResult:
        """Run a command in the box and wait until it ends. Safe to call from several threads."""
        return self.run(argv, options)

    def run(self, argv: Sequence[str | bytes], options: ExecOptions) -> ExecResult:
        inside = self._inside
        request = inside.request(argv, options, self._environment)
        before = inside.oom_kills()
        self._core.tell(Event("exec", "started", self.id))
        try:
            call = self._connection.run(request, options.get("on_output"), options.get("on_start"))
            result = inside.result(call, before)
        except ProofboxError as error:
            self._core.tell(Event("exec", "failed", self.id, {"code": error.code}))
            raise self._origin.explain_loss(error, self._connection.hello is not None) from None
        self._core.tell(
            Event("exec", "finished", self.id, {"exit_code": result.exit_code, "duration_ms": result.duration_ms})
        )
        return result

    def _interact(self, argv: Sequence[str | bytes]) -> ExecResult:
        """Run a command with the caller's stdin, stdout and stderr; in a pty, if they are a terminal."""
        if not is_terminal():
            with own_stdin() as stdin, contextlib.ExitStack() as stack:
                options: ExecOptions = {"stdin": stdin, "on_output": pass_on}
                options["on_start"] = lambda running: stack.enter_context(passing_on(running.signal))
                return self.exec(argv, **options)
        inside = self._inside
        with own_stdin() as stdin, contextlib.ExitStack() as stack:
            options = {"stdin": stdin, "on_output": pass_on}
            if "TERM" in os.environ:
                options["env"] = {"TERM": os.environ["TERM"]}
            request = inside.request(argv, options, self._environment, pty=terminal_size())
            before = inside.oom_kills()

            def follow(running: RunningCall) -> None:
                stack.enter_context(raw_terminal())
                stack.enter_context(following_size(running.resize))

            return inside.result(self._connection.run(request, pass_on, follow), before)

    def frozen(self) -> contextlib.AbstractContextManager[None]:
        """Freeze all processes in the box within the block; see `freezing.py`."""
        return freezing.frozen(self.id)

    def commands_alive(self) -> int:
        """Count the commands with processes in the box. Without control groups, only this client's are counted."""
        known = freezing.commands_alive(self.id)
        return self._connection.running if known is None else known

    def detach(self) -> None:
        """Disconnect from a detached session: the box keeps running, and its idle time begins."""
        if isinstance(self._origin, OpenedBox):
            raise UsageError("a session that is not detached ends with its client", op="session", fix_hints=["stop it"])
        self._connection.close()

    def stop(self) -> None:
        """Kill the box and everything in it. Can be repeated."""
        if self._stopped:
            return
        if isinstance(self._origin, OpenedBox):
            self._connection.close()  # the box ends with its stream
            self._origin.end()
        else:
            self._connection.shutdown()
            self._connection.close()
            self._core.ended(self._origin)
        self._stopped = True
        if self._on_end is not None:
            self._on_end(self.info)
        self._core.tell(Event("session", "stopped", self.id))

    def cut_off(self) -> None:
        """Disconnect from another thread: commands fail as lost, and the box ends. The owner still calls `stop`."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Session {self.id} {self._inside.provider}>"


class Sandboxes:
    """Runs commands in boxes over one project. Cheap to create; closing it stops its sessions.

    If a call names no provider or policy, `settings` apply: by default those of the project's and the user's
    `config.toml`, then `auto`.
    """

    def __init__(
        self,
        project_root: str | os.PathLike[str] = ".",
        *,
        on_event: OnEvent | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        self._core = ServiceCore(project_root, on_event=on_event, settings=settings, clock=clock, ids=ids)
        self._sessions: dict[str, Session] = {}

    def probe(self, provider: str | None = None) -> ProbeResult:
        """Return the provider that would be used, after a real trial."""
        return self._core.probe(provider)

    def exec(
        self,
        argv: Sequence[str | bytes],
        *,
        provider: str | None = None,
        **options: Unpack[RunOptions],
    ) -> ExecResult:
        """Run one command in a new box, which ends with it."""
        policy, command = split_options(options)
        with self._start(provider, policy) as session:
            return session.run(argv, command)

    def start_session(
        self,
        *,
        provider: str | None = None,
        detached: bool = False,
        ttl: float = DEFAULT_TTL,
        **policy: Unpack[PolicyOptions],
    ) -> Session:
        """Start a box that stays alive between commands. It ends with this process, unless `detached`: then it ends by
        `stop_session`, from any process, or after `ttl` idle seconds."""
        if detached:
            check_ttl(ttl)
        session = self._start(provider, policy, ttl if detached else None)
        if not detached:
            self._sessions[session.id] = session
        return session

    def start(
        self,
        argv: Sequence[str | bytes] = ("/bin/sh",),
        *,
        provider: str | None = None,
        **policy: Unpack[PolicyOptions],
    ) -> ExecResult:
        """Run a command, by default a shell, in a new box with the caller's own stdin, stdout and stderr."""
        with self._start(provider, policy) as session:
            return session._interact(argv)

    def exec_in_session(
        self, session_id: str, argv: Sequence[str | bytes], **options: Unpack[ExecOptions]
    ) -> ExecResult:
        held = self._sessions.get(session_id)
        if held is not None:
            return held.exec(argv, **options)
        session = self._attach(session_id)
        try:
            return session.exec(argv, **options)
        finally:
            session._connection.close()

    def stop_session(self, session_id: str) -> SessionInfo:
        """Stop a session. Stopping one that has already ended is not an error."""
        held = self._sessions.get(session_id)
        if held is not None:
            held.stop()
        ended = self._core.ended_here(session_id)
        if ended is not None:
            return ended
        record = self._core.store.load(session_id)
        try:
            self._attach(session_id).stop()
        except SandboxLost:  # its box had already ended
            self._core.ended(record)
        return self.get_session(session_id)

    def get_session(self, session_id: str) -> SessionInfo:
        held = self._sessions.get(session_id)
        if held is not None:
            return held.info
        return self._core.session_info(session_id)

    def list_sessions(self) -> list[SessionInfo]:
        """List the sessions of this object, and all detached sessions of this user."""
        return [session.info for session in self._sessions.values()] + self._core.sessions()

    def prune_sessions(self) -> list[str]:
        """Remove the records of sessions that have ended; return their ids."""
        return self._core.prune()

    def cut_off(self) -> None:
        """Call `cut_off` on every session of this object, from another thread."""
        for session in list(self._sessions.values()):
            session.cut_off()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # if one fails to stop, the others are still stopped
            for session in list(self._sessions.values()):
                stack.callback(session.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _remember(self, ended: SessionInfo) -> None:
        self._sessions.pop(ended.id, None)
        self._core.remember_end(ended)

    def _start(self, provider: str | None, policy: PolicyOptions, ttl: float | None = None) -> Session:
        opened = self._core.open(provider, policy, ttl=ttl)
        if ttl is not None:
            return self._detach(opened)
        try:
            connection = Connection(stream_of(opened.box), opened.box.kill)
        except ProofboxError as error:  # its launcher ended before the greeting was sent
            try:
                raise opened.explain_loss(error, greeted=False) from None
            finally:
                opened.end()
        return Session(self._core, opened.inside, connection, opened, self._remember)

    def _detach(self, opened: OpenedBox) -> Session:
        """Wait for the greeting of a detached session before this process releases its box."""
        try:
            session = self._attach(opened.id)
            try:
                session._connection.greet(START_PATIENCE)
            except ProofboxError as error:
                session._connection.close()
                raise opened.explain_loss(error, greeted=False) from None
        except BaseException:
            opened.end()
            self._core.store.forget(opened.id)
            raise
        opened.box.release()
        self._core.tell(Event("session", "started", opened.id))
        return session

    def _attach(self, session_id: str) -> Session:
        store = self._core.store
        record = store.load(session_id)
        connection = Connection(store.connect(session_id), functools.partial(kill_detached, record))
        return Session(self._core, record.inside, connection, record)
