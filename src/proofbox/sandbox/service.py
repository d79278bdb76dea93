"""The sandbox service: probe, exec, sessions. `async_service.py` is the same for async callers.

with Sandboxes(project_root=".") as boxes:
    result = boxes.exec(["pytest", "-q"], timeout=60)
    with boxes.start_session(network="none") as session:
        session.exec(["make"]).exit_code
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from proofbox.config.settings import Settings
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.sandbox import DEFAULT_TTL
from proofbox.sandbox.box_handle import BoxHandle
from proofbox.sandbox.contract import ExecResult, OnEvent, ProviderSelection
from proofbox.sandbox.opening import BoxOpener
from proofbox.sandbox.options import ExecOptions, PolicyOptions, RunOptions
from proofbox.sandbox.service_core import Blocking, ServiceCore, SessionCore, wait
from proofbox.sandbox.sessions import SessionInfo

if TYPE_CHECKING:
    from proofbox.sandbox.client.connection import BlockingConnection
    from proofbox.sandbox.contract import RunningCommand


class Session:
    """A box that stays alive between commands. As a context manager, it stops at the end of the block."""

    def __init__(self, core: SessionCore[BlockingConnection]) -> None:
        self._core = core

    @property
    def id(self) -> str:
        return self._core.id

    @property
    def info(self) -> SessionInfo:
        return self._core.info

    @property
    def inside(self) -> BoxHandle:
        """The box's handle: paths and environment as a command sees them."""
        return self._core.inside

    def exec(self, argv: Sequence[str | bytes], **options: Unpack[ExecOptions]) -> ExecResult:
        """Run a command in the box and wait until it ends. Safe to call from several threads."""
        return wait(self._core.run(argv, options))

    def frozen(self) -> contextlib.AbstractContextManager[None]:
        """Freeze all processes in the box within the block; see `freezing.py`."""
        from proofbox.sandbox.host.freezing import frozen

        return frozen(self.id)

    def commands_alive(self) -> int:
        """Count the commands with processes in the box. Without control groups, only this client's are counted."""
        return wait(self._core.commands_alive())

    def detach(self) -> None:
        """Disconnect from a detached session: the box keeps running, and its idle time begins."""
        self._core.detach()

    def stop(self) -> None:
        """Kill the box and everything in it. Idempotent."""
        wait(self._core.stop())

    def cut_off(self) -> None:
        """Disconnect from another thread: commands fail as lost, and the box ends. The owner still calls `stop`."""
        self._core.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.inside.provider}>"


class Sandboxes:
    """Runs commands in boxes over one project. Cheap to create; closing it stops its sessions.

    For example:

        with proofbox.Sandboxes(project_root=".") as boxes:
            result = boxes.exec(["pytest", "-q"], timeout=60)

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
        self._opener = BoxOpener(project_root, on_event=on_event, settings=settings, clock=clock, ids=ids)
        self._core = ServiceCore(Blocking(), self._opener)

    def probe(self, provider: str | None = None) -> ProviderSelection:
        """Return the provider that would be used, after a real trial."""
        return self._opener.probe(provider)

    def exec(
        self,
        argv: Sequence[str | bytes],
        *,
        provider: str | None = None,
        **options: Unpack[RunOptions],
    ) -> ExecResult:
        """Run one command in a new box, which ends with it."""
        return wait(self._core.exec(argv, provider, options))

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
        return Session(wait(self._core.start_session(provider, policy, ttl if detached else None)))

    def start(
        self,
        argv: Sequence[str | bytes] = ("/bin/sh",),
        *,
        provider: str | None = None,
        **policy: Unpack[PolicyOptions],
    ) -> ExecResult:
        """Run a command, by default a shell, in a new box with the caller's own stdin, stdout and stderr."""
        session = wait(self._core.start(provider, policy))
        try:
            return _interact(session, argv)
        finally:
            wait(session.stop())

    def exec_in_session(
        self, session_id: str, argv: Sequence[str | bytes], **options: Unpack[ExecOptions]
    ) -> ExecResult:
        """Run a command in a session of this object, or in a detached session, and wait until it ends."""
        return wait(self._core.exec_in_session(session_id, argv, options))

    def stop_session(self, session_id: str) -> SessionInfo:
        """Stop a session. Stopping one that has already ended is not an error."""
        return wait(self._core.stop_session(session_id))

    def get_session(self, session_id: str) -> SessionInfo:
        """Return the information about a session of this object, or a detached session."""
        return wait(self._core.get_session(session_id))

    def list_sessions(self) -> list[SessionInfo]:
        """List the sessions of this object, and all detached sessions of this user."""
        return wait(self._core.list_sessions())

    def prune_sessions(self) -> list[str]:
        """Remove the records of sessions that have ended; return their ids."""
        return wait(self._core.prune_sessions())

    def cut_off(self) -> None:
        """Call `cut_off` on every session of this object, from another thread."""
        self._core.cut_off()

    def close(self) -> None:
        """Stop the sessions of this object, except detached ones."""
        wait(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _interact(session: SessionCore[BlockingConnection], argv: Sequence[str | bytes]) -> ExecResult:
    """Run a command with the caller's stdin, stdout and stderr; in a pty, if they are a terminal."""
    from proofbox.sandbox.client.connection import RunningCall
    from proofbox.sandbox.client.signals import forwarding_signals
    from proofbox.sandbox.client.terminal import (
        following_size,
        is_terminal,
        own_stdin,
        pass_on,
        raw_terminal,
        terminal_size,
    )

    with own_stdin() as stdin, contextlib.ExitStack() as stack:
        options: ExecOptions = {"stdin": stdin, "on_output": pass_on}
        if not is_terminal():
            options["on_start"] = lambda running: stack.enter_context(forwarding_signals(running.signal))
            return wait(session.run(argv, options))
        if "TERM" in os.environ:
            options["env"] = {"TERM": os.environ["TERM"]}

        def follow(running: RunningCommand) -> None:
            stack.enter_context(raw_terminal())
            if isinstance(running, RunningCall):
                stack.enter_context(following_size(running.resize))

        options["on_start"] = follow
        return wait(session.run(argv, options, pty=terminal_size()))
