"""Taking the connections of a box: so many at a time, and on through a shortage of descriptors.

More wait in the kernel's queue. What a box can use up in us comes back when some of its connections end, so that a
shortage is waited out; whatever else is wrong with a listener is raised.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

import anyio
import anyio.abc

GO_ON = 0.1
_PASSES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED, errno.EPROTO})

Host = Callable[[anyio.abc.SocketStream], Awaitable[None]]


async def accept_all(listener: anyio.abc.SocketListener, host: Host, *, most: int) -> None:
    """Until it is cancelled. `host` must not raise, and has the stream from then on."""
    room = anyio.Semaphore(most)

    async def one(stream: anyio.abc.SocketStream) -> None:
        try:
            await host(stream)
        finally:
            room.release()

    async with anyio.create_task_group() as tasks:
        while True:
            await room.acquire()
            try:
                stream = await listener.accept()
            except (OSError, anyio.BrokenResourceError) as error:
                room.release()
                if not _will_pass(error):
                    raise
                await anyio.sleep(GO_ON)
                continue
            tasks.start_soon(one, stream)


def _will_pass(error: Exception) -> bool:
    cause = error if isinstance(error, OSError) else error.__cause__  # anyio wraps a unix socket's
    return isinstance(cause, OSError) and cause.errno in _PASSES
