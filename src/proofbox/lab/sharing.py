"""One agent process for many attempts: `isolation = "shared"`.

Faster where an agent is slow to start, and no isolation at all between the attempts: each can read and change the
others' files, and what one does may be told as another's. So each attempt says that it was shared, is partial for that
reason, and is not promotable by the usual policies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from proofbox.agents.contract import AgentRuntime, AgentSession
from proofbox.agents.events import Event, Listener
from proofbox.agents.strategies import Considered
from proofbox.errors import CapabilityUnsupported

Started = tuple[AgentSession, tuple[Considered, ...]]


def refuse_to_share(runtime: AgentRuntime) -> None:
    """Raises `CapabilityUnsupported` for a runtime whose session is made for one attempt."""
    if runtime.id == "scripted":
        raise CapabilityUnsupported(
            "scripted plays one script a session, so that its sessions can't be shared",
            op="strategy",
            fix_hints=["--isolation process"],
        )


class SharedSession:
    """Started by the first attempt that needs it, ended with the worker."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._started: Started | None = None

    async def get(self, start: Callable[[], Awaitable[Started]]) -> Started:
        async with self._lock:
            if self._started is None:
                self._started = await start()
            return self._started

    async def close(self) -> None:
        if self._started is not None:
            with anyio.CancelScope(shield=True):
                await self._started[0].close()
            self._started = None


def only(thread: str, listener: Listener) -> Listener:
    """Of a session's events those of one thread, and those of none."""

    async def hear(event: Event) -> None:
        if event.thread in ("", thread):
            await listener(event)

    return hear
