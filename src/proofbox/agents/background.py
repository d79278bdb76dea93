"""Background tasks of a session, such as its turns: they outlive the call that started them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.abc


class Background:
    """A task group that runs in its own task, because one task may open a session and another close it.

    Spawned coroutines must not raise; they report failures to their waiters.
    """

    def __init__(self) -> None:
        self._ended = anyio.Event()
        self._ready = anyio.Event()
        self._group: anyio.abc.TaskGroup | None = None
        self._host: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._host = asyncio.get_running_loop().create_task(self._hold())
        await self._ready.wait()

    def spawn(self, work: Callable[..., Coroutine[Any, Any, Any]], *args: object) -> None:
        if self._group is None:
            raise RuntimeError("the background is not open")
        self._group.start_soon(work, *args)

    async def close(self) -> None:
        """Cancel the remaining tasks and wait for them. Idempotent."""
        self._ended.set()
        if self._host is not None:
            await asyncio.wait([self._host])

    async def _hold(self) -> None:
        async with anyio.create_task_group() as group:
            self._group = group
            self._ready.set()
            await self._ended.wait()
            group.cancel_scope.cancel()
