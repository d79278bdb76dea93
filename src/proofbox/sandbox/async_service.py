"""`service.py` for async callers: the same names, awaited.

    async with AsyncSandboxes(project_root=".") as boxes:
        result = await boxes.exec(["pytest", "-q"], timeout=60)
        async with await boxes.start_session(network="none") as session:
            (await session.exec(["make"])).exit_code

No call blocks the event loop: work on files and processes runs in a worker thread, and waiting for commands needs no
thread.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack

import anyio
from anyio.to_thread import run_sync

from proofbox.config.settings import Settings
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.sandbox import DEFAULT_TTL
from proofbox.sandbox.box_handle import BoxHandle
from proofbox.sandbox.client.async_connection import AsyncConnection
from proofbox.sandbox.contract import ExecResult, OnEvent, ProviderSelection
from proofbox.sandbox.host import freezing
from proofbox.sandbox.opening import BoxOpener
from proofbox.sandbox.options import ExecOptions, PolicyOptions, RunOptions
from proofbox.sandbox.service import Sandboxes
from proofbox.sandbox.service_core import ServiceCore, SessionCore
from proofbox.sandbox.sessions import SessionInfo

T = TypeVar("T")


class _OnLoop:
    """Waits on the event loop."""

    def connect(self, stream: socket.socket, kill: Callable[[], None]) -> AsyncConnection:
        return AsyncConnection(stream, kill)

    async def call(self, work: Callable[[], T]) -> T:
        return await run_sync(work)

    def shielded(self) -> contextlib.AbstractContextManager[object]:
        return anyio.CancelScope(shield=True)


class AsyncSession:
    """A box that stays alive between commands. As a context manager, it stops at the end of the block."""

    def __init__(self, core: SessionCore[AsyncConnection]) -> None:
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

    async def exec(self, argv: Sequence[str | bytes], **options: Unpack[ExecOptions]) -> ExecResult:
        """Run a command in the box and wait until it ends. Several tasks may call this concurrently."""
        return await self._core.run(argv, options)

    async def frozen(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Freeze all processes in the box within the block, `async with await session.frozen()`; see `freezing.py`."""
        return self._frozen()

    @contextlib.asynccontextmanager
    async def _frozen(self) -> AsyncIterator[None]:
        held = freezing.frozen(self.id)
        await run_sync(held.__enter__)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await run_sync(held.__exit__, None, None, None)

    async def commands_alive(self) -> int:
        """Count the commands with processes in the box. Without control groups, only this client's are counted."""
        return await self._core.commands_alive()

    async def detach(self) -> None:
        """Disconnect from a detached session: the box keeps running, and its idle time begins."""
        self._core.detach()

    async def stop(self) -> None:
        """Kill the box and everything in it. Idempotent."""
        await self._core.stop()

    async def cut_off(self) -> None:
        """Disconnect: commands fail as lost, and the box ends. The owner still calls `stop`."""
        self._core.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"<AsyncSession {self.id} {self.inside.provider}>"


class AsyncSandboxes:
    """Runs commands in boxes over one project. Cheap to create; closing it stops its sessions.

    For example:

        async with proofbox.AsyncSandboxes(project_root=".") as boxes:
            result = await boxes.exec(["pytest", "-q"], timeout=60)

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
        self._core = ServiceCore(_OnLoop(), self._opener)

    async def probe(self, provider: str | None = None) -> ProviderSelection:
        """Return the provider that would be used, after a real trial."""
        return await run_sync(self._opener.probe, provider)

    async def exec(
        self,
        argv: Sequence[str | bytes],
        *,
        provider: str | None = None,
        **options: Unpack[RunOptions],
    ) -> ExecResult:
        """Run one command in a new box, which ends with it."""
        return await self._core.exec(argv, provider, options)

    async def start_session(
        self,
        *,
        provider: str | None = None,
        detached: bool = False,
        ttl: float = DEFAULT_TTL,
        **policy: Unpack[PolicyOptions],
    ) -> AsyncSession:
        """Start a box that stays alive between commands. It ends with this process, unless `detached`: then it ends by
        `stop_session`, from any process, or after `ttl` idle seconds."""
        return AsyncSession(await self._core.start_session(provider, policy, ttl if detached else None))

    async def start(
        self,
        argv: Sequence[str | bytes] = ("/bin/sh",),
        *,
        provider: str | None = None,
        **policy: Unpack[PolicyOptions],
    ) -> ExecResult:
        """Run a command, by default a shell, in a new box with the caller's own stdin, stdout and stderr.

        Runs in a worker thread, since a terminal blocks; changes of the terminal's size are not passed on.
        """
        opener = self._opener
        boxes = Sandboxes(
            opener.project_root,
            on_event=opener.on_event,
            settings=opener.settings,
            clock=opener.clock,
            ids=opener.ids,
        )
        return await run_sync(functools.partial(boxes.start, argv, provider=provider, **policy))

    async def exec_in_session(
        self, session_id: str, argv: Sequence[str | bytes], **options: Unpack[ExecOptions]
    ) -> ExecResult:
        """Run a command in a session of this object, or in a detached session, and wait until it ends."""
        return await self._core.exec_in_session(session_id, argv, options)

    async def stop_session(self, session_id: str) -> SessionInfo:
        """Stop a session. Stopping one that has already ended is not an error."""
        return await self._core.stop_session(session_id)

    async def get_session(self, session_id: str) -> SessionInfo:
        """Return the information about a session of this object, or a detached session."""
        return await self._core.get_session(session_id)

    async def list_sessions(self) -> list[SessionInfo]:
        """List the sessions of this object, and all detached sessions of this user."""
        return await self._core.list_sessions()

    async def prune_sessions(self) -> list[str]:
        """Remove the records of sessions that have ended; return their ids."""
        return await self._core.prune_sessions()

    async def cut_off(self) -> None:
        """Call `cut_off` on every session of this object."""
        self._core.cut_off()

    async def close(self) -> None:
        """Stop the sessions of this object, except detached ones."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
