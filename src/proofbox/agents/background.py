"""Tasks that outlive the call which started them: a session's turns, until the session ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.abc


class Background:
    """A task group in a task of its own, since a session is opened by one task and may be closed by another.

    What is spawned here must not raise: it tells its failures to whoever waits for it.
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
        """Cancel what is left and wait for it. May be repeated."""
        self._ended.set()
        if self._host is not None:
            await asyncio.wait([self._host])

    async def _hold(self) -> None:
        async with anyio.create_task_group() as group:
            self._group = group
            self._ready.set()
            await self._ended.wait()
            group.cancel_scope.cancel()
