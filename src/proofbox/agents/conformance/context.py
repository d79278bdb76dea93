"""What a check works with: a workspace of its own, sessions over it, every event they told, and eyes on the host."""

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
    """One thing that is checked of every runtime."""

    name: str
    subject: str
    run: Callable[[RuntimeCheckContext], Awaitable[None]]
    seconds: float


class RuntimeChecks:
    """The checks of one module, gathered as they are defined."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.checks: list[RuntimeCheck] = []

    def check(self, *, seconds: float = 90.0) -> Callable[[Callable[[RuntimeCheckContext], Awaitable[None]]], None]:
        """The function's name is the check's name, its docstring is for the reader."""

        def add(run: Callable[[RuntimeCheckContext], Awaitable[None]]) -> None:
            name = getattr(run, "__name__", "").replace("_", "-")
            self.checks.append(RuntimeCheck(f"{self.name}.{name}", self.name, run, seconds))

        return add


class Play:
    """A session, and all that was told in it."""

    def __init__(self, session: AgentSession, patience: float) -> None:
        self.session = session
        self._patience = patience
        self.events: list[Event] = []
        self._told = anyio.Event()

    async def hear(self, event: Event) -> None:
        self.events.append(event)
        self._told.set()
        self._told = anyio.Event()

    def of(self, kind: type[E], turn: str | None = None) -> list[E]:
        return [event for event in self.events if isinstance(event, kind) and turn in (None, event.turn)]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        with anyio.move_on_after(self._patience) as scope:
            while not condition():
                with anyio.move_on_after(0.05):  # for what is seen on the host, and in no event
                    await self._told.wait()
        if scope.cancelled_caught and not condition():
            raise Failed(f"{what} was not seen in {self._patience:g} s")

    async def turn(self, thread: str, prompt: str) -> TurnResult:
        """A whole turn, and that it ended as turns do."""
        turn = await self.session.start_turn(thread, prompt)
        result = await self.session.wait_turn(turn)
        expect(result.turn == turn, f"asked for the end of {turn}, and got that of {result.turn}")
        expect(result.thread == thread, f"the turn is of thread {thread}, its result of {result.thread}")
        ends = self.of(TurnEnded, turn)
        expect(len(ends) == 1, f"the turn has {len(ends)} ends")
        expect(ends[0].status == result.status, f"told as {ends[0].status}, returned as {result.status}")
        expect(bool(ends[0].code) == (result.status != "completed"), f"{result.status} with code {ends[0].code!r}")
        return result


class RuntimeCheckContext:
    """One check's own world."""

    patience = 30.0  # a busy machine is no finding

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
    async def playing(
        self, *scenes: Scene, stall_timeout: float | None = None, home: str = "home"
    ) -> AsyncIterator[Play]:
        """A session whose threads play these scenes. It is closed at the end, and must then have left nothing."""
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
            )
            probe = await self.runtime.probe(settings)
            expect(probe.available and probe.compatible, f"the probe says {probe.reason!r}")
            session = await self.runtime.start_session(options)
            self.version = session.version
            play = Play(session, self.patience)
            session.add_listener(play.hear)
            try:
                yield play
            finally:
                with anyio.CancelScope(shield=True):
                    await session.close()
                    await session.close()
        expect(session.runtime == self.runtime.id, f"the session says it is of {session.runtime}")
        numbers = [event.seq for event in play.events]
        first = numbers[0] if numbers else 1
        expect(numbers == list(range(first, first + len(numbers))), f"seq has gaps or is out of order: {numbers}")
        expect({event.session for event in play.events} <= {session.id}, "events bear another session's id")

    async def lacks(self, capability: str, attempt: Callable[[], Awaitable[object]]) -> bool:
        """Whether the runtime says it has not this; then that it refuses, too."""
        if getattr(self.runtime.capabilities, capability):
            return False
        try:
            await attempt()
        except CapabilityUnsupported as error:
            expect(error.message, "the refusal says nothing")
            return True
        except ProofboxError as error:
            raise Failed(f"without {capability} it raised {error.code}, not {CapabilityUnsupported.code}") from None
        raise Failed(f"it has not {capability}, and did not refuse to be asked for it")

    @property
    def long_command(self) -> str:
        """One that does not end by itself, and bears the marker."""
        return f"touch runs; sleep 300; : {self.marker}"

    def long_command_runs(self) -> bool:
        """Not by its process: an agent's own arguments may hold the command before it is run."""
        return (self.workspace / "runs").exists()

    def alive(self, marker: str) -> list[int]:
        return processes_with(marker)

    def close(self) -> list[str]:
        """What is left that should not be, and then the end of it."""
        end = time.monotonic() + self.patience
        while (left := processes_with(str(self.base)) + processes_with(self.marker)) and time.monotonic() < end:
            time.sleep(0.05)
        found = [f"left behind: process {pid}" for pid in left]
        sockets = [path for path in self.base.rglob("*") if path.is_socket()]
        found += [f"left behind: {path}" for path in sockets]
        remove_tree(self.base)
        return found
