"""A command that is talked to while it runs, for async callers: stdin and output at the same time.

    async with open_process(session, ["agent", "--serve"]) as process:
        await process.send(b"hello\n")
        piece = await process.receive()

Both directions have flow control: `send` waits while the command does not read, and a command whose output nobody
receives is stopped by its pipe, as it would be without a box. Leaving the block kills what is still there.
"""

from __future__ import annotations

import contextlib
import signal as signals
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

import anyio

from proofbox.errors import ProofboxError
from proofbox.sandbox.async_service import AsyncSession
from proofbox.sandbox.box_handle import ExecOptions
from proofbox.sandbox.client import wire
from proofbox.sandbox.client.async_connection import AsyncConnection
from proofbox.sandbox.client.calls import ActiveCall
from proofbox.sandbox.client.requests import STREAM_WINDOW
from proofbox.sandbox.client.wire import Send
from proofbox.sandbox.contract import Event, ExecResult, Output

PIECE = 64 << 10
CREDIT = STREAM_WINDOW // 4  # told at once: a talk of small pieces needn't wake the box agent for each
KEPT_OUTPUT = 64 << 10  # what a result holds of each stream, head and tail: the rest was for whoever received it


class AsyncProcess:
    """One task may send and one may receive, at once. Where the box is gone, every method raises `SandboxLost`."""

    def __init__(self, session: AsyncSession, connection: AsyncConnection, call: ActiveCall) -> None:
        self._session = session
        self._connection = connection
        self._call = call
        self._oom_before = session._inside.oom_kills()
        self._sending = anyio.Lock(fast_acquire=True)
        self._owed = 0

    @property
    def ended(self) -> bool:
        return self._call.finished

    @property
    def started(self) -> bool | None:
        """Whether the program ran, as the box agent reports it: True after any output or its exit, False when it could
        not be started, None as long as neither has been reported."""
        if self._call.error is not None:
            return False
        return True if self._call.exit is not None or self._call.has_output else None

    async def send(self, data: bytes) -> None:
        """Write to its stdin. `anyio.BrokenResourceError` when it has ended; what it does not read is lost silently."""
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
        """The end of its input. May be repeated."""
        async with self._sending:
            await self._post(Send.STDIN_EOF)

    async def receive(self) -> Output | None:
        """The next piece of its output, of either stream; None when it has ended and everything was received."""
        call = self._call
        await self._turn(lambda: call.finished or bool(call.waiting))
        if not call.waiting:
            return None
        piece = call.waiting.popleft()
        self._owed += len(piece.data)
        if self._owed >= CREDIT and not call.finished:
            owed, self._owed = self._owed, 0
            with self._explained():
                await self._connection._send(wire.credit(call.id, owed))
        return piece

    async def signal(self, number: int) -> None:
        """A signal to its process group."""
        await self._post(Send.SIGNAL, bytes([signals.Signals(number)]))

    async def kill(self) -> None:
        """End it and everything it started. `wait` returns when it is gone."""
        await self._post(Send.KILL)

    async def wait(self) -> ExecResult:
        """Wait for its end. Output that nobody received is dropped, but for what the result keeps."""
        while not self._call.finished or self._call.waiting:
            await self.receive()
        inside = self._session._inside
        with self._explained():
            return inside.result(self._call, self._oom_before)

    async def _turn(self, ready: Callable[[], bool]) -> None:
        with self._explained():
            await self._connection._turn(ready)

    async def _post(self, kind: Send, payload: bytes = b"") -> None:
        if not self._call.finished:
            with self._explained():
                await self._connection._send(wire.frame(kind, self._call.id, payload))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ProofboxError as error:
            raise self._session._origin.explain_loss(error, self._connection.hello is not None) from None


@contextlib.asynccontextmanager
async def open_process(
    session: AsyncSession,
    argv: Sequence[str | bytes],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> AsyncIterator[AsyncProcess]:
    """Start a command in a session's box, with its stdin open. It is dead when the block is left, however that is."""
    options = ExecOptions(env=env, cwd=cwd, stdin=b"", on_output=_received, max_output=KEPT_OUTPUT)
    request = session._inside.request(argv, options, session._environment)
    connection = session._connection
    call, data = connection._calls.begin(request)
    process = AsyncProcess(session, connection, call)
    session._house.tell(Event("exec", "started", session.id))
    try:
        with process._explained():
            await connection._send(data)
        yield process
    finally:
        await connection._abandon(call)
        connection._calls.end(call)
        session._house.tell(Event("exec", "finished", session.id))


def _received(_: Output) -> None:
    """Asks for output as it comes; `receive` is who takes it."""
