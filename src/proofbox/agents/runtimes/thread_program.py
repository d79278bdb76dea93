"""One process of an agent in the session's box, which serves one thread: its start, its end, and how it ended.

The process may outlive its stdin, or not exit while a child lives. So ending it does not rely on its cooperation: it is
killed with everything that it started.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence

import anyio

from proofbox.agents.agent_box import kill_marked
from proofbox.core.text import printable
from proofbox.errors import AgentError, ProofboxError, RuntimeCrashed, RuntimeProtocolError, TransportBroken
from proofbox.sandbox.async_service import AsyncSession
from proofbox.sandbox.client.async_process import AsyncProcess, open_process
from proofbox.sandbox.contract import ExecResult

MAX_STDERR = 8 << 10
EXIT_SECONDS = 3.0
THREAD_VARIABLE = "PROOFBOX_THREAD"
"""Marks every process of a thread, so that it can be found after it has detached itself."""


class ThreadProgram:
    """The process of one thread. `run` must run as a background task. Subclasses handle its output (`_serve`)."""

    exit_seconds = EXIT_SECONDS
    """Seconds that it gets to exit after its stdin was closed."""

    def __init__(
        self, box: AsyncSession, thread: str, name: str, *, argv: Sequence[str], env: Mapping[str, str], cwd: str | None
    ) -> None:
        self._box = box
        self._thread = thread
        self._name = name
        self._argv = argv
        self._env = {**env, THREAD_VARIABLE: thread}
        self._cwd = cwd
        self._process: AsyncProcess | None = None
        self._scope = anyio.CancelScope()
        self._opened = anyio.Event()
        self._stderr: deque[bytes] = deque(maxlen=64)
        self.ended = anyio.Event()
        self.failure: ProofboxError | None = None
        """Why the process ended or its messages could not be handled."""

    async def run(self) -> None:
        """Run the process until it ends or `end` is called. Never raises: the error is in `failure`."""
        try:
            with self._scope:
                async with open_process(self._box, self._argv, env=self._env, cwd=self._cwd) as process:
                    self._process = process
                    self._opened.set()
                    await self._serve()
                    self.failure = await self._crash(process)
        except ProofboxError as error:
            self.failure = error
        except Exception as error:  # background tasks must not raise
            self.failure = RuntimeProtocolError(f"{self._name}'s output: {type(error).__name__}: {error}", op="turn")
        finally:
            self.failure = self.failure or RuntimeCrashed(f"{self._name} was stopped", op="turn")
            self.ended.set()
            self._opened.set()
            self._after_end()

    async def wait_opened(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._opened.wait()

    async def exit(self) -> bool:
        """Let the process exit. Kill it if it does not, as it may wait for a child. Return whether it was killed."""
        if self._process is None or self.ended.is_set():
            return False
        with contextlib.suppress(ProofboxError, anyio.BrokenResourceError):
            await self._process.close_stdin()
        with anyio.move_on_after(self.exit_seconds):
            await self.ended.wait()
        if self.ended.is_set():
            return False
        with contextlib.suppress(ProofboxError):
            await self._process.kill()
        return True

    async def end(self) -> bool:
        """Kill the process and everything that it started. Return whether no process of the thread is left."""
        if self._process is not None and not self.ended.is_set():
            with contextlib.suppress(ProofboxError):
                await self._process.kill()
        killed = await kill_marked(self._box, [f"{THREAD_VARIABLE}={self._thread}"])
        with anyio.move_on_after(EXIT_SECONDS):  # its stdout may be held open by something that can't be found
            await self.ended.wait()
        self._scope.cancel()
        await self.ended.wait()
        return killed

    def ended_error(self, op: str) -> AgentError:
        failure = self.failure or RuntimeCrashed(f"{self._name} has ended", op=op)
        if isinstance(failure, AgentError):
            return failure
        return RuntimeCrashed(failure.message, op=op, details={"cause": failure.code})

    # For subclasses

    async def _serve(self) -> None:
        """Handle the output of the process until it ends."""
        raise NotImplementedError

    def _after_end(self) -> None:
        """Wake everything that waits for the process."""

    async def _receive(self) -> bytes:
        """Return the next piece of its stdout, or nothing at the end. The end of its stderr is kept for errors."""
        if self._process is None:
            return b""
        while (piece := await self._process.receive()) is not None:
            if piece.stream != "stderr":
                return piece.data
            self._stderr.append(piece.data[-MAX_STDERR:])
        return b""

    async def _write(self, data: bytes) -> None:
        """Write to its stdin, by one task at a time."""
        if self._process is None or self.ended.is_set():
            raise self.ended_error("send")
        try:
            await self._process.send(data)
        except anyio.BrokenResourceError:
            raise TransportBroken(f"{self._name} has ended", op="send") from None

    async def _crash(self, process: AsyncProcess) -> RuntimeCrashed:
        result: ExecResult | None = None
        lost = ""
        with anyio.move_on_after(EXIT_SECONDS):
            try:
                result = await process.wait()
            except ProofboxError as error:
                lost = error.code
        how = f"its box has ended ({lost})" if lost else "it closed its stdout but kept running"
        if result is not None:
            how = f"killed by signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
        stderr = printable(b"".join(self._stderr)[-MAX_STDERR:].decode("utf-8", "replace"))
        last = stderr.strip().splitlines()[-1:]
        return RuntimeCrashed(
            f"{self._name} ended: {how}{f': {last[0][:300]}' if last else ''}",
            op="turn",
            fix_hints=["continue in the thread: the turn is not repeated, because it may have had effects"],
            details={
                "exit_code": result.exit_code if result is not None else None,
                "signal": result.signal if result is not None else None,
                "oom_killed": result is not None and result.usage.oom_killed,
                "stderr": stderr,
                **({"cause": lost} if lost else {}),
            },
        )
