"""The context of a check: a separate workspace, sessions on it, their events, and a view of the host's processes."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec

from proofbox.agents.conformance.rig import Rig, Scene
from proofbox.agents.contract import AgentRuntime, AgentSession, SessionOptions, TurnResult
from proofbox.agents.events import AgentEvent, Event, TurnEnded
from proofbox.core.files.removal import remove_tree
from proofbox.errors import CapabilityUnsupported, ProofboxError
from proofbox.sandbox.conformance.check import Failed, expect
from proofbox.sandbox.conformance.context import processes_with

E = TypeVar("E", bound=AgentEvent)


class RuntimeCheck(msgspec.Struct, frozen=True):
    """One check of a runtime."""

    name: str
    subject: str
    run: Callable[[RuntimeCheckContext], Awaitable[None]]
    seconds: float


class RuntimeChecks:
    """The checks of one module, registered as they are defined."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.checks: list[RuntimeCheck] = []

    def check(self, *, seconds: float = 90.0) -> Callable[[Callable[[RuntimeCheckContext], Awaitable[None]]], None]:
        """Register a check. The name of the function becomes the name of the check."""

        def add(run: Callable[[RuntimeCheckContext], Awaitable[None]]) -> None:
            name = getattr(run, "__name__", "").replace("_", "-")
            self.checks.append(RuntimeCheck(f"{self.name}.{name}", self.name, run, seconds))

        return add


class ObservedSession:
    """A session and its events."""

    def __init__(self, session: AgentSession, timeout: float) -> None:
        self.session = session
        self._timeout = timeout
        self.events: list[Event] = []
        self._changed = anyio.Event()

    async def record(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()
        self._changed = anyio.Event()

    def of(self, kind: type[E], turn: str | None = None) -> list[E]:
        return [event for event in self.events if isinstance(event, kind) and turn in (None, event.turn)]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        with anyio.move_on_after(self._timeout) as scope:
            while not condition():
                with anyio.move_on_after(0.05):  # conditions on the host are polled, because no event reports them
                    await self._changed.wait()
        if scope.cancelled_caught and not condition():
            raise Failed(f"timed out after {self._timeout:g} s while waiting for {what}")

    async def turn(self, thread: str, prompt: str) -> TurnResult:
        """Run a whole turn and check that its end is reported consistently."""
        turn = await self.session.start_turn(thread, prompt)
        result = await self.session.wait_turn(turn)
        expect(result.turn == turn, f"expected the result of {turn}, got that of {result.turn}")
        expect(result.thread == thread, f"the turn belongs to thread {thread}, its result to {result.thread}")
        ends = self.of(TurnEnded, turn)
        expect(len(ends) == 1, f"the turn has {len(ends)} ends")
        expect(ends[0].status == result.status, f"reported as {ends[0].status}, returned as {result.status}")
        expect(bool(ends[0].code) == (result.status != "completed"), f"{result.status} with code {ends[0].code!r}")
        return result


class RuntimeCheckContext:
    """The context of one check."""

    timeout = 30.0  # a busy machine must not make the check fail

    def __init__(self, runtime: AgentRuntime, rig: Rig, provider: str | None) -> None:
        self.runtime = runtime
        self.rig = rig
        self.provider = provider
        self.version = ""
        self.marker = f"conformance-{secrets.token_hex(6)}"
        self.base = Path(tempfile.mkdtemp(prefix="proofbox-runtime-")).resolve()
        self.base.chmod(0o755)
        self.workspace = self.base / "workspace"
        self._sessions = 0
        self.workspace.mkdir()

    @contextlib.asynccontextmanager
    async def session(
        self, *scenes: Scene, stall_timeout: float | None = None, home: str = "home"
    ) -> AsyncIterator[ObservedSession]:
        """Open a session whose threads play these scenes. On exit, close it and check its events."""
        self._sessions += 1
        scratch = self.base / f"s{self._sessions}"
        scratch.mkdir()
        async with self.rig.stage(scenes, scratch) as settings:
            options = SessionOptions(
                workspace=self.workspace,
                scratch=scratch,
                home=self.base / home,
                provider=self.provider,
                settings=settings,
                stall_timeout=stall_timeout,
                request_timeout=max(self.timeout, 30.0),
            )
            probe = await self.runtime.probe(settings)
            expect(probe.available and probe.compatible, f"the probe failed: {probe.reason!r}")
            session = await self.runtime.start_session(options)
            self.version = session.version
            observed = ObservedSession(session, self.timeout)
            session.add_listener(observed.record)
            try:
                yield observed
            finally:
                with anyio.CancelScope(shield=True):
                    await session.close()
                    await session.close()
        expect(session.runtime == self.runtime.id, f"the session names the runtime {session.runtime}")
        numbers = [event.seq for event in observed.events]
        first = numbers[0] if numbers else 1
        expect(numbers == list(range(first, first + len(numbers))), f"seq has gaps or is out of order: {numbers}")
        expect({event.session for event in observed.events} <= {session.id}, "events have another session's id")

    async def lacks(self, capability: str, attempt: Callable[[], Awaitable[object]]) -> bool:
        """Return whether the runtime lacks a capability; if so, check that it refuses the attempt."""
        if getattr(self.runtime.capabilities, capability):
            return False
        try:
            await attempt()
        except CapabilityUnsupported as error:
            expect(error.message, "the error has no message")
            return True
        except ProofboxError as error:
            raise Failed(f"without {capability} it raised {error.code}, not {CapabilityUnsupported.code}") from None
        raise Failed(f"the runtime lacks {capability} but did not refuse the call")

    @property
    def long_command(self) -> str:
        """A command that runs for minutes and contains the marker."""
        return f"touch runs; sleep 300; : {self.marker}"

    def long_command_runs(self) -> bool:
        """Whether the command runs. Processes do not show it, because the agent's arguments may contain the command."""
        return (self.workspace / "runs").exists()

    def alive(self, marker: str) -> list[int]:
        return processes_with(marker)

    def close(self) -> list[str]:
        """Return and remove everything that was left behind."""
        end = time.monotonic() + self.timeout
        while (left := processes_with(str(self.base)) + processes_with(self.marker)) and time.monotonic() < end:
            time.sleep(0.05)
        found = [f"left behind: process {pid}" for pid in left]
        sockets = [path for path in self.base.rglob("*") if path.is_socket()]
        found += [f"left behind: {path}" for path in sockets]
        remove_tree(self.base)
        return found
