"""A JSON-RPC peer over a stream of lines: it sends requests, and handles requests and notifications.

The other side is a program that may be slow, broken or hostile. Therefore every request has a timeout, memory is
bounded in both directions, malformed input is counted and reported, and the end of the stream raises a typed error in
every pending request.

Notifications and incoming requests are handled in order, one at a time, from a bounded queue. A slow handler stops the
reading, and thus blocks the program. Responses to our own requests bypass the queue until it is full. With `ordered`, a
response is handled after everything that arrived before it. Our ids are strings with their own prefix, so that they
can't be confused with the ids of the other side.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio

from proofbox.agents.jsonrpc.messages import (
    MAX_LINE,
    Garbage,
    Id,
    Message,
    MessageSplitter,
    Notification,
    Response,
    RpcRequest,
    encode,
)
from proofbox.core.text import preview, printable
from proofbox.errors import (
    AgentError,
    Overloaded,
    RuntimeProtocolError,
    RuntimeTimedOut,
    TransportBroken,
)

QUEUE = 1024
SEND_SECONDS = 10.0
OVERLOADED = -32001
METHOD_NOT_FOUND = -32601
INTERNAL_ERROR = -32603


class Transport(Protocol):
    """A stream of bytes in both directions. Both methods raise `TransportBroken` if the connection is lost."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes:
        """Return some bytes, or an empty value at the end of the stream."""


