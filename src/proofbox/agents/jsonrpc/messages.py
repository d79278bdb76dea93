"""Parse newline-delimited JSON-RPC messages, without I/O.

No input raises an error, and at most `max_line` bytes are buffered. Malformed input is returned as `Garbage`, in order
with the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from proofbox.core.text import preview, printable

Id = str | int
MAX_LINE = 32 << 20
SHOWN = 400


class RpcRequest(msgspec.Struct, frozen=True):
    id: Id
    method: str
    params: Any


class Notification(msgspec.Struct, frozen=True):
    method: str
    params: Any


class Response(msgspec.Struct, frozen=True):
    id: Id
    result: Any = None
    error: Mapping[str, Any] | None = None


class Garbage(msgspec.Struct, frozen=True):
    """Malformed input: the reason, its size, and its printable beginning."""

    reason: Literal["oversized", "not_json", "not_a_message", "unfinished"]
    size: int
    beginning: str


Message = RpcRequest | Notification | Response


class MessageSplitter:
    """Splits a stream into messages. Unless `strict`, the member `jsonrpc` may be missing, because Codex omits it."""

    def __init__(self, *, strict: bool = False, max_line: int = MAX_LINE) -> None:
        self._strict = strict
        self._max = max_line
        self._buffer = bytearray()
        self._skipped = 0  # number of bytes of an oversized line dropped so far

    def feed(self, data: bytes) -> Iterator[Message | Garbage]:
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            if self._skipped or len(self._buffer) + end - start > self._max:
                self._keep_beginning(data[start:end])
                yield self._oversized()
            elif self._buffer:
                self._buffer += data[start:end]
                line, self._buffer = bytes(self._buffer), bytearray()
                yield from self._parse(line)
            else:
                yield from self._parse(data[start:end])
            start = end + 1
        rest = data[start:]
        if self._skipped or len(self._buffer) + len(rest) > self._max:
            self._keep_beginning(rest)
        else:
            self._buffer += rest

    def close(self) -> Iterator[Garbage]:
        """Handle the end of the stream: an incomplete line is garbage."""
        if self._skipped:
            yield self._oversized()
        elif self._buffer.strip():
            yield _garbage("unfinished", bytes(self._buffer))
        self._buffer = bytearray()

    def _keep_beginning(self, data: bytes) -> None:
        """Keep only the beginning of an oversized line, for display."""
        size = len(self._buffer) + len(data)
        self._buffer = bytearray((self._buffer + data[:SHOWN])[:SHOWN])
        self._skipped += size - len(self._buffer)

    def _oversized(self) -> Garbage:
        found = Garbage("oversized", len(self._buffer) + self._skipped, _shown(bytes(self._buffer)))
        self._buffer, self._skipped = bytearray(), 0
        return found

    def _parse(self, line: bytes) -> Iterator[Message | Garbage]:
        if not line.strip():
            return
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield _garbage("not_json", line)
            return
        yield _message(value, self._strict) or _garbage("not_a_message", line)


def encode(
    *,
    strict: bool,
    id: Id | None = None,
    method: str | None = None,
    params: Any = None,
    result: Any = msgspec.UNSET,
    error: Mapping[str, Any] | None = None,
) -> bytes:
    """Encode a message as one line. JSON escapes newlines inside it."""
    message: dict[str, Any] = {"jsonrpc": "2.0"} if strict else {}
    if id is not None:
        message["id"] = id
    if method is not None:
        message["method"] = method
        if params is not None:
            message["params"] = params
    elif error is not None:
        message["error"] = error
    else:
        message["result"] = None if result is msgspec.UNSET else result
    return msgspec.json.encode(message) + b"\n"


def _message(value: Any, strict: bool) -> Message | None:
    if not isinstance(value, dict) or (strict and value.get("jsonrpc") != "2.0"):
        return None
    id, method = value.get("id"), value.get("method")
    if id is not None and (isinstance(id, bool) or not isinstance(id, str | int)):
        return None
    if method is not None:
        if not isinstance(method, str):
            return None
        params = value.get("params")
        return Notification(method, params) if id is None else RpcRequest(id, method, params)
    error = value.get("error")
    if id is None or ("result" in value) == (error is not None):
        return None
    if error is not None and not isinstance(error, dict):
        return None
    return Response(id, value.get("result"), error)


def _garbage(reason: Literal["not_json", "not_a_message", "unfinished"], line: bytes) -> Garbage:
    return Garbage(reason, len(line), _shown(line))


def _shown(line: bytes) -> str:
    return printable(preview(line, SHOWN)[0])
