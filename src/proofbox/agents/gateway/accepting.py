"""Accept connections from a box, up to a maximum number at a time.

Further connections wait in the kernel's queue. When file descriptors or buffers run out, accepting is retried, because
they are freed when connections end. Other errors of the listener are raised.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

import anyio
import anyio.abc

RETRY_SECONDS = 0.1
_TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED, errno.EPROTO})

Host = Callable[[anyio.abc.SocketStream], Awaitable[None]]


async def accept_all(listener: anyio.abc.SocketListener, host: Host, *, limit: int) -> None:
    """Accept connections until cancelled. `host` takes ownership of the stream and must not raise."""
    room = anyio.Semaphore(limit)

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
                if not _is_transient(error):
                    raise
                await anyio.sleep(RETRY_SECONDS)
                continue
            tasks.start_soon(one, stream)


def _is_transient(error: Exception) -> bool:
    cause = error if isinstance(error, OSError) else error.__cause__  # anyio wraps the error of a Unix socket
    return isinstance(cause, OSError) and cause.errno in _TRANSIENT
