"""`connection.py` for async callers, on anyio: the waiting tasks take turns reading, without a background task."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import BinaryIO

import anyio
import anyio.to_thread

from proofbox.errors import ProofboxError, ProtocolError, SandboxLost
from proofbox.sandbox.client import wire
from proofbox.sandbox.client.calls import ActiveCall, ActiveCalls
from proofbox.sandbox.client.connection import ANSWER_TIMEOUT, RECEIVE, read_stdin, unanswered
from proofbox.sandbox.client.requests import CommandRequest
from proofbox.sandbox.client.wire import Send
from proofbox.sandbox.contract import OnOutput, OnStart


class AsyncConnection:
    def __init__(self, sock: socket.socket, kill: Callable[[], None]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._kill = kill
        self._decoder = wire.FrameDecoder()
        self._calls = ActiveCalls()
        self._changed = anyio.Event()
        self._waiting = 0  # tasks that wait for a change
        self._sending = anyio.Lock(fast_acquire=True)
        self._reading = False
        self._lost: ProofboxError | None = None
        self._unsent_hello = wire.hello()
        self._closing = False

    @property
    def hello(self) -> wire.Hello | None:
        """The agent's greeting; None until it has arrived."""
        return self._calls.hello

    @property
    def running(self) -> int:
        """The number of commands that this client waits for."""
        return len(self._calls)

    @property
    def lost(self) -> bool:
        """Whether the box is known to have ended."""
        return self._lost is not None

    async def run(
        self, request: CommandRequest, on_output: OnOutput | None = None, on_start: OnStart | None = None
    ) -> ActiveCall:
        """Start a command, feed its stdin, and wait for its end. If the caller is cancelled, the command is killed."""
        id = self._calls.new_id()
        data = wire.execute(id, request.encoded)
        call = self._calls.begin(id, request)
        try:
            await self._send(data)
            if request.settings.stdin is None and on_start is None:
                await self._wait(call, on_output)
            else:
                async with anyio.create_task_group() as tasks:
                    if request.settings.stdin is not None:
                        tasks.start_soon(self._send_stdin, call, request.settings.stdin)
                    if on_start is not None:
                        running = AsyncRunningCall(call)
                        tasks.start_soon(self._post, running)
                        on_start(running)
                    await self._wait(call, on_output)
                    tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            await self._abandon(call)
            raise group.exceptions[0] from None
        except BaseException:
            await self._abandon(call)
            raise
        finally:
            self._calls.end(call)
        return call

    async def _post(self, running: AsyncRunningCall) -> None:
        with contextlib.suppress(ProofboxError):  # the task that waits for the command gets the error as well
            while True:
                await self._send(await running.next_frame())

    async def wait_for_hello(self, seconds: float) -> wire.Hello:
        async with self._answered_within(seconds):
            await self._send(b"")
            while self.hello is None:
                await self._turn(lambda: self.hello is not None)
        return self.hello

    async def shutdown(self) -> None:
        with contextlib.suppress(SandboxLost, ProtocolError), anyio.CancelScope(shield=True):
            async with self._answered_within(ANSWER_TIMEOUT):
                await self._send(wire.frame(Send.SHUTDOWN))
                while True:
                    await self._turn(lambda: False)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes a task that is still reading or sending
        self._mark_lost(SandboxLost("the session was stopped", op="exec"))
        self._closing = True
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        """Close the socket when no task uses it: an event loop that waits for a closed descriptor never wakes up."""
        if self._closing and not self._reading and not self._sending.statistics().locked:
            self._sock.close()

    async def _wait(self, call: ActiveCall, on_output: OnOutput | None) -> None:
        timeout = call.request.settings.timeout
        if timeout is None:
            await self._wait_for_end(call, on_output)
            return
        async with self._answered_within(timeout + call.request.settings.grace + ANSWER_TIMEOUT):
            await self._wait_for_end(call, on_output)

    async def _wait_for_end(self, call: ActiveCall, on_output: OnOutput | None) -> None:
        while True:
            while call.waiting:
                chunk = call.waiting.popleft()
                if on_output is not None:
                    on_output(chunk)
                if not call.finished:
                    await self._send(wire.credit(call.id, len(chunk.data)))
            if call.finished:
                return
            await self._turn(lambda: call.finished or bool(call.waiting))

    async def _turn(self, ready: Callable[[], bool]) -> None:
        while self._reading and not ready() and self._lost is None:
            await self._wait_for_change()
        if ready():
            return
        if self._lost is not None:
            raise self._lost
        self._reading = True
        try:
            while not ready():
                await self._receive()
        finally:
            self._reading = False
            self._wake()
            self._close_when_idle()

    async def _receive(self) -> None:
        try:
            try:
                data = self._sock.recv(RECEIVE)
            except BlockingIOError:
                await anyio.wait_readable(self._sock)
                return
        except (OSError, anyio.ClosedResourceError) as error:
            raise self._mark_lost(SandboxLost(f"the box's stream broke: {error}", op="exec")) from None
        if not data:
            raise self._mark_lost(SandboxLost("the box ended while the command was running", op="exec"))
        try:
            for kind, id, payload in self._decoder.feed(data):
                self._calls.dispatch(kind, id, payload)
            self._wake()
        except ProofboxError as error:
            raise self._mark_lost(error) from None

    async def _wait_for_change(self) -> None:
        self._waiting += 1
        try:
            await self._changed.wait()
        finally:
            self._waiting -= 1

    def _wake(self) -> None:
        if self._waiting:
            self._changed.set()
            self._changed = anyio.Event()

    def _mark_lost(self, error: ProofboxError) -> ProofboxError:
        self._lost = self._lost or error
        self._wake()
        return self._lost

    async def _give_up(self) -> ProofboxError:
        """Kill the box: its agent does not answer, so its commands can't be ended otherwise."""
        lost = self._mark_lost(unanswered())
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._kill)
        return lost

    @contextlib.asynccontextmanager
    async def _answered_within(self, seconds: float) -> AsyncIterator[None]:
        with anyio.move_on_after(seconds) as scope:
            yield
        if scope.cancelled_caught:
            raise await self._give_up()

    async def _send(self, data: bytes) -> None:
        try:
            async with self._sending:
                await self._send_whole(data)
        finally:
            self._close_when_idle()

    async def _send_whole(self, data: bytes) -> None:
        data, self._unsent_hello = self._unsent_hello + data, b""
        view = memoryview(data)
        # A frame must be sent in full: part of a frame would garble those of the other commands. The agent always
        # reads, so if it takes nothing for this long, it is frozen.
        with anyio.CancelScope(shield=True) as scope:
            while view:
                try:
                    view = view[self._sock.send(view) :]
                except BlockingIOError:
                    scope.deadline = anyio.current_time() + ANSWER_TIMEOUT
                    await anyio.wait_writable(self._sock)
                except (OSError, anyio.ClosedResourceError) as error:
                    raise self._mark_lost(SandboxLost(f"the box's stream broke: {error}", op="exec")) from None
        if view:
            raise await self._give_up()

    async def _send_stdin(self, call: ActiveCall, stdin: bytes | BinaryIO) -> None:
        offset = 0
        while not call.finished and self._lost is None:
            room = min(call.stdin_window, 64 << 10)
            if room <= 0:
                await self._wait_for_change()
                continue
            if isinstance(stdin, bytes):
                data = stdin[offset : offset + room]
                offset += len(data)
            else:
                data = await anyio.to_thread.run_sync(read_stdin, stdin, room, abandon_on_cancel=True)
            if not data:
                await self._send(wire.frame(Send.STDIN_EOF, call.id))
                return
            call.stdin_window -= len(data)
            await self._send(wire.frame(Send.STDIN, call.id, data))

    async def _abandon(self, call: ActiveCall) -> None:
        """Kill the command. When this returns, the command has ended, or its box has."""
        with contextlib.suppress(SandboxLost, ProtocolError), anyio.CancelScope(shield=True):
            if call.finished or self._lost is not None:
                return
            async with self._answered_within(ANSWER_TIMEOUT):
                await self._send(wire.frame(Send.KILL, call.id))
                while not call.finished:
                    call.waiting.clear()
                    await self._turn(lambda: call.finished or bool(call.waiting))


class AsyncRunningCall:
    """A running command that can be signalled from its event loop; another task sends the frames."""

    def __init__(self, call: ActiveCall) -> None:
        self._call = call
        self._frames: deque[bytes] = deque()
        self._queued = anyio.Event()

    def signal(self, number: int) -> None:
        self._frames.append(wire.signal(self._call.id, number))
        self._queued.set()

    async def next_frame(self) -> bytes:
        while not self._frames:
            self._queued = anyio.Event()
            await self._queued.wait()
        return self._frames.popleft()
