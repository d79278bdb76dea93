"""Background tasks of a session, such as its turns: they outlive the call that started them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio


class Background:
    """A task group that runs in its own task, because one task may open a session and another close it.

    Spawned coroutines must not raise; they report failures to their waiters.
    """

    def __init__(self) -> None:
        self._ended = anyio.Event()
        self._ready = anyio.Event()
        self._host: asyncio.Task[None] | None = None
        self.spawn: Callable[..., object] = _not_open
        """Starts a coroutine function with arguments as a task."""

    async def open(self) -> None:
        self._host = asyncio.get_running_loop().create_task(self._hold())
        await self._ready.wait()

    async def close(self) -> None:
        """Cancel the remaining tasks and wait for them. Idempotent."""
        self._ended.set()
        if self._host is not None:
            await asyncio.wait([self._host])

    async def _hold(self) -> None:
        async with anyio.create_task_group() as group:
            self.spawn = group.start_soon
            self._ready.set()
            await self._ended.wait()
            group.cancel_scope.cancel()


def _not_open(*_: object) -> None:
    raise RuntimeError("the task group is not open")
