"""Helpers to drive a session in a test and collect its events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import anyio

from proofbox.agents.contract import AgentRuntime, AgentSession, SessionOptions, TurnResult
from proofbox.agents.events import AgentEvent, Event

E = TypeVar("E", bound=AgentEvent)


class Driven:
    def __init__(self, session: AgentSession) -> None:
        self.session = session
        self.events: list[Event] = []
        session.add_listener(self._hear)

    async def _hear(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def turn(self, prompt: str = "go", thread: str | None = None) -> TurnResult:
        thread = thread or await self.session.start_thread()
        return await self.session.wait_turn(await self.session.start_turn(thread, prompt))


def drive(
    runtime: AgentRuntime,
    base: Path,
    settings: Mapping[str, Any],
    work: Callable[[Driven], Awaitable[None]],
    **options: Any,
) -> Driven:
    """Run `work` with a session on a workspace in `base`, then close the session."""
    workspace, scratch = base / "workspace", base / "scratch"
    for directory in (workspace, scratch):
        directory.mkdir(exist_ok=True)
    options.setdefault("provider", "bubblewrap")

    async def run() -> Driven:
        with anyio.fail_after(150):
            session = await runtime.start_session(
                SessionOptions(workspace=workspace, scratch=scratch, settings=settings, **options)
            )
            driven = Driven(session)
            try:
                await work(driven)
            finally:
                await session.close()
            return driven

    return anyio.run(run)
