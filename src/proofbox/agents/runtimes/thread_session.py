"""The base class of sessions with one process per thread: `claude_code` and `acp`.

A process is started with its thread and ends with it. After a crash or an interrupt, the next turn starts another one,
which resumes the thread. A turn is never repeated, because it may already have had effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio
import msgspec
from anyio.to_thread import run_sync

from proofbox.agents.agent_box import box_ended, box_facts, variables_of
from proofbox.agents.contract import AgentRuntime, SessionOptions
from proofbox.agents.events import Event, Integrity
from proofbox.agents.feed import Turn
from proofbox.agents.gateway.endpoint import ModelEndpoint
from proofbox.agents.gateway.session_route import ModelRoute
from proofbox.agents.hosted_session import HostedSession
from proofbox.agents.runtimes.thread_program import ThreadProgram
from proofbox.core.clock import Clock
from proofbox.core.files.removal import remove_tree
from proofbox.core.ids import IdSource
from proofbox.errors import (
    AgentError,
    InternalError,
    ProofboxError,
    RuntimeStartFailed,
    RuntimeTimedOut,
)
from proofbox.sandbox.async_service import AsyncSandboxes, AsyncSession
from proofbox.sandbox.contract import Mount
from proofbox.sandbox.options import PolicyOptions

STARTS = 2
"""How often to start a process that hangs before it answers its first request."""

P = TypeVar("P", bound=ThreadProgram)


class LiveThread(Generic[P]):
    """A thread in use: its process, and the turn in progress."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.program: P | None = None
        self.turn: Turn | None = None

    def abandon(self, turn: str | None = None) -> list[Event]:
        """Return the events for calls whose end will never be reported: all, or those of a turn."""
        raise NotImplementedError


T = TypeVar("T", bound=LiveThread[Any])


class ThreadedSession(HostedSession, Generic[T]):
    """Subclasses start the program of a thread (`_start_program`) and run turns."""

    def __init__(
        self,
        runtime: AgentRuntime,
        options: SessionOptions,
        endpoint: ModelEndpoint | None,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        super().__init__(runtime, options, clock=clock, ids=ids)
        self._home: Path = options.home or options.scratch / f"{self.id}-home"
        self._route = ModelRoute(endpoint, self) if endpoint is not None else None
        self._boxes = AsyncSandboxes(options.workspace, settings=options.box_settings, clock=self._clock, ids=self._ids)
        self._box: AsyncSession | None = None
        self._used: dict[str, T] = {}
        self._env: dict[str, str] = {}
        self._restarts = 0
        self._starting = anyio.Lock()

    async def open(self) -> None:
        await super().open()
        try:
            await self._open_box()
        except BaseException:
            await self.close()
            raise

    async def _open_box(self) -> None:
        """Start the box, with `_start_box`."""
        raise NotImplementedError

    @property
    def _model_route(self) -> ModelRoute:
        if self._route is None:
            raise InternalError("the session has no model", op="session")
        return self._route

    async def _start_box(self, mounts: list[str | Mount]) -> None:
        """Start the box with these additional mounts and the door to the gateway."""
        options = self.options
        policy: PolicyOptions = {**options.policy}
        if self._route is not None:
            policy["doors"] = [*(options.policy.get("doors") or ()), *await self._route.doors()]
        policy["mounts"] = [*(options.policy.get("mounts") or ()), *mounts]
        if options.sandboxed and policy.get("network") is None:
            policy["network"] = "none"
        self._box = await self._boxes.start_session(provider=options.provider if options.sandboxed else "off", **policy)

    async def _open_route(self) -> str:
        """Open the gateway. Return its address in the box, or an empty string if there is no model."""
        if self._route is None:
            return ""
        self._background.spawn(self._route.keep_open)
        await self._route.doors()
        return self._route.base_url

    def facts(self) -> Mapping[str, Any]:
        return {
            "transport": "stdio",
            "version": self.version,
            "sandboxed": self.options.sandboxed,
            **(self._route.facts() if self._route is not None else {}),
            "restarts": self._restarts,
            **(
                {**box_facts(self._box.info), "variables": variables_of(self._box.inside, self._env)}
                if self._box is not None
                else {}
            ),
        }

    # Programs

    async def _start_program(self, thread: T) -> None:
        """Start the program. A program that hangs at its start is started again.

        Programs start one after another, because they share a home, and some of them set it up at their start.
        """
        async with self._starting:
            await self._start_in_turn(thread)

    async def _start_in_turn(self, thread: T) -> None:
        for left in reversed(range(STARTS)):
            program = self._make_program(thread)
            self._background.spawn(program.run)
            try:
                await self._prepare_program(thread, program)
            except AgentError as error:
                await program.end()
                if isinstance(error, RuntimeTimedOut) and left:
                    self._restarts += 1
                    continue
                raise self._start_failure(error) from None
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await program.end()
                raise
            thread.program = program
            return

    def _make_program(self, thread: T) -> ThreadProgram:
        raise NotImplementedError

    async def _prepare_program(self, thread: T, program: Any) -> None:
        """Complete the handshake with a program that was started."""
        raise NotImplementedError

    def _start_failure(self, error: AgentError) -> AgentError:
        return RuntimeStartFailed(
            f"{self._program_name} failed to start: {error.message}",
            op="start",
            fix_hints=["see its stderr in the details of this error", "check the sandbox: proofbox doctor"],
            details=error.details,
        )

    _program_name = "the agent"

    def _note_activity(self, turn: str) -> None:
        self._last_activity[turn] = self._clock.monotonic()

    async def publish_thread(self, thread: LiveThread[Any], event: Event) -> None:
        """Report an event of the thread, whether or not a turn is in progress."""
        if event.turn:
            self._note_activity(event.turn)
        await self.feed.publish(msgspec.structs.replace(event, session=self.id, thread=thread.id))

    def _crashed(self, turn: Turn, program: ThreadProgram) -> AgentError:
        error = program.ended_error("turn")
        error.details |= {"replayed": False}
        if error.details.get("cause"):  # the box ended, not just the program
            turn.observed_failure = error
        return error

    async def _end_program(self, thread: str, program: ThreadProgram) -> None:
        if not await program.end() and self.broken is None:
            message = "processes that the agent started may keep running until the session ends"
            await self.feed.publish(Integrity(session="", thread=thread, code="COMMAND_NOT_ENDED", message=message))

    async def _end_thread(self, thread: str) -> None:
        used = self._used.get(thread)
        if used is None:
            return
        program, used.program = used.program, None
        if program is not None:
            await program.exit()
            await self._end_program(thread, program)
        for event in used.abandon():
            await self.publish_thread(used, event)

    # The end

    def _check_open(self) -> None:
        super()._check_open()
        if self._box is not None and self._box.info.state != "running":
            raise box_ended()

    async def _commands_alive(self) -> int:
        """End all programs. Return the number of commands that outlived them, and of programs that did not exit."""
        if self._box is None:
            return 0
        killed = 0
        for thread in self._used.values():
            program, thread.program = thread.program, None
            if program is not None:
                killed += await program.exit()
            for event in thread.abandon():
                await self.publish_thread(thread, event)
        try:
            return killed + await self._box.commands_alive()
        except ProofboxError:
            return killed

    async def _release(self) -> None:
        await self._boxes.close()
        if self._route is not None:
            self._route.close()
        if self.options.home is None:
            await run_sync(remove_tree, self._home)
