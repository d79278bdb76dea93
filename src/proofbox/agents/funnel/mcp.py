"""The relay of `mcp proxy`: forward JSON-RPC between a client in the box and an MCP server, and record each tool call.

Each message is parsed and serialized again before it is forwarded, so that the server receives exactly what was
recorded; otherwise two parsers could read the same text differently. Malformed messages are not forwarded.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import anyio

from proofbox.agents.funnel.calls import CallRecorder, FunnelCall
from proofbox.agents.funnel.command import DISCONNECTED
from proofbox.agents.funnel.wire import SEND_TIMEOUT, FunnelPeer
from proofbox.agents.lines import LineSplitter
from proofbox.core.text import preview
from proofbox.sandbox.client.async_process import AsyncProcess
from proofbox.sandbox.contract import Output

LINE_LIMIT = 4 << 20
MAX_PENDING = 1000
TOOL_CALL = "tools/call"
_PARSE_ERROR, _INVALID = -32700, -32600


class ToolRelay:
    def __init__(self, process: AsyncProcess, peer: FunnelPeer, recorder: CallRecorder) -> None:
        self._process = process
        self._peer = peer
        self._recorder = recorder
        self._requests = LineSplitter(LINE_LIMIT)
        self._responses = LineSplitter(LINE_LIMIT)
        self._pending: dict[str, FunnelCall] = {}

    async def inbound(self, data: bytes) -> None:
        for line, cut in self._requests.feed(data):
            await self._to_server(line, cut)

    async def inbound_end(self) -> None:
        for line, cut in self._requests.end():
            await self._to_server(line, cut)
        await self._process.close_stdin()

    async def outbound(self, piece: Output) -> None:
        if piece.stream == "stderr":
            return await self._show("stderr", piece.data)
        for line, cut in self._responses.feed(piece.data):
            await self._to_client(line, cut)
        return None

    async def close(self) -> None:
        with anyio.move_on_after(SEND_TIMEOUT):  # a client that never reads must not block this forever
            for line, cut in self._responses.end():
                await self._to_client(line, cut)
        while self._pending:
            _, call = self._pending.popitem()
            call.started = None  # unknown: the server did not answer
            await call.end("abandoned")

    async def _to_server(self, line: bytes, cut: bool) -> None:
        message = None if cut else _parse(line)
        if message is None:
            why = f"not a JSON object of at most {LINE_LIMIT} bytes on one line"
            return await self._reply(None, error={"code": _PARSE_ERROR, "message": why})
        if message.get("method") == TOOL_CALL and not await self._admit(message):
            return None
        return await self._process.send(_encode(message))

    async def _admit(self, message: dict[str, Any]) -> bool:
        """Return whether to forward a tool call to the server. A refused call has already been answered."""
        id = message.get("id")
        key = _key(id)
        if key is None or key in self._pending or len(self._pending) >= MAX_PENDING or not self._recorder.budget.take():
            why = "tool call refused: its id is not a unique string or integer, or there are too many calls"
            await self._reply(None if key is None else id, error={"code": _INVALID, "message": why})
            return False
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        # The prefix prevents a server's tool from using a reserved name, such as `command`.
        tool = f"mcp/{preview(str(params.get('name')), 200)[0]}"
        arguments = json.dumps(params.get("arguments"), ensure_ascii=False)
        call = self._recorder.call(tool, arguments)
        rule = await call.begin(TOOL_CALL)
        if rule is not None:
            content = [{"type": "text", "text": f"declined: {rule}"}]
            await self._reply(id, result={"content": content, "isError": True})
            return False
        self._pending[key] = call
        return True

    async def _to_client(self, line: bytes, cut: bool) -> None:
        message = None if cut else _parse(line)
        if message is None:
            return await self._show("stderr", line + b"\n")
        call = None
        if "method" not in message:
            call = self._pending.pop(_key(message.get("id")) or "", None)
        if call is not None:  # record the end before the agent receives the result, as for a command
            failed = "error" in message or _is_error(message.get("result"))
            call.started = "error" not in message  # a server that does not have the tool answers with an error
            kept = call.output_buffer()
            kept.add(_text_of(message).encode())
            await call.end("failed" if failed else "completed", output=kept.text())
        return await self._show("stdout", _encode(message))

    async def _reply(self, id: Any, **answer: Any) -> None:
        await self._show("stdout", _encode({"jsonrpc": "2.0", "id": id, **answer}))

    async def _show(self, stream: Any, data: bytes) -> None:
        with contextlib.suppress(*DISCONNECTED):
            await self._peer.output(stream, data)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line, parse_constant=_reject_constant)
        json.dumps(message, ensure_ascii=False, allow_nan=False).encode()  # reject 1e999 and lone surrogates
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _key(id: Any) -> str | None:
    """Return a key for the id, or None if it is invalid. 1 and "1" are different ids; true is not an id."""
    return json.dumps(id) if isinstance(id, str) or type(id) is int else None


def _is_error(result: Any) -> bool:
    return isinstance(result, dict) and result.get("isError") is True


def _text_of(message: dict[str, Any]) -> str:
    """Return a tool's result: its text if it is text only, otherwise the whole result as JSON."""
    result = message.get("result")
    content = result.get("content") if isinstance(result, dict) else None
    if isinstance(content, list) and content and all(_is_text(part) for part in content):
        return "\n".join(part["text"] for part in content)
    return json.dumps(message.get("error", result), ensure_ascii=False)


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
