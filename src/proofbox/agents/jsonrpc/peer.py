"""A JSON-RPC peer over a stream of lines: requests with deadlines one way, answers and notifications the other.

The other side is a program that may be slow, broken or hostile. So every request has a deadline, memory is bounded in
both directions, what is no message is counted and told, and the end of the stream reaches everyone who waits, typed.

Notifications and requests are handled one at a time and in order, behind a bounded queue: a handler that is slow stops
the reading, and thereby the program. Answers to our own requests overtake that queue, up to its limit. Our ids are
strings with a prefix of their own: no id that the other side makes up can be taken for one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio
import msgspec

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
    InternalError,
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
    """A stream of bytes in both directions. Both methods raise `TransportBroken` when it is gone."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes:
        """Some bytes; none at the end."""


class RpcRefusal(Exception):
    """Raised by a handler: the request is answered with this error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Stats(msgspec.Struct):
    received: int = 0
    garbage: int = 0
    strays: int = 0
    """Answers to nothing that is waited for: mostly those that came after their deadline."""


OnNotification = Callable[[str, Any], Awaitable[None]]
OnRequest = Callable[[Id, str, Any], Awaitable[Any]]
OnGarbage = Callable[[Garbage, int], Awaitable[None]]
OnFailure = Callable[[str, Exception], Awaitable[None]]
"""Hears of a message, by its method, that a handler of ours could not deal with."""


class _Waiting:
    def __init__(self, method: str, on_result: Callable[[Any], None] | None) -> None:
        self.method = method
        self.on_result = on_result
        self.done = anyio.Event()
        self.result: Any = None
        self.error: AgentError | None = None


class RpcPeer:
    """`serve` reads until the end of the stream, in a task of the caller's; the rest may be called from any."""

    def __init__(
        self,
        transport: Transport,
        *,
        on_notification: OnNotification,
        on_request: OnRequest,
        on_garbage: OnGarbage,
        on_failure: OnFailure,
        strict: bool = False,
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
        self._seconds = seconds
        self._lines = MessageSplitter(strict=strict, max_line=max_line)
        self._queue_size = queue
        self._name = name
        self._count = 0
        self._waiting: dict[Id, _Waiting] = {}
        self._sending = anyio.Lock(fast_acquire=True)
        self._broken: AgentError | None = None
        self.stats = Stats()

    @property
    def broken(self) -> AgentError | None:
        """Why nothing can be asked any more, once that is so."""
        return self._broken

    async def request(
        self,
        method: str,
        params: Any = None,
        *,
        seconds: float | None = None,
        on_result: Callable[[Any], None] | None = None,
    ) -> Any:
        """Ask, and wait for the answer until the deadline.

        `on_result` sees the answer before anything that came after it is handled: for what later messages rest on.
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
                f"{method} got no answer in {seconds:g} s", op=method, details={"method": method, "seconds": seconds}
            ) from None
        finally:
            self._waiting.pop(id, None)
        if waiting.error is not None:
            raise waiting.error
        return waiting.result

    async def notify(self, method: str, params: Any = None) -> None:
        await self._send(encode(strict=self._strict, method=method, params=params))

    async def serve(self) -> None:
        """Read and handle until the stream ends; then everyone who waits has been told."""
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
            self._break(TransportBroken("nobody listens to the program any more", op="receive"))

    async def _read_all(self, put: Callable[[Message | Garbage], Awaitable[None]]) -> None:
        while data := await self._transport.receive():
            for message in self._lines.feed(data):
                self.stats.received += 1
                if isinstance(message, Response):
                    self._answered(message)
                else:
                    await put(message)
        for rest in self._lines.close():
            await put(rest)

    def _answered(self, response: Response) -> None:
        waiting = self._waiting.pop(response.id, None)
        if waiting is None:
            self.stats.strays += 1
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
                self.stats.garbage += 1
                await self._on_garbage(message, self.stats.garbage)
            else:
                raise InternalError("an answer in the queue of questions", op="rpc")

    async def _note(self, notification: Notification) -> None:
        try:
            await self._on_notification(notification.method, notification.params)
        except Exception as error:  # nothing that the other side says is a reason to end the talk
            await self._on_failure(notification.method, error)

    async def _answer(self, request: RpcRequest) -> None:
        try:
            result = await self._on_request(request.id, request.method, request.params)
            line = encode(strict=self._strict, id=request.id, result=result)
        except RpcRefusal as refusal:
            line = encode(strict=self._strict, id=request.id, error={"code": refusal.code, "message": refusal.message})
        except Exception as error:  # a shape that nobody thought of
            refused = {"code": INTERNAL_ERROR, "message": "the request could not be dealt with"}
            line = encode(strict=self._strict, id=request.id, error=refused)
            await self._on_failure(request.method, error)
        try:
            await self._send(line)
        except AgentError:
            pass  # who asked is gone; the reader says so

    async def _send(self, line: bytes) -> None:
        if self._broken is not None:
            raise self._broken
        # Half a line would garble every later one, so it is finished whatever happens to who sends it; a program that
        # takes nothing for this long is as good as gone.
        done = False
        with anyio.move_on_after(SEND_SECONDS, shield=True):
            async with self._sending:
                try:
                    await self._transport.send(line)
                except TransportBroken as error:
                    raise self._break(error) from None
            done = True
        if not done:
            raise self._break(TransportBroken(f"the program took no input for {SEND_SECONDS:g} s", op="send"))

    def _break(self, error: AgentError) -> AgentError:
        if self._broken is None:
            self._broken = error
            for waiting in self._waiting.values():
                waiting.error = error
                waiting.done.set()
        return self._broken


def refused(method: str, error: Any) -> AgentError:
    """What an error in an answer means. The codes are JSON-RPC's; −32001 is "overloaded, try later"."""
    code = error.get("code")
    said = printable(preview(str(error.get("message", "")), 1000)[0])
    details = {"method": method, "rpc_code": code if isinstance(code, int) else None, "rpc_message": said}
    if code == OVERLOADED:
        return Overloaded(f"{method}: the program has too much to do: {said}", op=method, details=details)
    return RuntimeProtocolError(f"{method} was refused: {said}", op=method, details=details)
