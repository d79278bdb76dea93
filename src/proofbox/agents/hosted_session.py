"""The base class of sessions that run each turn as a task of this process: `process`, `scripted` and the controls.

The session decides how a turn ended: the agent finished or failed (`_run_turn` returns, or raises an `AgentError`), the
turn was interrupted, it stalled, or the session was closed. In every case, the turn's commands are dead before its end
is reported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import anyio
import msgspec

from proofbox.agents.agent_box import killed_at_end
from proofbox.agents.background import Background
from proofbox.agents.contract import AgentRuntime, SessionOptions, TurnResult
from proofbox.agents.events import Event, Listener, ThreadStarted, TurnStarted, TurnStatus
from proofbox.agents.feed import Feed, Turn
from proofbox.core.clock import Clock, SystemClock
from proofbox.core.ids import IdSource
from proofbox.errors import (
    AgentError,
    CapabilityUnsupported,
    InternalError,
    ProofboxError,
    RuntimeCrashed,
    RuntimeStalled,
    TurnInterrupted,
    UsageError,
)

CLOSE_TIMEOUT = 10.0
Ending = Literal["interrupt", "stall", "close"]


class HostedSession(ABC):
    """Subclasses run turns (`_run_turn`), and kill what a turn has started (`_kill`)."""

    version = ""

    def __init__(
        self, runtime: AgentRuntime, options: SessionOptions, *, clock: Clock | None = None, ids: IdSource | None = None
    ) -> None:
        self._clock: Clock = clock or SystemClock()
        self._ids = ids or IdSource(self._clock)
        self.id = self._ids.new_id("agent")
        self.runtime = runtime.id
        self.options = options
        self.feed = Feed(self.id, self._clock)
        self._threads: set[str] = set()
        self.folders: dict[str, str] = {}
        """The directory of the workspace that each thread works in."""
        self._background = Background()
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._endings: dict[str, Ending] = {}
        self._last_activity: dict[str, float] = {}
        self._closed = False

    async def open(self) -> None:
        await self._background.open()

    @property
    def broken(self) -> ProofboxError | None:
        try:
            self._check_open()
        except ProofboxError as error:
            return error
        return None

    def owner_of(self, thread: str) -> str:
        return thread if thread in self._threads else ""

    def facts(self) -> Mapping[str, Any]:
        return {"sandboxed": self.options.sandboxed}

    def add_listener(self, listener: Listener) -> int:
        return self.feed.add_listener(listener)

    def remove_listener(self, number: int) -> None:
        self.feed.remove_listener(number)

    async def start_thread(self, folder: str = "") -> str:
        self._check_open()
        thread = self._ids.new_id("thread")
        self.folders[thread] = folder
        return await self._register_thread(thread, ThreadStarted(session=self.id, thread=thread))

    async def resume_thread(self, thread: str) -> str:
        raise self._lacks("supports_thread_resume", f"can't resume {thread[:80]!r}")

    async def fork_thread(self, thread: str, last_turn: str | None = None) -> str:
        raise self._lacks("supports_thread_fork", f"can't fork {thread[:80]!r} at {(last_turn or 'its end')[:80]!r}")

    async def start_turn(self, thread: str, prompt: str) -> str:
        self._check_open()
        if thread not in self._threads:
            raise UsageError(
                f"this session has no thread {thread[:80]!r}", op="turn", fix_hints=["start a thread first"]
            )
        if self.feed.active_turn(thread) is not None:
            raise UsageError(
                "the thread already has a turn in progress",
                op="turn",
                fix_hints=["wait for that turn, interrupt it, or steer it"],
            )
        turn = self.feed.begin_turn(self._ids.new_id("turn"), thread)
        self._background.spawn(self._run, turn, prompt)
        self._record_turn(turn, prompt)
        return turn.id

    async def steer_turn(self, thread: str, turn: str, text: str) -> None:
        raise self._lacks(
            "supports_turn_steer", f"can't steer {turn[:80]!r} of {thread[:80]!r} with {len(text)} characters"
        )

    async def interrupt_turn(self, thread: str, turn: str) -> None:
        self.feed.turn(turn, thread)
        await self._end_early(turn, "interrupt")
        await self.feed.wait_turn(turn)

    async def wait_turn(self, turn: str) -> TurnResult:
        return await self.feed.wait_turn(turn)

    async def end_thread(self, thread: str) -> None:
        active = self.feed.active_turn(thread)
        if active is not None:
            await self.interrupt_turn(thread, active.id)
        await self._end_thread(thread)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(CLOSE_TIMEOUT):
                for turn in self.feed.turns_under_way():
                    await self._end_early(turn.id, "close")
                for turn in self.feed.turns_under_way():
                    await turn.ended.wait()
            if await self._commands_alive():
                await self.feed.publish(killed_at_end(self.id))
            await self._release()  # before the background: it wakes tasks that can't be cancelled
            await self._background.close()

    # For subclasses

    @abstractmethod
    async def _run_turn(self, turn: Turn, prompt: str) -> None:
        """Run one turn of the agent. Returning means that the agent finished its turn."""

    def _record_turn(self, turn: Turn, prompt: str) -> None:  # noqa: B027 (nothing to do by default)
        """Store a turn that is about to run, for sessions that can resume threads."""

    async def _kill(self, turn: Turn) -> None:  # noqa: B027 (nothing to do by default)
        """Kill everything that the turn has started, so that `_run_turn` stops waiting."""

    async def _end_thread(self, thread: str) -> None:  # noqa: B027 (nothing to do by default)
        """Kill whatever the turns of a thread left running."""

    async def _commands_alive(self) -> int:
        """Return the number of commands that still have processes."""
        return 0

    async def _release(self) -> None:  # noqa: B027 (nothing to do by default)
        """Release the session's resources."""

    async def publish(self, event: Event) -> None:
        """Report an event of a turn in progress. Raises `ListenerFailed`, which ends the turn, if a listener failed."""
        self._last_activity[event.turn] = self._clock.monotonic()
        await self.feed.publish(event)
        if self.feed.failure is not None:
            raise self.feed.failure

    async def publish_for(self, turn: Turn, event: Event) -> None:
        """Fill in the event's session, thread and turn, then report it."""
        await self.publish(msgspec.structs.replace(event, session=self.id, thread=turn.thread, turn=turn.id))

    async def _register_thread(self, thread: str, event: ThreadStarted) -> str:
        self._threads.add(thread)
        await self.feed.publish(event)
        return thread

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeCrashed("the session has ended", op="session", retryable=False)

    def _lacks(self, capability: str, what: str) -> CapabilityUnsupported:
        return CapabilityUnsupported(
            f"{self.runtime} {what}: it does not have the capability {capability}",
            op="session",
            fix_hints=["choose a runtime that has the capability: proofbox runtime list"],
            details={"missing": [capability]},
        )

    async def _run(self, turn: Turn, prompt: str) -> None:
        scope = self._scopes[turn.id] = anyio.CancelScope()
        self._last_activity[turn.id] = self._clock.monotonic()
        # The default outcome: a turn whose end was not reported is not a success.
        status: TurnStatus = "interrupted"
        failure: AgentError | None = TurnInterrupted("the session ended during the turn", op="turn")
        try:
            if self.options.stall_timeout is not None:
                self._background.spawn(self._watch, turn, self.options.stall_timeout)
            await self.publish_for(turn, TurnStarted(session=""))
            with scope:
                if turn.id not in self._endings:
                    await self._run_turn(turn, prompt)
                    status, failure = "completed", None
        except AgentError as error:
            status, failure = "failed", error
        except Exception as error:
            # The box was lost, or our own code failed: callers must not wait for the turn, nor blame the agent for it.
            cause = error if isinstance(error, ProofboxError) else _bug(self.runtime, error)
            status, failure = "failed", _as_agent_error(cause)
            if turn.id not in self._endings:  # otherwise we stopped the box ourselves
                turn.observed_failure = cause
        finally:
            with anyio.CancelScope(shield=True):
                ending = self._endings.get(turn.id)
                if ending is not None:
                    status, failure = _outcome_of(ending, self.options.stall_timeout)
                if status != "completed":
                    await self._kill(turn)
                await self.feed.end_turn(turn.id, status, failure)
                self._scopes.pop(turn.id, None)
                self._last_activity.pop(turn.id, None)

    async def _watch(self, turn: Turn, stall_timeout: float) -> None:
        while turn.result is None:
            idle = self._clock.monotonic() - self._last_activity.get(turn.id, turn.began)
            if idle >= stall_timeout:
                await self._end_early(turn.id, "stall")
                return
            with anyio.move_on_after(max(stall_timeout - idle, 0.01)):
                await turn.ended.wait()

    async def _end_early(self, turn: str, ending: Ending) -> None:
        found = self.feed.turn(turn)
        if found.result is not None or turn in self._endings:
            return
        self._endings[turn] = ending
        found.is_stopping = True
        await self._kill(found)
        scope = self._scopes.get(turn)
        if scope is not None:
            scope.cancel()


def _outcome_of(ending: Ending, timeout: float | None) -> tuple[TurnStatus, AgentError]:
    if ending == "stall":
        return "failed", RuntimeStalled(f"the turn showed no activity for {timeout:g} s", op="turn")
    why = "the turn was interrupted" if ending == "interrupt" else "the session was closed during the turn"
    return "interrupted", TurnInterrupted(why, op="turn")


def _bug(runtime: str, error: Exception) -> InternalError:
    return InternalError(f"{runtime} failed: {type(error).__name__}: {error}", op="turn")


def _as_agent_error(error: ProofboxError) -> AgentError:
    """Convert an error of the box or the tools into an `AgentError` that names the original code as its cause."""
    return AgentError(
        error.message,
        op="turn",
        fix_hints=error.fix_hints,
        details={"cause": error.code},
        retryable=error.retryable,
    )
