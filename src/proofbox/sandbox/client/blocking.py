"""How the sync service waits: awaits block the calling thread, so that a coroutine runs to its end without a loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import socket

    from proofbox.sandbox.client.calls import ActiveCall
    from proofbox.sandbox.client.connection import Connection
    from proofbox.sandbox.client.requests import CommandRequest
    from proofbox.sandbox.client.wire import Hello
    from proofbox.sandbox.contract import OnOutput, OnStart

T = TypeVar("T")


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose awaits block, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a blocking service does not wait on an event loop")


class BlockingConnection:
    """A connection whose awaits block."""

    def __init__(self, blocking: Connection) -> None:
        self.close = blocking.close
        self._blocking = blocking

    @property
    def hello(self) -> Hello | None:
        return self._blocking.hello

    @property
    def lost(self) -> bool:
        return self._blocking.lost

    @property
    def running(self) -> int:
        return self._blocking.running

    async def run(self, request: CommandRequest, on_output: OnOutput | None, on_start: OnStart | None) -> ActiveCall:
        return self._blocking.run(request, on_output, on_start)

    async def wait_for_hello(self, seconds: float) -> Hello:
        return self._blocking.wait_for_hello(seconds)

    async def shutdown(self) -> None:
        self._blocking.shutdown()


class Blocking:
    """Waits by blocking the calling thread."""

    def connect(self, stream: socket.socket, kill: Callable[[], None]) -> BlockingConnection:
        from proofbox.sandbox.client.connection import Connection

        return BlockingConnection(Connection(stream, kill))

    async def call(self, work: Callable[[], T]) -> T:
        return work()

    def shielded(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()
