"""Running one command for the program in the box: its bytes both ways, signals, and its end.

The record is told before the program hears of the end, so that the step's snapshot is of what the command left.
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
from proofbox.sandbox.client.connection import PATIENCE
from proofbox.sandbox.contract import ExecResult, Output

FAILED = 125
TIMED_OUT = 124
_PASSED_ON = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
"""What reading from or sending to a program that has left raises."""


class Relay(Protocol):
    """What lies between the two ends: bytes as they are, or messages that are looked at."""

    async def inbound(self, data: bytes) -> None:
        """From the program that asked, to the command's stdin."""

    async def inbound_end(self) -> None: ...

    async def outbound(self, piece: Output) -> None:
        """From the command to the program that asked."""

    async def close(self) -> None:
        """The command has ended, or is about to be ended. Not cancelled from outside, so that it must end by itself."""


class ByteRelay:
    """The carriage of `run`."""

    def __init__(self, process: AsyncProcess, peer: FunnelPeer) -> None:
        self._process = process
        self._peer = peer

    async def inbound(self, data: bytes) -> None:
        await self._process.send(data)

    async def inbound_end(self) -> None:
        await self._process.close_stdin()

    async def outbound(self, piece: Output) -> None:
        with contextlib.suppress(*GONE):  # its reader has left: `_Asker` ends the command
            await self._peer.output(piece.stream, piece.data)

    async def close(self) -> None:
        pass


MakeCarriage = Callable[[AsyncProcess, FunnelPeer], Relay]


async def run_command(
    box: AsyncSession,
    asked: FunnelRequest,
    cwd: str,
    peer: FunnelPeer,
    call: FunnelCall,
    carriage: MakeCarriage,
    seconds: float | None,
) -> None:
    """Run it to its end, tell the call's, then say it to the peer. Cancelled, the command is dead first."""
    kept = call.kept()
    try:
        with _one_error():
            result = await _converse(box, asked, cwd, peer, call, carriage, kept, seconds)
    except SandboxLost as error:
        await call.end("abandoned", output=kept.text())
        return await _fail(peer, FAILED, error)
    except SandboxError as error:
        code = error.exit_code if error.exit_code in (126, 127) else None  # it never ran
        await call.end("failed", exit_code=code, output=f"{error.code}: {error.message}")
        return await _fail(peer, code or FAILED, error)
    except BaseException:
        await call.end("abandoned", output=kept.text())
        raise
    if result is None:
        await call.end("failed", exit_code=TIMED_OUT, output=kept.text())
        with contextlib.suppress(*GONE):
            await peer.fail(TIMED_OUT, f"the command took longer than {seconds:g} s")
        return None
    await call.end("completed" if result.exit_code == 0 else "failed", exit_code=result.exit_code, output=kept.text())
    with contextlib.suppress(*GONE):
        await peer.exit(result.exit_code)
    return None


async def _converse(
    box: AsyncSession,
    asked: FunnelRequest,
    cwd: str,
    peer: FunnelPeer,
    call: FunnelCall,
    make: MakeCarriage,
    kept: KeptOutput,
    seconds: float | None,
) -> ExecResult | None:
    """The result; None where its time was up."""
    async with open_process(box, asked.argv, env=asked.env, cwd=cwd) as process:
        carriage = make(process, peer)
        try:
            async with _in_background(_Asker(peer, process, carriage).listen):
                with anyio.move_on_after(seconds) as deadline:
                    while (piece := await process.receive()) is not None:
                        kept.add(piece.data)
                        await call.show(piece)
                        await carriage.outbound(piece)
                if deadline.cancelled_caught:
                    await _end(process, kept)
                result = await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process, kept)
                call.started = process.started
                await carriage.close()
    return None if deadline.cancelled_caught else result


async def _end(process: AsyncProcess, kept: KeptOutput) -> None:
    """Kill what still runs. What it had written by then is of the record, though it is read only now."""
    with contextlib.suppress(ProofboxError), anyio.move_on_after(PATIENCE):
        await process.kill()
        while (piece := await process.receive()) is not None:
            kept.add(piece.data)


class _Asker:
    """Takes what the program in the box sends, always: only stdin waits for the command, in a window of its own."""

    def __init__(self, peer: FunnelPeer, process: AsyncProcess, carriage: Relay) -> None:
        self._peer = peer
        self._process = process
        self._carriage = carriage
        self._window = STDIN_WINDOW
        self._waiting: deque[bytes] = deque()
        self._ended = False
        self._changed = anyio.Event()

    async def listen(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._pour)
            try:
                await self._peer.credit(self._window)
                while True:
                    await self._take(*await self._peer.receive())
            except (MalformedFrame, *GONE):
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._process.kill()  # who asked for it has left

    async def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == b"I" and not self._ended and len(payload) <= self._window:
            self._window -= len(payload)
            self._waiting.append(payload)
        elif kind == b"E":
            self._ended = True
        elif kind == b"S" and len(payload) == 1 and payload[0] in _PASSED_ON:
            await self._process.signal(payload[0])
        else:
            raise MalformedFrame("a frame that was not due")
        self._changed.set()

    async def _pour(self) -> None:
        while True:
            while self._waiting:
                data = self._waiting.popleft()
                with contextlib.suppress(anyio.BrokenResourceError):  # it has ended: nobody reads this any more
                    await self._carriage.inbound(data)
                self._window += len(data)
                with contextlib.suppress(*GONE):
                    await self._peer.credit(len(data))
            if self._ended:
                return await self._carriage.inbound_end()
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
    """A task group says what went wrong in a group; here one error is as good as all."""
    try:
        yield
    except BaseExceptionGroup as group:
        found: BaseException = group
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        raise found from None


async def _fail(peer: FunnelPeer, code: int, error: ProofboxError) -> None:
    with contextlib.suppress(*GONE):
        await peer.fail(code, error.message)
