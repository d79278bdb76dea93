"""JSON-RPC messages as lines, without any I/O: bytes in, messages and contained garbage out.

Whatever the bytes, nothing is raised and no more than `max_line` of them is held. What is not a message comes out as
`Garbage`, in its place among the messages.
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
    """Something on the stream that is no message: why, its size, and how it begins (safe to show)."""

    reason: Literal["oversized", "not_json", "not_a_message", "unfinished"]
    size: int
    beginning: str


Message = RpcRequest | Notification | Response


class MessageSplitter:
    """Cuts a stream into messages. `strict`: JSON-RPC 2.0 to the letter; otherwise the `jsonrpc` member may be missing,
    as Codex leaves it out."""

    def __init__(self, *, strict: bool = False, max_line: int = MAX_LINE) -> None:
        self._strict = strict
        self._max = max_line
        self._held = bytearray()
        self._skipped = 0  # bytes of an oversized line that were dropped already

    def feed(self, data: bytes) -> Iterator[Message | Garbage]:
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            if self._skipped or len(self._held) + end - start > self._max:
                self._keep_beginning(data[start:end])
                yield self._oversized()
            elif self._held:
                self._held += data[start:end]
                line, self._held = bytes(self._held), bytearray()
                yield from self._parse(line)
            else:
                yield from self._parse(data[start:end])
            start = end + 1
        rest = data[start:]
        if self._skipped or len(self._held) + len(rest) > self._max:
            self._keep_beginning(rest)
        else:
            self._held += rest

    def close(self) -> Iterator[Garbage]:
        """The stream has ended: half a line is no message."""
        if self._skipped:
            yield self._oversized()
        elif self._held.strip():
            yield _garbage("unfinished", bytes(self._held))
        self._held = bytearray()

    def _keep_beginning(self, data: bytes) -> None:
        """Of a line that is too long only its beginning stays, to be shown."""
        size = len(self._held) + len(data)
        self._held = bytearray((self._held + data[:SHOWN])[:SHOWN])
        self._skipped += size - len(self._held)

    def _oversized(self) -> Garbage:
        found = Garbage("oversized", len(self._held) + self._skipped, _shown(bytes(self._held)))
        self._held, self._skipped = bytearray(), 0
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
    """One message as one line. JSON escapes every newline, so that none can be inside."""
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
