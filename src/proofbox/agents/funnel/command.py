"""Run one command for the program in the box: forward its input, output, signals and exit code.

The end of the call is recorded before the program receives the exit code, so that the step's snapshot shows the files
as the command left them.
"""

from __future__ import annotations

import contextlib
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Protocol

import anyio

from proofbox.agents.funnel.calls import FunnelCall, KeptOutput
from proofbox.agents.funnel.wire import STDIN_WINDOW, FunnelPeer, FunnelRequest, MalformedFrame
from proofbox.errors import ProofboxError, SandboxError, SandboxLost
from proofbox.sandbox.async_service import AsyncSession
from proofbox.sandbox.client.async_process import AsyncProcess, open_process
from proofbox.sandbox.client.connection import ANSWER_TIMEOUT
from proofbox.sandbox.contract import ExecResult, Output

FAILED = 125
TIMED_OUT = 124
_FORWARDED_SIGNALS = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
DISCONNECTED = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
"""Errors of reading from or sending to a program that has disconnected."""


class Relay(Protocol):
    """Forwards data between the client program and the command, either unchanged or message by message."""

    async def inbound(self, data: bytes) -> None:
        """Forward data from the client program to the command's stdin."""

    async def inbound_end(self) -> None: ...

    async def outbound(self, piece: Output) -> None:
        """Forward output from the command to the client program."""

    async def close(self) -> None:
        """Finish after the command has ended. Runs shielded from cancellation, so it needs its own timeouts."""


class ByteRelay:
    """The relay of `proofbox run`: forwards bytes unchanged."""

    def __init__(self, process: AsyncProcess, peer: FunnelPeer) -> None:
        self._process = process
        self._peer = peer

    async def inbound(self, data: bytes) -> None:
        await self._process.send(data)

    async def inbound_end(self) -> None:
        await self._process.close_stdin()

    async def outbound(self, piece: Output) -> None:
        with contextlib.suppress(*DISCONNECTED):  # the client disconnected: `_ClientReader` kills the command
            await self._peer.output(piece.stream, piece.data)

    async def close(self) -> None:
        pass


MakeRelay = Callable[[AsyncProcess, FunnelPeer], Relay]


async def run_command(
    box: AsyncSession,
    request: FunnelRequest,
    cwd: str,
    peer: FunnelPeer,
    call: FunnelCall,
    make_relay: MakeRelay,
    seconds: float | None,
) -> None:
    """Run the command, record the end of the call, then report it to the peer.

    If this is cancelled, the command is killed first.
    """
    kept = call.output_buffer()
    try:
        with _one_error():
            result = await _communicate(box, request, cwd, peer, call, make_relay, kept, seconds)
    except SandboxLost as error:
        await call.end("abandoned", output=kept.text())
        return await _fail(peer, FAILED, error)
    except SandboxError as error:
        code = error.exit_code if error.exit_code in (126, 127) else None  # the command was not started
        await call.end("failed", exit_code=code, output=f"{error.code}: {error.message}")
        return await _fail(peer, code or FAILED, error)
    except BaseException:
        await call.end("abandoned", output=kept.text())
        raise
    if result is None:
        await call.end("failed", exit_code=TIMED_OUT, output=kept.text())
        with contextlib.suppress(*DISCONNECTED):
            await peer.fail(TIMED_OUT, f"the command timed out after {seconds:g} s")
        return None
    await call.end("completed" if result.exit_code == 0 else "failed", exit_code=result.exit_code, output=kept.text())
    with contextlib.suppress(*DISCONNECTED):
        await peer.exit(result.exit_code)
    return None


async def _communicate(
    box: AsyncSession,
    request: FunnelRequest,
    cwd: str,
    peer: FunnelPeer,
    call: FunnelCall,
    make_relay: MakeRelay,
    kept: KeptOutput,
    seconds: float | None,
) -> ExecResult | None:
    """Run the command and return its result, or None if it timed out."""
    async with open_process(box, request.argv, env=request.env, cwd=cwd) as process:
        relay = make_relay(process, peer)
        try:
            async with _in_background(_ClientReader(peer, process, relay).listen):
                with anyio.move_on_after(seconds) as deadline:
                    while (piece := await process.receive()) is not None:
                        kept.add(piece.data)
                        await call.show(piece)
                        await relay.outbound(piece)
                if deadline.cancelled_caught:
                    await _end(process, kept)
                result = await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process, kept)
                call.started = process.started
                await relay.close()
    return None if deadline.cancelled_caught else result


async def _end(process: AsyncProcess, kept: KeptOutput) -> None:
    """Kill the process if it still runs, and record the output that it had already written."""
    with contextlib.suppress(ProofboxError), anyio.move_on_after(ANSWER_TIMEOUT):
        await process.kill()
        while (piece := await process.receive()) is not None:
            kept.add(piece.data)


class _ClientReader:
    """Reads frames from the client program without blocking. Only stdin waits for the command, in a bounded window."""

    def __init__(self, peer: FunnelPeer, process: AsyncProcess, relay: Relay) -> None:
        self._peer = peer
        self._process = process
        self._relay = relay
        self._window = STDIN_WINDOW
        self._waiting: deque[bytes] = deque()
        self._ended = False
        self._changed = anyio.Event()

    async def listen(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._forward_stdin)
            try:
                await self._peer.credit(self._window)
                while True:
                    await self._take(*await self._peer.receive())
            except (MalformedFrame, *DISCONNECTED):
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._process.kill()  # the client disconnected

    async def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == b"I" and not self._ended and len(payload) <= self._window:
            self._window -= len(payload)
            self._waiting.append(payload)
        elif kind == b"E":
            self._ended = True
        elif kind == b"S" and len(payload) == 1 and payload[0] in _FORWARDED_SIGNALS:
            await self._process.signal(payload[0])
        else:
            raise MalformedFrame("unexpected frame")
        self._changed.set()

    async def _forward_stdin(self) -> None:
        while True:
            while self._waiting:
                data = self._waiting.popleft()
                with contextlib.suppress(anyio.BrokenResourceError):  # the command has closed its stdin
                    await self._relay.inbound(data)
                self._window += len(data)
                with contextlib.suppress(*DISCONNECTED):
                    await self._peer.credit(len(data))
            if self._ended:
                return await self._relay.inbound_end()
            await self._changed.wait()
            self._changed = anyio.Event()


@contextlib.asynccontextmanager
async def _in_background(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        yield
        tasks.cancel_scope.cancel()


@contextlib.contextmanager
def _one_error() -> Iterator[None]:
    """Unwrap the exception group of a task group into its first error."""
    try:
        yield
    except BaseExceptionGroup as group:
        found: BaseException = group
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        raise found from None


async def _fail(peer: FunnelPeer, code: int, error: ProofboxError) -> None:
    with contextlib.suppress(*DISCONNECTED):
        await peer.fail(code, error.message)
