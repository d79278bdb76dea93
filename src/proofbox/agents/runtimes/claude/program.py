"""One process of Claude Code: its messages and its control protocol.

The process may hang before it answers `initialize`, so every request has a timeout.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import msgspec

from proofbox.agents.lines import LineSplitter
from proofbox.agents.runtimes.thread_program import ThreadProgram
from proofbox.core.text import printable
from proofbox.errors import AgentError, RuntimeProtocolError, RuntimeTimedOut
from proofbox.sandbox.async_service import AsyncSession

LINE_LIMIT = 16 << 20

OnMessage = Callable[[dict[str, Any]], Awaitable[None]]
OnGarbage = Callable[[bytes, str], Awaitable[None]]
Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]
"""Answers a control request of the program. None: the request is unknown."""


class ClaudeProgram(ThreadProgram):
    """The process of one thread. `run` handles all messages."""

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
        super().__init__(box, thread, "claude", argv=argv, env=env, cwd=cwd)
        self._on_message = on_message
        self._on_garbage = on_garbage
        self._answer = answer
        self._timeout = timeout
        self._numbers = itertools.count(1)
        self._waiting: dict[str, tuple[anyio.Event, list[dict[str, Any]]]] = {}
        self._sending = anyio.Lock()

    async def initialize(self, hooks: dict[str, Any] | None) -> dict[str, Any]:
        """Wait for the process and complete the handshake."""
        await self.wait_opened(self._timeout)
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
        async with self._sending:
            await self._write(msgspec.json.encode(message) + b"\n")

    def _after_end(self) -> None:
        for event, _ in self._waiting.values():
            event.set()

    async def _serve(self) -> None:
        lines = LineSplitter(LINE_LIMIT)
        while data := await self._receive():
            for line, cut in lines.feed(data):
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
            await self._answer_request(message)
        else:
            await self._on_message(message)

    def _respond(self, response: Any) -> None:
        id = response.get("request_id") if isinstance(response, dict) else None
        if isinstance(id, str) and id in self._waiting:  # it also repeats our own answers
            event, responses = self._waiting[id]
            responses.append(response)
            event.set()

    async def _answer_request(self, message: dict[str, Any]) -> None:
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