class RpcRefusal(Exception):
    """Raised by a handler to answer the request with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


OnNotification = Callable[[str, Any], Awaitable[None]]
OnRequest = Callable[[Id, str, Any], Awaitable[Any]]
OnGarbage = Callable[[Garbage], Awaitable[None]]
OnFailure = Callable[[str, Exception], Awaitable[None]]
"""Called with the method of a message whose handler failed."""


class _Waiting:
    def __init__(self, method: str, on_result: Callable[[Any], None] | None) -> None:
        self.method = method
        self.on_result = on_result
        self.done = anyio.Event()
        self.result: Any = None
        self.error: AgentError | None = None


class RpcPeer:
    """The caller runs `serve` in a task until the stream ends; any task may call the other methods."""

    def __init__(
        self,
        transport: Transport,
        *,
        on_notification: OnNotification,
        on_request: OnRequest,
        on_garbage: OnGarbage,
        on_failure: OnFailure,
        strict: bool = False,
        ordered: bool = False,
        seconds: float = 30.0,
        max_line: int = MAX_LINE,
        queue: int = QUEUE,
        name: str = "pb",
    ) -> None:
        self._transport = transport
        self._on_notification = on_notification
        self._on_request = on_request
        self._on_garbage = on_garbage
        self._on_failure = on_failure
        self._strict = strict
        self._ordered = ordered
        self._seconds = seconds
        self._lines = MessageSplitter(strict=strict, max_line=max_line)
        self._queue_size = queue
        self._name = name
        self._count = 0
        self._waiting: dict[Id, _Waiting] = {}
        self._sending = anyio.Lock(fast_acquire=True)
        self._broken: AgentError | None = None
        self.strays = 0
        """The number of responses without a pending request, mostly because the request had timed out."""

    @property
    def broken(self) -> AgentError | None:
        """The error that ended the connection, or None while it works."""
        return self._broken

    async def request(
        self,
        method: str,
        params: Any = None,
        *,
        seconds: float | None = None,
        on_result: Callable[[Any], None] | None = None,
    ) -> Any:
        """Send a request and wait for the response until the timeout.

        `on_result` is called before any later message is handled, so that it can set up state that they need.
        """
        if self._broken is not None:
            raise self._broken
        self._count += 1
        id = f"{self._name}-{self._count}"
        waiting = self._waiting[id] = _Waiting(method, on_result)
        seconds = self._seconds if seconds is None else seconds
        try:
            with anyio.fail_after(seconds):
                await self._send(encode(strict=self._strict, id=id, method=method, params=params))
                await waiting.done.wait()
        except TimeoutError:
            raise RuntimeTimedOut(
                f"{method} timed out after {seconds:g} s", op=method, details={"method": method, "seconds": seconds}
            ) from None
        finally:
            self._waiting.pop(id, None)
        if waiting.error is not None:
            raise waiting.error
        return waiting.result

    async def notify(self, method: str, params: Any = None) -> None:
        await self._send(encode(strict=self._strict, method=method, params=params))

    async def serve(self) -> None:
        """Read and handle messages until the stream ends. Pending requests then raise."""
        inbox, outbox = anyio.create_memory_object_stream[Message | Garbage](self._queue_size)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._handle_all, outbox)
                async with inbox:
                    try:
                        await self._read_all(inbox.send)
                    except TransportBroken as error:
                        self._break(error)
                self._break(TransportBroken("the program closed its output", op="receive"))
        finally:
            outbox.close()
            self._break(TransportBroken("the connection to the program was closed", op="receive"))

    async def _read_all(self, put: Callable[[Message | Garbage], Awaitable[None]]) -> None:
        while data := await self._transport.receive():
            for message in self._lines.feed(data):
                if isinstance(message, Response) and not self._ordered:
                    self._resolve(message)
                else:
                    await put(message)
        for rest in self._lines.close():
            await put(rest)

    def _resolve(self, response: Response) -> None:
        waiting = self._waiting.pop(response.id, None)
        if waiting is None:
            self.strays += 1
            return
        if response.error is not None:
            waiting.error = refused(waiting.method, response.error)
        else:
            waiting.result = response.result
            if waiting.on_result is not None:
                try:
                    waiting.on_result(response.result)
                except AgentError as error:
                    waiting.error = error
        waiting.done.set()

    async def _handle_all(self, messages: anyio.abc.ObjectReceiveStream[Message | Garbage]) -> None:
        async for message in messages:
            if isinstance(message, Notification):
                await self._note(message)
            elif isinstance(message, RpcRequest):
                await self._answer(message)
            elif isinstance(message, Garbage):
                await self._on_garbage(message)
            else:
                self._resolve(message)

    async def _note(self, notification: Notification) -> None:
        try:
            await self._on_notification(notification.method, notification.params)
        except Exception as error:  # no message from the other side may end the connection
            await self._on_failure(notification.method, error)

    async def _answer(self, request: RpcRequest) -> None:
        try:
            result = await self._on_request(request.id, request.method, request.params)
            line = encode(strict=self._strict, id=request.id, result=result)
        except RpcRefusal as refusal:
            line = encode(strict=self._strict, id=request.id, error={"code": refusal.code, "message": refusal.message})
        except Exception as error:  # for example, params of an unexpected shape
            refused = {"code": INTERNAL_ERROR, "message": "internal error while handling the request"}
            line = encode(strict=self._strict, id=request.id, error=refused)
            await self._on_failure(request.method, error)
        try:
            await self._send(line)
        except AgentError:
            pass  # the program is gone; the reader reports it

    async def _send(self, line: bytes) -> None:
        if self._broken is not None:
            raise self._broken
        # Shielded from cancellation, because an incomplete line would corrupt all later ones. A program that reads
        # nothing for this long counts as lost.
        done = False
        with anyio.move_on_after(SEND_SECONDS, shield=True):
            async with self._sending:
                try:
                    await self._transport.send(line)
                except TransportBroken as error:
                    raise self._break(error) from None
            done = True
        if not done:
            raise self._break(TransportBroken(f"the program read no input for {SEND_SECONDS:g} s", op="send"))

    def _break(self, error: AgentError) -> AgentError:
        if self._broken is None:
            self._broken = error
            for waiting in self._waiting.values():
                waiting.error = error
                waiting.done.set()
        return self._broken


def refused(method: str, error: Any) -> AgentError:
    """Convert a JSON-RPC error into an `AgentError`. The code −32001 means "overloaded, try later"."""
    code = error.get("code")
    message = printable(preview(str(error.get("message", "")), 1000)[0])
    details = {"method": method, "rpc_code": code if isinstance(code, int) else None, "rpc_message": message}
    if code == OVERLOADED:
        return Overloaded(f"{method}: the program is overloaded: {message}", op=method, details=details)
    return RuntimeProtocolError(f"{method} was refused: {message}", op=method, details=details)
