"""`service.py` for async callers: the same names, awaited.

    async with AsyncSandboxes(project_root=".") as boxes:
        result = await boxes.exec(["pytest", "-q"], timeout=60)
        async with await boxes.start_session(network="none") as session:
            (await session.exec(["make"])).exit_code

Starting and ending a box takes a few milliseconds of blocking work in a worker thread; waiting for commands does not
block.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Self, Unpack

import anyio
from anyio.to_thread import run_sync

from proofbox.config.settings import Settings
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.errors import ProofboxError, SandboxLost, UsageError
from proofbox.sandbox.box_handle import BoxHandle
from proofbox.sandbox.client.async_connection import AsyncConnection
from proofbox.sandbox.client.requests import check_ttl, encode_env
from proofbox.sandbox.contract import DEFAULT_TTL, Event, ExecResult, OnEvent, ProbeResult, stream_of
from proofbox.sandbox.host import freezing
from proofbox.sandbox.options import ExecOptions, PolicyOptions, RunOptions, split_options
from proofbox.sandbox.service import START_PATIENCE, Sandboxes
from proofbox.sandbox.service_core import OpenedBox, ServiceCore, kill_detached
from proofbox.sandbox.sessions import SessionInfo, SessionRecord


class AsyncSession:
    """A box that stays alive between commands. As a context manager, it stops at the end of the block."""

    def __init__(
        self,
        core: ServiceCore,
        inside: BoxHandle,
        connection: AsyncConnection,
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

    async def exec(self, argv: Sequence[str | bytes], **options: Unpack[ExecOptions]) -> ExecResult:
        """Run a command in the box and wait until it ends. Several tasks may call this concurrently."""
        return await self.run(argv, options)

    async def run(self, argv: Sequence[str | bytes], options: ExecOptions) -> ExecResult:
        inside = self._inside
        request = inside.request(argv, options, self._environment)
        before = inside.oom_kills()
        self._core.tell(Event("exec", "started", self.id))
        try:
            call = await self._connection.run(request, options.get("on_output"), options.get("on_start"))
            result = inside.result(call, before)
        except ProofboxError as error:
            self._core.tell(Event("exec", "failed", self.id, {"code": error.code}))
            raise self._origin.explain_loss(error, self._connection.hello is not None) from None
        self._core.tell(
            Event("exec", "finished", self.id, {"exit_code": result.exit_code, "duration_ms": result.duration_ms})
        )
        return result

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
        known = await run_sync(freezing.commands_alive, self.id)
        return self._connection.running if known is None else known

    async def detach(self) -> None:
        """Disconnect from a detached session: the box keeps running, and its idle time begins."""
        if isinstance(self._origin, OpenedBox):
            raise UsageError("a session that is not detached ends with its client", op="session", fix_hints=["stop it"])
        self._connection.close()

    async def stop(self) -> None:
        """Kill the box and everything in it. Can be repeated."""
        if self._stopped:
            return
        with anyio.CancelScope(shield=True):
            if isinstance(self._origin, OpenedBox):
                self._connection.close()  # the box ends with its stream
                await run_sync(self._origin.end)
            else:
                await self._connection.shutdown()
                self._connection.close()
                await run_sync(self._core.ended, self._origin)
        self._stopped = True
        if self._on_end is not None:
            self._on_end(self.info)
        self._core.tell(Event("session", "stopped", self.id))

    async def cut_off(self) -> None:
        self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"<AsyncSession {self.id} {self._inside.provider}>"


class AsyncSandboxes:
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
        self._sessions: dict[str, AsyncSession] = {}

    async def probe(self, provider: str | None = None) -> ProbeResult:
        """Return the provider that would be used, after a real trial."""
        return await run_sync(self._core.probe, provider)

    async def exec(
        self,
        argv: Sequence[str | bytes],
        *,
        provider: str | None = None,
        **options: Unpack[RunOptions],
    ) -> ExecResult:
        """Run one command in a new box, which ends with it."""
        policy, command = split_options(options)
        async with await self._start(provider, policy) as session:
            return await session.run(argv, command)

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
        if detached:
            check_ttl(ttl)
        session = await self._start(provider, policy, ttl if detached else None)
        if not detached:
            self._sessions[session.id] = session
        return session

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
        boxes = Sandboxes(self._core.project_root, on_event=self._core.on_event, settings=self._core.settings)
        return await run_sync(functools.partial(boxes.start, argv, provider=provider, **policy))

    async def exec_in_session(
        self, session_id: str, argv: Sequence[str | bytes], **options: Unpack[ExecOptions]
    ) -> ExecResult:
        held = self._sessions.get(session_id)
        if held is not None:
            return await held.exec(argv, **options)
        session = self._attach(session_id)
        try:
            return await session.exec(argv, **options)
        finally:
            session._connection.close()

    async def stop_session(self, session_id: str) -> SessionInfo:
        """Stop a session. Stopping one that has already ended is not an error."""
        held = self._sessions.get(session_id)
        if held is not None:
            await held.stop()
        ended = self._core.ended_here(session_id)
        if ended is not None:
            return ended
        record = self._core.store.load(session_id)
        try:
            await self._attach(session_id).stop()
        except SandboxLost:  # its box had already ended
            await run_sync(self._core.ended, record)
        return await self.get_session(session_id)

    async def get_session(self, session_id: str) -> SessionInfo:
        held = self._sessions.get(session_id)
        if held is not None:
            return held.info
        return self._core.session_info(session_id)

    async def list_sessions(self) -> list[SessionInfo]:
        """List the sessions of this object, and all detached sessions of this user."""
        return [session.info for session in self._sessions.values()] + self._core.sessions()

    async def prune_sessions(self) -> list[str]:
        """Remove the records of sessions that have ended; return their ids."""
        return await run_sync(self._core.prune)

    async def cut_off(self) -> None:
        for session in list(self._sessions.values()):
            await session.cut_off()

    async def close(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for session in list(self._sessions.values()):
                stack.push_async_callback(session.stop)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _remember(self, ended: SessionInfo) -> None:
        self._sessions.pop(ended.id, None)
        self._core.remember_end(ended)

    async def _start(self, provider: str | None, policy: PolicyOptions, ttl: float | None = None) -> AsyncSession:
        # Not cancellable: a started box must be owned by a session, which stops it.
        with anyio.CancelScope(shield=True):
            opened = await run_sync(functools.partial(self._core.open, provider, policy, ttl=ttl))
            session = await self._detach(opened) if ttl is not None else None
        return session or AsyncSession(
            self._core, opened.inside, AsyncConnection(stream_of(opened.box), opened.box.kill), opened, self._remember
        )

    async def _detach(self, opened: OpenedBox) -> AsyncSession:
        """Wait for the greeting of a detached session before this process releases its box."""
        try:
            session = self._attach(opened.id)
            try:
                await session._connection.greet(START_PATIENCE)
            except ProofboxError as error:
                session._connection.close()
                raise opened.explain_loss(error, greeted=False) from None
        except BaseException:
            await run_sync(opened.end)
            self._core.store.forget(opened.id)
            raise
        opened.box.release()
        self._core.tell(Event("session", "started", opened.id))
        return session

    def _attach(self, session_id: str) -> AsyncSession:
        store = self._core.store
        record = store.load(session_id)
        connection = AsyncConnection(store.connect(session_id), functools.partial(kill_detached, record))
        return AsyncSession(self._core, record.inside, connection, record)
