"""One process of Claude Code in the session's box: its messages, its control protocol, and its end.

The process may outlive its stdin, hang before it answers `initialize`, or not exit while a child lives. So every
request has a timeout, and the end does not depend on the process: it is killed with everything that it started.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import msgspec

from proofbox.agents.agent_box import kill_marked
from proofbox.agents.lines import LineSplitter
from proofbox.agents.runtimes.claude.settings import THREAD_VARIABLE
from proofbox.core.text import printable
from proofbox.errors import (
    AgentError,
    ProofboxError,
    RuntimeCrashed,
    RuntimeProtocolError,
    RuntimeTimedOut,
    TransportBroken,
)
from proofbox.sandbox.async_service import AsyncSession
from proofbox.sandbox.client.async_process import AsyncProcess, open_process
from proofbox.sandbox.contract import ExecResult

LINE_LIMIT = 16 << 20
MAX_STDERR = 8 << 10
EXIT_SECONDS = 3.0

OnMessage = Callable[[dict[str, Any]], Awaitable[None]]
OnGarbage = Callable[[bytes, str], Awaitable[None]]
Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]
"""Answers a control request of the program. None: the request is unknown."""


class ClaudeProgram:
    """The process of one thread. `run` must run as a background task; it handles all messages."""

    def __init__(
        self,
        box: AsyncSession,
        thread: str,
        *,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        on_message: OnMessage,
        on_garbage: OnGarbage,
        answer: Answer,
        timeout: float,
    ) -> None:
        self._box = box
        self._thread = thread
        self._argv = argv
        self._env = {**env, THREAD_VARIABLE: thread}
        self._cwd = cwd
        self._on_message = on_message
        self._on_garbage = on_garbage
        self._answer = answer
        self._timeout = timeout
        self._process: AsyncProcess | None = None
        self._scope = anyio.CancelScope()
        self._opened = anyio.Event()
        self._numbers = itertools.count(1)
        self._waiting: dict[str, tuple[anyio.Event, list[dict[str, Any]]]] = {}
        self._stderr: deque[bytes] = deque(maxlen=64)
        self._sending = anyio.Lock()
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
                    await self._read(process)
                    self.failure = await self._crash(process)
        except ProofboxError as error:
            self.failure = error
        except Exception as error:  # background tasks must not raise
            self.failure = RuntimeProtocolError(f"claude's output: {type(error).__name__}: {error}", op="turn")
        finally:
            self.failure = self.failure or RuntimeCrashed("claude was stopped", op="turn")
            self.ended.set()
            self._opened.set()
            for event, _ in self._waiting.values():
                event.set()

    async def initialize(self, hooks: dict[str, Any] | None) -> dict[str, Any]:
        """Wait for the process and complete the handshake."""
        with anyio.move_on_after(self._timeout):
            await self._opened.wait()
        return await self.request("initialize", hooks=hooks)

    async def request(self, subtype: str, **members: Any) -> dict[str, Any]:
        """Send a control request and return the response."""
        id = f"proofbox-{next(self._numbers)}"
        event, responses = self._waiting[id] = anyio.Event(), []
        try:
            with anyio.move_on_after(self._timeout) as scope:
                await self.send(
                    {"type": "control_request", "request_id": id, "request": {"subtype": subtype, **members}}
                )
                await event.wait()
        finally:
            del self._waiting[id]
        if scope.cancelled_caught:
            raise RuntimeTimedOut(f"claude did not answer {subtype} within {self._timeout:g} s", op=subtype)
        if not responses:
            raise self.ended_error(subtype)
        if responses[0].get("subtype") != "success":
            reason = printable(str(responses[0].get("error")))[:500]
            raise RuntimeProtocolError(f"claude refused {subtype}: {reason}", op=subtype)
        found = responses[0].get("response")
        return found if isinstance(found, dict) else {}

    async def send(self, message: dict[str, Any]) -> None:
        if self._process is None or self.ended.is_set():
            raise self.ended_error("send")
        async with self._sending:
            try:
                await self._process.send(msgspec.json.encode(message) + b"\n")
            except anyio.BrokenResourceError:
                raise TransportBroken("claude has ended", op="send") from None

    async def exit(self) -> bool:
        """Let the process exit. Kill it if it does not, as it may wait for a child. Return whether it was killed."""
        if self._process is None or self.ended.is_set():
            return False
        with contextlib.suppress(ProofboxError, anyio.BrokenResourceError):
            await self._process.close_stdin()
        with anyio.move_on_after(EXIT_SECONDS):
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
        failure = self.failure or RuntimeCrashed("claude has ended", op=op)
        if isinstance(failure, AgentError):
            return failure
        return RuntimeCrashed(failure.message, op=op, details={"cause": failure.code})

    async def _read(self, process: AsyncProcess) -> None:
        lines = LineSplitter(LINE_LIMIT)
        while (piece := await process.receive()) is not None:
            if piece.stream == "stderr":
                self._stderr.append(piece.data[-MAX_STDERR:])
                continue
            for line, cut in lines.feed(piece.data):
                await self._line(line, cut)
        for line, cut in lines.end():
            await self._line(line, cut)

    async def _line(self, line: bytes, cut: bool) -> None:
        try:
            message = msgspec.json.decode(line) if not cut else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            message = None
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            await self._on_garbage(line, f"longer than {LINE_LIMIT} bytes" if cut else "not a JSON object with a type")
        elif message["type"] == "control_response":
            self._respond(message.get("response"))
        elif message["type"] == "control_request":
            await self._serve(message)
        else:
            await self._on_message(message)

    def _respond(self, response: Any) -> None:
        id = response.get("request_id") if isinstance(response, dict) else None
        if isinstance(id, str) and id in self._waiting:  # it also repeats our own answers
            event, responses = self._waiting[id]
            responses.append(response)
            event.set()

    async def _serve(self, message: dict[str, Any]) -> None:
        request = message.get("request")
        members = request if isinstance(request, dict) else {}
        reply = await self._answer(members)
        response: dict[str, Any] = {"request_id": message.get("request_id")}
        if reply is None:
            kind = str(members.get("subtype"))[:100]
            response |= {"subtype": "error", "error": f"{kind} is not supported"}
        else:
            response |= {"subtype": "success", "response": reply}
        with contextlib.suppress(AgentError):  # it has ended, which `run` reports
            await self.send({"type": "control_response", "response": response})

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
            f"claude ended: {how}{f': {last[0][:300]}' if last else ''}",
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
