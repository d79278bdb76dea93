"""Read a response on for a moment after its client has left.

Most APIs state the token usage at the end of a response. A client that has received the whole answer could disconnect
just before that, and its tokens would be unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from proofbox.agents.gateway.http import DISCONNECTED, Responder

REST_SECONDS = 2.0
"""Long enough for the last events of a response, and short enough to stop an endpoint from writing a long one."""


class ClientDeparture:
    """Passes a response on, and notices when the client disconnects or the connection is to be closed."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        self._reading = anyio.CancelScope(shield=True)
        self._writing = anyio.CancelScope()
        self._ended = False
        self.has_left = False

    async def outlive(self, read: Callable[[], Awaitable[None]]) -> None:
        """Run `read` to its end. After the client has left, it has a moment left, and `BrokenResourceError` is raised.

        If this is cancelled, the client counts as having left.
        """
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._notice_cancellation)
            with self._reading:
                # Catch errors inside the task group, which would wrap them in an exception group.
                try:
                    await read()
                except Exception as error:
                    failure = error
            self._ended = True
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if self.has_left:
            raise anyio.BrokenResourceError

    async def write(self, data: bytes) -> None:
        """Write data to the client, unless it has left."""
        if self.has_left:
            return
        try:
            with self._writing:
                await self._responder.write(data)
        except DISCONNECTED:
            self._leave()
        self._writing = anyio.CancelScope()

    async def _notice_cancellation(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            if not self._ended:
                self._leave()

    def _leave(self) -> None:
        if not self.has_left:
            self.has_left = True
            self._reading.deadline = anyio.current_time() + REST_SECONDS
            self._writing.cancel()
