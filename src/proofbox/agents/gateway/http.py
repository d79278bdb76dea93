"""A minimal HTTP/1.1 server for the model gateway and the fake model: strict, bounded, on any anyio listener.

A connection handles one request at a time and is kept alive. The handler is cancelled if the client disconnects. A
malformed request is answered with 400, and the connection is closed. The size of heads and bodies and the time to
receive them are limited. A failure on one connection does not affect the others.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

import anyio
import anyio.abc
import msgspec

MAX_HEAD = 64 << 10
MAX_BODY = 128 << 20  # a conversation with images in it
HEAD_SECONDS = 60.0
BODY_SECONDS = 60.0
MIN_RATE = 256 << 10  # minimum bytes per second: each such amount extends the timeout by one second
IDLE_SECONDS = 120.0  # longer than clients keep idle connections open
_METHOD_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DISCONNECTED = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class BadRequest(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class HttpRequest(msgspec.Struct, frozen=True):
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    """Names in lower case, in the order received."""
    body: bytes

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key == name), "")


class Responder:
    """Sends one response: `send` for a complete one, or `start`, `write` and `finish` for a stream."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self.started = False
        self.finished = False
        self._chunked = False

    async def send(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        lines = {**(headers or {}), "content-length": str(len(body))}
        self.started = True
        await self._stream.send(_head(status, lines) + body)
        self.finished = True

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = self._chunked = True
        await self._stream.send(_head(status, {**headers, "transfer-encoding": "chunked"}))

    async def write(self, data: bytes) -> None:
        if data:
            await self._stream.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def finish(self) -> None:
        await self._stream.send(b"0\r\n\r\n")
        self.finished = True

    async def abort(self) -> None:
        """Reset the connection, like a network failure."""
        raw = self._stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 (no Django here)
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self._stream.aclose()


class BodyBudget:
    """A limit on the total size of request bodies in memory, over all connections."""

    def __init__(self, size: int) -> None:
        self.left = size


Handler = Callable[[HttpRequest, Responder], Awaitable[None]]
OnFailure = Callable[[Exception], Awaitable[None]]


def connection_handler(
    handler: Handler, *, budget: BodyBudget | None = None, on_failure: OnFailure | None = None
) -> Callable[[anyio.abc.SocketStream], Awaitable[None]]:
    """Return a function for a listener's `serve` that handles the requests of one connection until it is closed.

    With `on_failure` it never raises, so that a failure on one connection does not end the others.
    """

    async def serve(stream: anyio.abc.SocketStream) -> None:
        try:
            async with stream:
                await _converse(stream, handler, budget or BodyBudget(MAX_BODY))
        except _DISCONNECTED:
            pass
        except Exception as error:
            if on_failure is None:
                raise
            await on_failure(error)

    return serve


async def _converse(stream: anyio.abc.SocketStream, handler: Handler, budget: BodyBudget) -> None:
    reader = _Reader(stream, budget)
    while True:
        responder = Responder(stream)
        try:
            request = await reader.request()
            await _answer(request, responder, reader, handler)
        except BadRequest as problem:
            await responder.send(problem.status, f"{problem}\n".encode(), {"connection": "close"})
            return
        finally:
            reader.release_body()
        if not responder.finished or request.header("connection").lower() == "close":
            return


async def _answer(request: HttpRequest, responder: Responder, reader: _Reader, handler: Handler) -> None:
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.watch, tasks.cancel_scope)
        # Catch errors inside the task group, which would wrap them in an exception group.
        try:
            await handler(request, responder)
        except _DISCONNECTED:
            pass
        except Exception as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


