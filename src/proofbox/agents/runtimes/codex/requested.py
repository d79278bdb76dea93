"""Calls that the model has requested, until Codex reports them.

Codex reports a command some 150 ms after starting it. A command that kills Codex before that is known only from the
gateway, which saw the model request it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from proofbox.agents.events import ToolCall
from proofbox.agents.gateway.traffic import Exchange, RequestedCall
from proofbox.agents.runtimes.codex import fields
from proofbox.agents.runtimes.codex.items import PAYLOAD
from proofbox.core.text import preview

MAX_TURNS = 1000
REPORTED_ELSEWHERE = ("write_stdin",)
"""Tools whose calls Codex reports under the id of another item."""


class RequestedCalls:
    """The calls in the model's latest response, by turn. The results of earlier calls were in the request for it."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, str], tuple[int, dict[str, RequestedCall]]] = {}

    def add(self, exchange: Exchange, call: RequestedCall) -> None:
        key = exchange.thread, exchange.turn
        number, calls = self._turns.pop(key, (exchange.number, {}))
        if number != exchange.number:
            calls = {}
        calls[call.id] = call
        self._turns[key] = exchange.number, calls
        if len(self._turns) > MAX_TURNS:
            del self._turns[next(iter(self._turns))]

    def move(self, thread: str, turn: str, dest: RequestedCalls) -> None:
        """Move the calls of a turn to another instance."""
        if (found := self._turns.pop((thread, turn), None)) is not None:
            dest._turns[thread, turn] = found

    def __bool__(self) -> bool:
        return bool(self._turns)

    def clear(self) -> None:
        self._turns.clear()

    def reported(self, thread: str, turn: str, call: str) -> None:
        self._turns.get((thread, turn), (0, {}))[1].pop(call, None)

    def forget(self, thread: str, turn: str) -> None:
        """Forget a completed turn: the model received the outcome of every call."""
        self._turns.pop((thread, turn), None)

    def abandon(self, threads: Collection[str] | None) -> list[ToolCall]:
        """Remove and return the calls of these threads (None: of all) that Codex never reported."""
        left: list[ToolCall] = []
        for thread, turn in list(self._turns):
            if threads is None or thread in threads:
                _, calls = self._turns.pop((thread, turn))
                left += [
                    _abandoned(thread, turn, call) for call in calls.values() if call.tool not in REPORTED_ELSEWHERE
                ]
        return left


def _abandoned(thread: str, turn: str, call: RequestedCall) -> ToolCall:
    tool, command = call.tool, call.arguments
    if tool == "exec_command":
        tool, command = "command", fields.text(_decoded(call.arguments), "cmd") or call.arguments
    return ToolCall(
        session="",
        thread=thread,
        turn=turn,
        item=call.id,
        tool=tool,
        command=preview(command, PAYLOAD)[0],
        status="abandoned",
    )


def _decoded(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
