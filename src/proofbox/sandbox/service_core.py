"""The sandbox service without its waiting: sessions and commands, shared by `service.py` and `async_service.py`.

Each method is written once, as a coroutine. `WaitMode` decides what its awaits do: in `async_service.py` they wait on
an event loop, and blocking work runs in a worker thread. In `service.py` they block the calling thread, so that a
coroutine runs to its end without a loop (`wait`, `Blocking`).

Modules that are only needed once a box has started are imported then, while its agent starts.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from proofbox.errors import ProofboxError, SandboxLost, UsageError
from proofbox.sandbox.contract import Event, ExecResult, Isolation, OnOutput, OnStart, stream_of
from proofbox.sandbox.host import freezing
from proofbox.sandbox.opening import BoxOpener, OpenedBox
from proofbox.sandbox.options import ExecOptions, PolicyOptions, RunOptions, split_options
from proofbox.sandbox.sessions import (
    SessionInfo,
    SessionRecord,
    kill_detached,
    list_detached,
    prune_detached,
    session_store,
    stop_recorded,
)

if TYPE_CHECKING:
    import socket

    from proofbox.sandbox.client.calls import ActiveCall
    from proofbox.sandbox.client.connection import BlockingConnection
    from proofbox.sandbox.client.requests import CommandRequest
    from proofbox.sandbox.client.wire import Hello

START_PATIENCE = 30.0
BOOT_PATIENCE = 180.0
"""For a virtual machine: an emulated one needs seconds of CPU time to boot, which a busy host may not give it soon."""
ENDED_REMEMBERED = 1000

T = TypeVar("T")


class BoxConnection(Protocol):
    """The client end of a box's stream."""

    @property
    def hello(self) -> Hello | None: ...
    @property
    def lost(self) -> bool: ...
    @property
    def running(self) -> int: ...
    async def run(
        self, request: CommandRequest, on_output: OnOutput | None, on_start: OnStart | None
    ) -> ActiveCall: ...
    async def wait_for_hello(self, seconds: float) -> Hello: ...
    async def shutdown(self) -> None: ...
    def close(self) -> None: ...


ConnectionT = TypeVar("ConnectionT", bound=BoxConnection)
ConnectionT_co = TypeVar("ConnectionT_co", bound=BoxConnection, covariant=True)


class WaitMode(Protocol[ConnectionT_co]):
    """How a service waits."""

    def connect(self, stream: socket.socket, kill: Callable[[], None]) -> ConnectionT_co:
        """Return a connection to a box; `kill` ends the box without its agent."""

    async def call(self, work: Callable[[], T]) -> T:
        """Return the result of blocking work."""

    def shielded(self) -> contextlib.AbstractContextManager[object]:
        """Complete the block even if the caller is cancelled."""


