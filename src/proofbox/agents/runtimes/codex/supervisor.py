"""Keep the program of a Codex session running, from `run` until `closing` is set, and send requests to it.

If the program crashes, its turns fail, its process tree is killed, and a new program is started. A request waits for a
program that is being restarted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from proofbox.agents.agent_box import box_facts, killed_at_end, variables_of
from proofbox.agents.contract import SessionOptions
from proofbox.agents.events import Notice, TurnStatus
from proofbox.agents.gateway.server import ModelGateway, open_model_route
from proofbox.agents.runtimes.codex.binary import Binary
from proofbox.agents.runtimes.codex.listener import CodexListener
from proofbox.agents.runtimes.codex.program import CodexHandlers, Launch, Program, prepare, running
from proofbox.agents.runtimes.codex.settings import CodexSettings
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.errors import (
    AgentError,
    InternalError,
    Overloaded,
    ProofboxError,
    RuntimeProtocolError,
    RuntimeStartFailed,
    RuntimeTimedOut,
    TransportBroken,
    TurnInterrupted,
)
from proofbox.sandbox.async_service import AsyncSandboxes

MAX_RECOVERIES = 3
OVERLOAD_TRIES = 4
OVERLOAD_SECONDS = 0.2
CLOSE_SECONDS = 3.0


class CodexSupervisor:
    """Runs the program of one session, with restarts."""

    def __init__(
        self,
        id: str,
        options: SessionOptions,
        settings: CodexSettings,
        binary: Binary,
        home: Path,
        *,
        gateway: ModelGateway,
        listener: CodexListener,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._id = id
        self._options = options
        self._settings = settings
        self._binary = binary
        self._home = home
        self._gateway = gateway
        self._listener = listener
        self._clock = clock
        self._ids = ids
        self._changed = anyio.Event()
        self.version = ""
        self.program: Program | None = None
        """The running program; None before the start, during a restart and after the end."""
        self.recoveries: list[dict[str, Any]] = []
        self.broken: ProofboxError | None = None
        """Why no other program will be started."""
        self.closing = anyio.Event()
        self.gone = anyio.Event()
        """Set when the last program and its box have ended."""
        self.facts: dict[str, Any] = {}

    async def run(self) -> None:
        """Run the program until the session ends, with restarts. Never raises: the error is in `broken`."""
        try:
            directory = self._options.scratch / f"{self._id}-gateway"
            async with open_model_route(self._gateway, self._options, directory) as (base_url, doors):
                self.facts["gateway"] = "a separate socket" if doors else "loopback of the host"
                launch = prepare(self._options, self._settings, self._binary, self._home, base_url, doors)
                async with AsyncSandboxes(
                    self._options.workspace, settings=self._options.box_settings, clock=self._clock, ids=self._ids
                ) as boxes:
                    while not self.closing.is_set() and len(self.recoveries) <= MAX_RECOVERIES:
                        await self._run_program(boxes, launch)
        except Exception as error:  # background tasks must not raise
            self.broken = _innermost(error)
        finally:
            with anyio.CancelScope(shield=True):
                self.program = None
                closed = TurnInterrupted("the session was closed", op="close")
                self.broken = self.broken or closed
                status: TurnStatus = "interrupted" if self.broken is closed else "failed"
                await self._listener.end_all(status, as_agent_error(self.broken))
            self.gone.set()
            self.wake()

    async def _run_program(self, boxes: AsyncSandboxes, launch: Launch) -> None:
        listener = self._listener
        handlers = CodexHandlers(
            on_notification=listener.on_notification,
            on_request=listener.on_request,
            on_garbage=listener.on_garbage,
            on_failure=listener.on_failure,
        )
        async with running(boxes, launch, handlers) as program:
            self._listener.generation += 1
            self.version = program.version
            variables = variables_of(program.box.inside, launch.env)
            self.facts |= {"user_agent": program.user_agent, "variables": variables, **box_facts(program.box.info)}
            self.program = program
            self.wake()
            if self.recoveries:
                message = f"codex was restarted ({len(self.recoveries)} of {MAX_RECOVERIES} times)"
                await self._listener.feed.publish(Notice(session=self._id, kind="recovered", message=message))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_when, program.ended, tasks.cancel_scope)
                await self.closing.wait()
                await program.close_stdin()
                with anyio.move_on_after(CLOSE_SECONDS):
                    await program.ended.wait()
                tasks.cancel_scope.cancel()
            self.program = None
            crash = None if self.closing.is_set() else await program.crash_error()
            if crash is None and await program.commands_alive():
                await self._listener.feed.publish(killed_at_end(self._id))
        # The box and all its processes have ended.
        if crash is not None:
            self.recoveries.append({"reason": crash.message, "at_turns": len(self._listener.feed.turns_under_way())})
            again = len(self.recoveries) <= MAX_RECOVERIES
            crash.details |= {"restarting": again, "replayed": False}
            crash.fix_hints = (
                "continue in the thread: the turn is not repeated, because it may have had effects"
                if again
                else "start another session: the program crashed too often",
            )
            self._listener.ledger.forget()
            await self._listener.end_all("failed", crash)
            if not again:
                self.broken = crash

    async def request(
        self,
        method: str,
        params: Callable[[Program], Any],
        on_result: Callable[[Any], None] | None = None,
    ) -> Any:
        """Send a request. Retry only if Codex reports that it is overloaded."""
        for attempt in range(OVERLOAD_TRIES):
            program = await self.running_program()
            try:
                return await program.peer.request(method, params(program), on_result=on_result)
            except Overloaded:
                if attempt + 1 == OVERLOAD_TRIES:
                    raise
                await anyio.sleep(OVERLOAD_SECONDS * 2**attempt)
            except TransportBroken as error:
                raise TransportBroken(
                    f"{method}: codex ended before it responded",
                    op=method,
                    fix_hints=["retry: codex is being restarted"],
                    details=error.details,
                ) from None
        raise RuntimeProtocolError(f"{method} was not sent", op=method)

    async def running_program(self) -> Program:
        """Return the running program; wait if it is being restarted."""
        try:
            with anyio.fail_after(self._options.request_timeout):
                await self.wait(lambda: self.is_ready() or self.broken is not None)
        except TimeoutError:
            raise RuntimeTimedOut("timeout while waiting for codex to restart", op="session") from None
        if self.program is None or self.closing.is_set():
            raise as_agent_error(self.broken or TurnInterrupted("the session was closed", op="session"))
        return self.program

    def is_ready(self) -> bool:
        """Return whether the program can take requests. After its stream breaks, it exists for a moment longer."""
        return self.program is not None and self.program.peer.broken is None

    async def kill(self) -> None:
        """Kill the program; it is restarted."""
        if self.program is not None:
            await self.program.kill()

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true. It is checked after every message and every change of the program."""
        while not condition():
            await self._changed.wait()

    def wake(self) -> None:
        """Make waiting tasks check their conditions."""
        self._changed.set()
        self._changed = anyio.Event()


async def _when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _innermost(error: BaseException) -> ProofboxError:
    """Unwrap the exception groups of task groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ProofboxError):
        return error
    return InternalError(f"the session failed: {type(error).__name__}: {error}", op="session")


def as_agent_error(error: ProofboxError) -> AgentError:
    """Convert the error that ended the session into an error of a turn."""
    if isinstance(error, AgentError):
        return error
    return RuntimeStartFailed(
        f"the session has no box: {error.message}",
        op=error.op or "session",
        fix_hints=error.fix_hints,
        details={**error.details, "cause": error.code},
    )
