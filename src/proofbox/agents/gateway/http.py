"""A minimal HTTP/1.1 server for the model gateway and the fake model: strict, bounded, on any anyio listener.

h11 parses requests and frames responses. A connection handles one request at a time and is kept alive. The handler is
cancelled if the client disconnects. A malformed request is answered with 400, and the connection is closed. The size of
heads and bodies and the time to receive them are limited. A failure on one connection does not affect the others.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping

import anyio
import anyio.abc
import h11
import msgspec

MAX_HEAD = 64 << 10
MAX_BODY = 128 << 20  # a conversation with images in it
HEAD_SECONDS = 60.0
BODY_SECONDS = 60.0
MIN_RATE = 256 << 10  # minimum bytes per second: each such amount extends the timeout by one second
IDLE_SECONDS = 120.0  # longer than clients keep idle connections open
DISCONNECTED = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
_AMBIGUOUS_LINE = re.compile(rb"(?<!\r)\n|\r(?!\n)|\n[ \t]")
"""A bare LF, a bare CR or a folded line. h11 accepts them, but other parsers read them differently."""


class BadRequest(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class HttpRequest(msgspec.Struct, frozen=True):
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    """Names in lower case, in the order received."""
    body: bytes = b""

    def header(self, name: str) -> str:
        """Return the value of a header. Values of a repeated one are joined, as HTTP defines it."""
        return ", ".join(value for key, value in self.headers if key == name)


class Responder:
    """Sends one response: `send` for a complete one, or `start`, `write` and `finish` for a stream."""

    def __init__(self, stream: anyio.abc.SocketStream, http: h11.Connection) -> None:
        self._stream = stream
        self._unix_socket = unix_socket_of(stream)
        self._http = http
        self.started = False
        self.omit_body = False
        """The request has the method HEAD, so that the response to `send` consists of a head only."""

    async def send(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        head = self._head(status, {**(headers or {}), "content-length": str(len(body))})
        data = b"" if self.omit_body else self._http.send(h11.Data(data=body))
        await self._transmit(head + data + self._http.send(h11.EndOfMessage()))

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        await self._transmit(self._head(status, headers))

    async def write(self, data: bytes) -> None:
        if data:
            await self._transmit(self._http.send(h11.Data(data=data)))

    async def finish(self) -> None:
        await self._transmit(self._http.send(h11.EndOfMessage()))

    async def _transmit(self, data: bytes) -> None:
        """Send data, on a Unix socket without giving way to other tasks first: a response has many small pieces."""
        sent = 0
        if self._unix_socket is not None:
            try:
                sent = self._unix_socket.send(data)
            except BlockingIOError:
                pass
            except OSError as error:
                raise anyio.BrokenResourceError from error
        if sent < len(data):
            await self._stream.send(data[sent:])

    def _head(self, status: int, headers: Mapping[str, str]) -> bytes:
        self.started = True
        return self._http.send(h11.Response(status_code=status, headers=list(headers.items())))

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
        except DISCONNECTED:
            pass
        except Exception as error:
            if on_failure is None:
                raise
            await on_failure(error)

    return serve


async def _converse(stream: anyio.abc.SocketStream, handler: Handler, budget: BodyBudget) -> None:
    reader = _Reader(stream, budget)
    while True:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        responder = Responder(stream, http)
        try:
            request = await reader.request(http)
            responder.omit_body = request.method == "HEAD"
            await _answer(request, responder, reader, handler)
        except BadRequest as problem:
            await responder.send(problem.status, f"{problem}\n".encode(), {"connection": "close"})
            return
        finally:
            reader.release_body()
        if (http.our_state, http.their_state) != (h11.DONE, h11.DONE):
            return


async def _answer(request: HttpRequest, responder: Responder, reader: _Reader, handler: Handler) -> None:
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.watch, tasks.cancel_scope)
        # Catch errors inside the task group, which would wrap them in an exception group.
        try:
            await handler(request, responder)
        except DISCONNECTED:
            pass
        except Exception as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


class _Reader:
    def __init__(self, stream: anyio.abc.SocketStream, budget: BodyBudget) -> None:
        self._stream = stream
        self._unix_socket = unix_socket_of(stream)
        self._buffer = bytearray()
        self._budget = budget
        self._taken = 0

    async def request(self, http: h11.Connection) -> HttpRequest:
        request = parse_head(http, await self._head())
        if int(request.header("content-length") or 0) > MAX_BODY:
            raise BadRequest(413, "the body is too large")
        with anyio.move_on_after(BODY_SECONDS) as scope:
            return msgspec.structs.replace(request, body=await self._body(http, scope))
        raise BadRequest(408, "timeout while receiving the body")

    def release_body(self) -> None:
        """Return the size of the body to the budget, after the request was answered."""
        self._budget.left += self._taken
        self._taken = 0

    async def watch(self, answering: anyio.CancelScope) -> None:
        """Cancel the handler if the client disconnects. Data that arrives until then is kept for the next request."""
        with contextlib.suppress(*DISCONNECTED, OSError):
            while len(self._buffer) <= MAX_HEAD:
                self._buffer += await self._receive()
            return
        answering.cancel()

    async def _receive(self) -> bytes:
        """Return the available data. On a Unix socket, wait until it is readable first: asyncio logs an error if
        anyio's `receive` is cancelled at the moment when data or the end of the stream arrives."""
        if self._unix_socket is not None:
            await anyio.wait_readable(self._unix_socket)
        return await self._stream.receive()

    async def _head(self) -> bytes:
        with anyio.move_on_after(IDLE_SECONDS) as timeout:
            while (end := self._buffer.find(b"\r\n\r\n") + 4) < 4:
                if len(self._buffer) > MAX_HEAD:
                    raise BadRequest(431, "the request's head is too large")
                if self._buffer:
                    timeout.deadline = min(timeout.deadline, anyio.current_time() + HEAD_SECONDS)
                self._buffer += await self._receive()
        if timeout.cancelled_caught:
            if not self._buffer:
                raise anyio.EndOfStream
            raise BadRequest(408, "timeout while receiving the request")
        head = bytes(self._buffer[:end])
        del self._buffer[:end]
        return head

    async def _body(self, http: h11.Connection, scope: anyio.CancelScope) -> bytes:
        """Receive the body. Data after its end is kept for the next request."""
        body = bytearray()
        if self._buffer:
            http.receive_data(bytes(self._buffer))
            self._buffer.clear()
        while not isinstance(event := _next_event(http), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                if len(body) + len(event.data) > MAX_BODY:
                    raise BadRequest(413, "the body is too large")
                self._take(len(event.data))
                scope.deadline += len(event.data) / MIN_RATE
                body += event.data
            else:
                http.receive_data(await self._receive())
        self._buffer += http.trailing_data[0]
        return bytes(body)

    def _take(self, size: int) -> None:
        if size > self._budget.left:
            raise BadRequest(503, "too many large requests in progress")
        self._budget.left -= size
        self._taken += size


def unix_socket_of(stream: anyio.abc.SocketStream) -> socket.socket | None:
    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 (no Django here)
    return raw if raw.family == socket.AF_UNIX else None


def parse_head(http: h11.Connection, head: bytes) -> HttpRequest:
    """Return the request without its body. Raises `BadRequest`, even if h11 accepts it but other parsers may not."""
    if _AMBIGUOUS_LINE.search(head):
        raise BadRequest(400, "a line of the head is folded or does not end with CR LF")
    http.receive_data(head)
    event = _next_event(http)
    if not isinstance(event, h11.Request) or event.http_version not in (b"1.0", b"1.1"):
        raise BadRequest(400, "malformed HTTP request")
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers)
    if not all(is_plain(value.replace("\t", " ")) for _, value in headers):
        raise BadRequest(400, "header values must be printable ASCII")
    if {"content-length", "transfer-encoding"} <= {name for name, _ in headers}:
        raise BadRequest(400, "conflicting content-length and transfer-encoding")
    return HttpRequest(event.method.decode("ascii"), event.target.decode("ascii"), headers)


def _next_event(http: h11.Connection) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
    try:
        return http.next_event()
    except h11.RemoteProtocolError as error:  # its message repeats what the client sent
        raise BadRequest(431 if error.error_status_hint == 431 else 400, "malformed HTTP request") from None


def is_plain(value: str) -> bool:
    """Return whether a header value is printable ASCII. Clients and servers disagree about anything else."""
    return value.isascii() and value.isprintable()