class Blocking:
    """Waits by blocking the calling thread."""

    def connect(self, stream: socket.socket, kill: Callable[[], None]) -> BlockingConnection:
        from proofbox.sandbox.client.connection import BlockingConnection, Connection

        return BlockingConnection(Connection(stream, kill))

    async def call(self, work: Callable[[], T]) -> T:
        return work()

    def shielded(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose awaits block, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a blocking service does not wait on an event loop")


class SessionCore(Generic[ConnectionT]):
    """A box that stays alive between commands, and the connection to it."""

    def __init__(
        self,
        service: ServiceCore[ConnectionT],
        connection: ConnectionT,
        origin: OpenedBox | SessionRecord,
        on_end: Callable[[SessionInfo], None] | None = None,
    ) -> None:
        from proofbox.sandbox.client.requests import RequestBuilder

        self.connection = connection
        self.inside = origin.inside
        self.requests = RequestBuilder(origin.inside)
        self.id = origin.id
        self.emit = service.opener.emit
        self._listened = service.opener.on_event is not None
        self._waiting = service.waiting
        self._origin = origin
        self._on_end = on_end
        self._stopped = False

    @property
    def info(self) -> SessionInfo:
        return self._origin.info("stopped" if self._stopped else "lost" if self.connection.lost else "running")

    async def prepare(
        self, argv: Sequence[str | bytes], options: ExecOptions, pty: tuple[int, int] | None = None
    ) -> tuple[CommandRequest, int]:
        """Return the request for a command, and the box's count of kills at its memory limit before it."""
        inside, requests = self.inside, self.requests
        if inside.memory_group is None and options.get("cwd") is None:  # reads no files
            return requests.build(argv, options, pty), 0
        return await self._waiting.call(lambda: (requests.build(argv, options, pty), inside.oom_kills()))

    async def result(self, call: ActiveCall, oom_kills_before: int) -> ExecResult:
        inside = self.inside
        if inside.memory_group is None and call.error is None:  # reads no files
            return inside.result(call, oom_kills_before)
        return await self._waiting.call(lambda: inside.result(call, oom_kills_before))

    async def explain(self, error: ProofboxError) -> ProofboxError:
        """Add what is known about the box to an error of its connection."""
        greeted = self.connection.hello is not None
        return await self._waiting.call(lambda: self._origin.explain_loss(error, greeted))

    async def run(
        self, argv: Sequence[str | bytes], options: ExecOptions, pty: tuple[int, int] | None = None
    ) -> ExecResult:
        request, before = await self.prepare(argv, options, pty)
        listened = self._listened
        if listened:
            self.emit(Event("exec", "started", self.id))
        try:
            call = await self.connection.run(request, options.get("on_output"), options.get("on_start"))
            result = await self.result(call, before)
        except ProofboxError as error:
            self.emit(Event("exec", "failed", self.id, {"code": error.code}))
            raise await self.explain(error) from None
        if listened:
            detail = {"exit_code": result.exit_code, "duration_ms": result.duration_ms}
            self.emit(Event("exec", "finished", self.id, detail))
        return result

    async def commands_alive(self) -> int:
        if self.inside.isolation is Isolation.VM:  # its commands are in control groups of the guest
            return self.connection.running
        known = await self._waiting.call(lambda: freezing.commands_alive(self.id))
        return self.connection.running if known is None else known

    def detach(self) -> None:
        if isinstance(self._origin, OpenedBox):
            raise UsageError("a session that is not detached ends with its client", op="session", fix_hints=["stop it"])
        self.connection.close()

    async def stop(self) -> None:
        if self._stopped:
            return
        origin = self._origin
        with self._waiting.shielded():
            if isinstance(origin, OpenedBox):
                self.connection.close()  # the box ends with its stream
                await self._waiting.call(origin.end)
            else:
                await self.connection.shutdown()
                self.connection.close()
                await self._waiting.call(functools.partial(stop_recorded, origin))
        self._stopped = True
        if self._on_end is not None:
            self._on_end(self.info)
        self.emit(Event("session", "stopped", self.id))


class ServiceCore(Generic[ConnectionT]):
    """Commands and sessions in boxes over one project."""

    def __init__(self, waiting: WaitMode[ConnectionT], opener: BoxOpener) -> None:
        self.waiting = waiting
        self.opener = opener
        self._sessions: dict[str, SessionCore[ConnectionT]] = {}
        self._ended_here: dict[str, SessionInfo] = {}

    async def exec(self, argv: Sequence[str | bytes], provider: str | None, options: RunOptions) -> ExecResult:
        policy, command = split_options(options)
        session = await self.start(provider, policy)
        try:
            return await session.run(argv, command)
        finally:
            await session.stop()

    async def start_session(
        self, provider: str | None, policy: PolicyOptions, ttl: float | None
    ) -> SessionCore[ConnectionT]:
        """Start a session; with a ttl, one that outlives this process."""
        if ttl is not None:
            from proofbox.sandbox.client.requests import check_ttl

            check_ttl(ttl)
        session = await self.start(provider, policy, ttl)
        if ttl is None:
            self._sessions[session.id] = session
        return session

    async def start(
        self, provider: str | None, policy: PolicyOptions, ttl: float | None = None
    ) -> SessionCore[ConnectionT]:
        # Not cancellable: a started box must be owned by a session, which stops it.
        with self.waiting.shielded():
            opened = await self.waiting.call(lambda: self.opener.open(provider, policy, ttl=ttl))
            if ttl is not None:
                return await self._detached(opened)
            try:
                connection = self.waiting.connect(stream_of(opened.box), opened.box.kill)
            except ProofboxError as error:  # its launcher ended before the greeting was sent
                failure = await self.waiting.call(functools.partial(opened.explain_loss, error, greeted=False))
                await self.waiting.call(opened.end)
                raise failure from None
            session = SessionCore(self, connection, opened, self._remember)
            if opened.box.isolation is Isolation.VM:  # booting must not count as time of the first command
                try:
                    await connection.wait_for_hello(BOOT_PATIENCE)
                except ProofboxError as error:
                    failure = await session.explain(error)
                    await session.stop()
                    raise failure from None
        return session

    async def exec_in_session(self, session_id: str, argv: Sequence[str | bytes], options: ExecOptions) -> ExecResult:
        held = self._sessions.get(session_id)
        if held is not None:
            return await held.run(argv, options)
        session = await self._attach(session_id)
        try:
            return await session.run(argv, options)
        finally:
            session.connection.close()

    async def stop_session(self, session_id: str) -> SessionInfo:
        held = self._sessions.get(session_id)
        if held is not None:
            await held.stop()
        if session_id in self._ended_here:
            return self._ended_here[session_id]
        record = await self.waiting.call(lambda: session_store().load(session_id))
        try:
            session = await self._attach(session_id)
            await session.stop()
        except SandboxLost:  # its box had already ended
            await self.waiting.call(functools.partial(stop_recorded, record))
        return await self.get_session(session_id)

    async def get_session(self, session_id: str) -> SessionInfo:
        held = self._sessions.get(session_id)
        if held is not None:
            return held.info
        if session_id in self._ended_here:
            return self._ended_here[session_id]

        def read() -> SessionInfo:
            store = session_store()
            return store.info(store.load(session_id))

        return await self.waiting.call(read)

    async def list_sessions(self) -> list[SessionInfo]:
        return [session.info for session in self._sessions.values()] + await self.waiting.call(list_detached)

    async def prune_sessions(self) -> list[str]:
        return await self.waiting.call(prune_detached)

    def cut_off(self) -> None:
        for session in list(self._sessions.values()):
            session.connection.close()

    async def close(self) -> None:
        async with contextlib.AsyncExitStack() as stack:  # if one fails to stop, the others are still stopped
            for session in list(self._sessions.values()):
                stack.push_async_callback(session.stop)

    async def _detached(self, opened: OpenedBox) -> SessionCore[ConnectionT]:
        """Wait for the greeting of a detached session before this process releases its box."""
        try:
            session = await self._attach(opened.id)
            try:
                boots = opened.box.isolation is Isolation.VM
                await session.connection.wait_for_hello(BOOT_PATIENCE if boots else START_PATIENCE)
            except ProofboxError as error:
                session.connection.close()
                raise await self.waiting.call(functools.partial(opened.explain_loss, error, greeted=False)) from None
        except BaseException:
            await self.waiting.call(opened.end)
            await self.waiting.call(lambda: session_store().forget(opened.id))
            raise
        await self.waiting.call(opened.box.release)
        self.opener.emit(Event("session", "started", opened.id))
        return session

    async def _attach(self, session_id: str) -> SessionCore[ConnectionT]:
        def find() -> tuple[SessionRecord, socket.socket]:
            store = session_store()
            return store.load(session_id), store.connect(session_id)

        record, stream = await self.waiting.call(find)
        connection = self.waiting.connect(stream, functools.partial(kill_detached, record))
        return SessionCore(self, connection, record)

    def _remember(self, ended: SessionInfo) -> None:
        """Keep the information about an ended session, for the last `ENDED_REMEMBERED` sessions."""
        self._sessions.pop(ended.id, None)
        self._ended_here[ended.id] = ended
        if len(self._ended_here) > ENDED_REMEMBERED:
            del self._ended_here[next(iter(self._ended_here))]
