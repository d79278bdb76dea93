"""As much of an HTTP/1.1 server as the model gateway and the fake model need: strict, bounded, on any anyio listener.

One request at a time on a connection, which is kept for the next. A client that leaves cancels its handler. What is no
HTTP is answered with 400 and the end of the connection; nothing a client sends can make it hold more than a head and a
body of the sizes below, nor longer than they may take. What goes wrong on a connection ends that connection alone.
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
LEAST_RATE = 256 << 10  # bytes of a body that make it a second longer
IDLE_SECONDS = 120.0  # longer than clients keep a connection that they do not use
_METHOD_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LEFT = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class BadRequest(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class HttpRequest(msgspec.Struct, frozen=True):
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    """Names in lower case, in the order they came."""
    body: bytes

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key == name), "")


class Responder:
    """How a handler answers, once: `send` for a whole answer, or `start`, `write` and `finish` for a stream."""

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
        """End the connection in the middle, as a broken network does."""
        raw = self._stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 (no Django here)
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self._stream.aclose()


class BodyBudget:
    """What the bodies of all connections hold together: of those that are coming, and of those being answered."""

    def __init__(self, size: int) -> None:
        self.left = size


Handler = Callable[[HttpRequest, Responder], Awaitable[None]]
OnFailure = Callable[[Exception], Awaitable[None]]


def connection_handler(
    handler: Handler, *, budget: BodyBudget | None = None, on_failure: OnFailure | None = None
) -> Callable[[anyio.abc.SocketStream], Awaitable[None]]:
    """What a listener's `serve` takes: answers the requests of one connection until either side ends it.

    With `on_failure` it never raises: whatever is wrong on one connection is no reason to end the others.
    """

    async def serve(stream: anyio.abc.SocketStream) -> None:
        try:
            async with stream:
                await _converse(stream, handler, budget or BodyBudget(MAX_BODY))
        except _LEFT:
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
            reader.let_go()
        if not responder.finished or request.header("connection").lower() == "close":
            return


async def _answer(request: HttpRequest, responder: Responder, reader: _Reader, handler: Handler) -> None:
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.watch, tasks.cancel_scope)
        # Caught in here: out of a task group comes a group, which is none of these.
        try:
            await handler(request, responder)
        except _LEFT:
            pass
        except Exception as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


class _Reader:
    def __init__(self, stream: anyio.abc.SocketStream, budget: BodyBudget) -> None:
        self._stream = stream
        self._held = bytearray()
        self._budget = budget
        self._taken = 0
        self._patience = anyio.CancelScope()

    async def request(self) -> HttpRequest:
        head = await self._head()
        line, *fields = head.split("\r\n")
        words = line.split(" ")
        if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0") or not set(words[0]) <= _METHOD_CHARACTERS:
            raise BadRequest(400, "that is no HTTP request")
        headers = tuple(_field(field) for field in fields)
        lengths = {value for name, value in headers if name == "content-length"}
        encodings = [value.lower() for name, value in headers if name == "transfer-encoding"]
        if encodings and (encodings != ["chunked"] or lengths):
            raise BadRequest(400, "a body's length must be said once, and in one way")
        with anyio.move_on_after(BODY_SECONDS) as self._patience:
            body = await self._chunks() if encodings else await self._exactly(_length(lengths))
            return HttpRequest(words[0], words[1], headers, body)
        raise BadRequest(408, "the body comes too slowly")

    def let_go(self) -> None:
        """Of the request's body: it has been answered."""
        self._budget.left += self._taken
        self._taken = 0

    async def watch(self, answering: anyio.CancelScope) -> None:
        """While a request is answered: a client that leaves ends the work for it. What it sends on is kept."""
        with contextlib.suppress(*_LEFT, OSError):
            while len(self._held) <= MAX_HEAD:
                self._held += await self._receive()
            return
        answering.cancel()

    async def _receive(self) -> bytes:
        """What there is. Waited for first: anyio's own waiting on a unix socket can't be cancelled without a complaint
        of asyncio's when data come, or an end, at that very moment."""
        raw = self._stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 (no Django here)
        if raw.family == socket.AF_UNIX:
            await anyio.wait_readable(raw)
        return await self._stream.receive()

    async def _head(self) -> str:
        with anyio.move_on_after(IDLE_SECONDS) as patience:
            while b"\r\n\r\n" not in self._held:
                if len(self._held) > MAX_HEAD:
                    raise BadRequest(431, "the request's head has no end")
                if self._held:
                    patience.deadline = min(patience.deadline, anyio.current_time() + HEAD_SECONDS)
                self._held += await self._receive()
        if patience.cancelled_caught:
            if not self._held:
                raise anyio.EndOfStream
            raise BadRequest(408, "the request did not come to an end")
        return self._up_to(b"\r\n\r\n")

    async def _exactly(self, size: int) -> bytes:
        if size > MAX_BODY:
            raise BadRequest(413, "the body is too large")
        found = bytearray()
        while True:
            piece = self._held[: size - len(found)]
            del self._held[: len(piece)]
            self._take(len(piece))
            found += piece
            if len(found) == size:
                return bytes(found)
            self._held += await self._receive()

    def _take(self, size: int) -> None:
        if size > self._budget.left:
            raise BadRequest(503, "too much is being said at once")
        self._budget.left -= size
        self._taken += size
        self._patience.deadline += size / LEAST_RATE

    async def _chunks(self) -> bytes:
        body = bytearray()
        while size := _hexadecimal(await self._line()):
            if len(body) + size > MAX_BODY:
                raise BadRequest(413, "the body is too large")
            body += await self._exactly(size)
            if await self._exactly(2) != b"\r\n":
                raise BadRequest(400, "a chunk does not end where it said")
        while await self._line():
            pass  # trailers
        return bytes(body)

    async def _line(self) -> str:
        while b"\r\n" not in self._held:
            if len(self._held) > MAX_HEAD:
                raise BadRequest(400, "a chunk's head has no end")
            self._held += await self._receive()
        return self._up_to(b"\r\n")

    def _up_to(self, mark: bytes) -> str:
        """What is held before the mark, which is held as well; both are gone from there."""
        end = self._held.index(mark)
        text = self._held[:end].decode("latin-1")
        del self._held[: end + len(mark)]
        return text


def _field(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip() or any(ord(c) < 33 or ord(c) > 126 for c in name):
        raise BadRequest(400, "a header that is none")
    value = value.strip(" \t")
    if not is_plain(value.replace("\t", " ")):
        raise BadRequest(400, "a header's value must be printable ASCII")
    return name.lower(), value


def is_plain(value: str) -> bool:
    """Whether it is safe in a header: clients and servers differ on what anything else means, or raise."""
    return value.isascii() and value.isprintable()


def _length(values: set[str]) -> int:
    if not values:
        return 0
    (value, *more) = values
    if more or not value.isascii() or not value.isdigit() or len(value) > 15:
        raise BadRequest(400, "a body's length must be one number")
    return int(value)


def _hexadecimal(text: str) -> int:
    digits = text.partition(";")[0].strip()
    if not digits or len(digits) > 12 or not set(digits) <= set("0123456789abcdefABCDEF"):
        raise BadRequest(400, "a chunk without a size")
    return int(digits, 16)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")
