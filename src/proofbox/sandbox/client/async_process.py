"""A running command with interactive stdin and output, for async callers.

    async with open_process(session, ["agent", "--serve"]) as process:
        await process.send(b"hello\n")
        piece = await process.receive()

Both directions have flow control: `send` waits while the command does not read, and a command whose output is not
received blocks on its pipe, as it would outside a box. At the end of the block, the command is killed if it still runs.
"""

from __future__ import annotations

import contextlib
import signal as signals
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import anyio

from proofbox.errors import ProofboxError
from proofbox.sandbox.async_service import AsyncSession
from proofbox.sandbox.client import wire
from proofbox.sandbox.client.async_connection import AsyncConnection
from proofbox.sandbox.client.calls import ActiveCall
from proofbox.sandbox.client.requests import STREAM_WINDOW
from proofbox.sandbox.client.wire import Send
from proofbox.sandbox.contract import Event, ExecResult, Output
from proofbox.sandbox.options import ExecOptions
from proofbox.sandbox.service_core import SessionCore

PIECE = 64 << 10
CREDIT = STREAM_WINDOW // 4  # sent in batches, so that small pieces don't wake the box agent each time
KEPT_OUTPUT = 64 << 10  # bytes of each stream in the result, head and tail; `receive` returns all output


class AsyncProcess:
    """A running command. One task may send while another receives. Without a box, methods raise `SandboxLost`."""

    def __init__(self, session: SessionCore[AsyncConnection], call: ActiveCall, oom_kills_before: int) -> None:
        self._session = session
        self._connection = session.connection
        self._call = call
        self._oom_kills_before = oom_kills_before
        self._sending = anyio.Lock(fast_acquire=True)
        self._owed = 0

    @property
    def ended(self) -> bool:
        return self._call.finished

    @property
    def started(self) -> bool | None:
        """Whether the program ran, according to the box agent: True after any output or its exit, False if it could not
        be started, None as long as neither has been reported."""
        if self._call.error is not None:
            return False
        return True if self._call.exit is not None or self._call.has_output else None

    async def send(self, data: bytes) -> None:
        """Write to its stdin. Raises `anyio.BrokenResourceError` if it has ended; unread input is lost silently."""
        call = self._call
        async with self._sending:
            view = memoryview(data)
            while view:
                await self._turn(lambda: call.finished or call.stdin_window > 0)
                if call.finished:
                    raise anyio.BrokenResourceError
                piece = bytes(view[: min(call.stdin_window, PIECE)])
                view = view[len(piece) :]
                call.stdin_window -= len(piece)
                await self._post(Send.STDIN, piece)

    async def close_stdin(self) -> None:
        """Close its stdin. Idempotent."""
        async with self._sending:
            await self._post(Send.STDIN_EOF)

    async def receive(self) -> Output | None:
        """Return its next piece of output, from either stream; None after it has ended and all output was received."""
        call = self._call
        await self._turn(lambda: call.finished or bool(call.waiting))
        if not call.waiting:
            return None
        piece = call.waiting.popleft()
        self._owed += len(piece.data)
        if self._owed >= CREDIT and not call.finished:
            owed, self._owed = self._owed, 0
            async with self._explained():
                await self._connection._send(wire.credit(call.id, owed))
        return piece

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        await self._post(Send.SIGNAL, bytes([signals.Signals(number)]))

    async def kill(self) -> None:
        """Kill its process tree. `wait` returns when it has ended."""
        await self._post(Send.KILL)

    async def wait(self) -> ExecResult:
        """Wait until it ends. Output that was not received is dropped, except for the part kept in the result."""
        while not self._call.finished or self._call.waiting:
            await self.receive()
        async with self._explained():
            return await self._session.result(self._call, self._oom_kills_before)

    async def _turn(self, ready: Callable[[], bool]) -> None:
        if not ready():
            async with self._explained():
                await self._connection._turn(ready)

    async def _post(self, kind: Send, payload: bytes = b"") -> None:
        if not self._call.finished:
            async with self._explained():
                await self._connection._send(wire.frame(kind, self._call.id, payload))

    @contextlib.asynccontextmanager
    async def _explained(self) -> AsyncIterator[None]:
        try:
            yield
        except ProofboxError as error:
            raise await self._session.explain(error) from None


@contextlib.asynccontextmanager
async def open_process(
    session: AsyncSession,
    argv: Sequence[str | bytes],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> AsyncIterator[AsyncProcess]:
    """Start a command in a session's box, with its stdin open. It is killed when the block ends for any reason."""
    options = ExecOptions(env=env, cwd=cwd, stdin=b"", on_output=_received, max_output=KEPT_OUTPUT)
    core = session._core
    request, oom_kills_before = await core.prepare(argv, options)
    connection = core.connection
    id = connection._calls.new_id()
    data = wire.execute(id, request.encoded)
    call = connection._calls.begin(id, request)
    process = AsyncProcess(core, call, oom_kills_before)
    core.emit(Event("exec", "started", session.id))
    try:
        async with process._explained():
            await connection._send(data)
        yield process
    finally:
        await connection._abandon(call)
        connection._calls.end(call)
        core.emit(Event("exec", "finished", session.id))


def _received(_: Output) -> None:
    """Request streamed output; `receive` takes it from the queue."""