class _Reader:
    def __init__(self, stream: anyio.abc.SocketStream, budget: BodyBudget) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._budget = budget
        self._taken = 0
        self._deadline = anyio.CancelScope()

    async def request(self) -> HttpRequest:
        head = await self._head()
        line, *fields = head.split("\r\n")
        words = line.split(" ")
        if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0") or not set(words[0]) <= _METHOD_CHARACTERS:
            raise BadRequest(400, "malformed HTTP request")
        headers = tuple(_field(field) for field in fields)
        lengths = {value for name, value in headers if name == "content-length"}
        encodings = [value.lower() for name, value in headers if name == "transfer-encoding"]
        if encodings and (encodings != ["chunked"] or lengths):
            raise BadRequest(400, "conflicting content-length and transfer-encoding")
        with anyio.move_on_after(BODY_SECONDS) as self._deadline:
            body = await self._chunks() if encodings else await self._exactly(_length(lengths))
            return HttpRequest(words[0], words[1], headers, body)
        raise BadRequest(408, "timeout while receiving the body")

    def release_body(self) -> None:
        """Return the size of the body to the budget, after the request was answered."""
        self._budget.left += self._taken
        self._taken = 0

    async def watch(self, answering: anyio.CancelScope) -> None:
        """Cancel the handler if the client disconnects. Data that arrives meanwhile is kept for the next request."""
        with contextlib.suppress(*_DISCONNECTED, OSError):
            while len(self._buffer) <= MAX_HEAD:
                self._buffer += await self._receive()
            return
        answering.cancel()

    async def _receive(self) -> bytes:
        """Return the available data. On a Unix socket, wait until it is readable first: asyncio logs an error if
        anyio's `receive` is cancelled at the moment when data or the end of the stream arrives."""
        raw = self._stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 (no Django here)
        if raw.family == socket.AF_UNIX:
            await anyio.wait_readable(raw)
        return await self._stream.receive()

    async def _head(self) -> str:
        with anyio.move_on_after(IDLE_SECONDS) as timeout:
            while b"\r\n\r\n" not in self._buffer:
                if len(self._buffer) > MAX_HEAD:
                    raise BadRequest(431, "the request's head is too large")
                if self._buffer:
                    timeout.deadline = min(timeout.deadline, anyio.current_time() + HEAD_SECONDS)
                self._buffer += await self._receive()
        if timeout.cancelled_caught:
            if not self._buffer:
                raise anyio.EndOfStream
            raise BadRequest(408, "timeout while receiving the request")
        return self._up_to(b"\r\n\r\n")

    async def _exactly(self, size: int) -> bytes:
        if size > MAX_BODY:
            raise BadRequest(413, "the body is too large")
        found = bytearray()
        while True:
            piece = self._buffer[: size - len(found)]
            del self._buffer[: len(piece)]
            self._take(len(piece))
            found += piece
            if len(found) == size:
                return bytes(found)
            self._buffer += await self._receive()

    def _take(self, size: int) -> None:
        if size > self._budget.left:
            raise BadRequest(503, "too many large requests in progress")
        self._budget.left -= size
        self._taken += size
        self._deadline.deadline += size / MIN_RATE

    async def _chunks(self) -> bytes:
        body = bytearray()
        while size := _hexadecimal(await self._line()):
            if len(body) + size > MAX_BODY:
                raise BadRequest(413, "the body is too large")
            body += await self._exactly(size)
            if await self._exactly(2) != b"\r\n":
                raise BadRequest(400, "chunk size does not match its data")
        while await self._line():
            pass  # trailers
        return bytes(body)

    async def _line(self) -> str:
        while b"\r\n" not in self._buffer:
            if len(self._buffer) > MAX_HEAD:
                raise BadRequest(400, "chunk header too long")
            self._buffer += await self._receive()
        return self._up_to(b"\r\n")

    def _up_to(self, mark: bytes) -> str:
        """Remove and return the buffered text before the mark, and remove the mark."""
        end = self._buffer.index(mark)
        text = self._buffer[:end].decode("latin-1")
        del self._buffer[: end + len(mark)]
        return text


def _field(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip() or any(ord(c) < 33 or ord(c) > 126 for c in name):
        raise BadRequest(400, "malformed header")
    value = value.strip(" \t")
    if not is_plain(value.replace("\t", " ")):
        raise BadRequest(400, "header values must be printable ASCII")
    return name.lower(), value


def is_plain(value: str) -> bool:
    """Return whether a header value is printable ASCII. Clients and servers disagree about anything else."""
    return value.isascii() and value.isprintable()


def _length(values: set[str]) -> int:
    if not values:
        return 0
    (value, *more) = values
    if more or not value.isascii() or not value.isdigit() or len(value) > 15:
        raise BadRequest(400, "content-length must be a single number")
    return int(value)


def _hexadecimal(text: str) -> int:
    digits = text.partition(";")[0].strip()
    if not digits or len(digits) > 12 or not set(digits) <= set("0123456789abcdefABCDEF"):
        raise BadRequest(400, "malformed chunk size")
    return int(digits, 16)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")
