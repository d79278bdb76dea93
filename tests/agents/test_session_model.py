"""Stateful test of sessions: the events stay consistent under any sequence of starts, steers, interrupts and forks.

The tools are fakes, so that thousands of turns are cheap. Other tests check that real processes are killed.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.agents.contract import SessionOptions, TurnResult
from proofbox.agents.events import Event, ToolCall, TurnEnded, TurnStarted
from proofbox.agents.runtimes.scripted.runtime import ScriptedRuntime
from proofbox.errors import ProofboxError, SandboxLost, UsageError
from proofbox.workspace.tools.results import CommandResult, ToolResult


class FalseTools:
    """A fake command that ends on request, or when its box is stopped."""

    facts: Mapping[str, Any] = {"provider": "false", "isolation": "none", "sandboxed": False}

    def __init__(self, options: SessionOptions) -> None:
        del options
        self._stopped = threading.Event()

    def call(self, name: str, args: Mapping[str, Any]) -> ToolResult:
        del name
        if args["command"] == "wait" and self._stopped.wait(30):
            raise SandboxLost("the box was stopped")
        return CommandResult(command=(str(args["command"]),), cwd=".", exit_code=0, stdout="", stderr="")

    def commands_alive(self) -> int:
        return 0

    def stop(self) -> None:
        self._stopped.set()


SCRIPT = {
    "turn": [
        {"step": [{"tool": "run_command", "args": {"command": "quick"}}, {"say": "@{history}"}]},
        {"step": [{"tool": "run_command", "args": {"command": "wait"}}, {"say": "never"}]},
        {"step": [{"hear": True}, {"say": "@{heard}"}]},
        {"step": [{"fault": "rate_limit"}]},
        {"step": [{"say": "@{history}"}]},
    ]
}
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["thread", "turn", "steer", "interrupt", "settle", "fork", "reopen"]), st.integers(0, 5)),
    max_size=14,
)


class Model:
    """The expected state of the threads, tracked independently of the session."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.threads: list[str] = []
        self.reported: dict[str, list[str]] = {}
        self.open: dict[str, str] = {}
        self.words = 0

    def word(self) -> str:
        self.words += 1
        return f"word{self.words}."

    async def play(self, actions: list[tuple[str, int]]) -> None:
        await self.enter()
        try:
            for action, which in actions:
                with anyio.fail_after(60):
                    await getattr(self, action)(which)
                    self.check()
        finally:
            await self.leave()

    async def enter(self) -> None:
        options = SessionOptions(
            workspace=self.home, scratch=self.home, home=self.home / "home", settings={"script": SCRIPT}
        )
        self.session = await ScriptedRuntime(FalseTools).start_session(options)
        self.events: list[Event] = []
        self.begun: dict[str, str] = {}
        self.results: dict[str, TurnResult] = {}
        self.session.add_listener(self.hear)

    async def hear(self, event: Event) -> None:
        self.events.append(event)

    async def leave(self) -> None:
        with anyio.fail_after(60):
            await self.session.close()
        for turn in self.begun:
            self.results[turn] = await self.session.wait_turn(turn)
        self.open.clear()
        self.check()
        ended = {event.turn for event in self.events if isinstance(event, TurnEnded)}
        assert ended == set(self.begun), "the end of a turn was not reported"
        with pytest.raises(ProofboxError):
            await self.session.start_thread()

    def check(self) -> None:
        assert [event.seq for event in self.events] == list(range(1, len(self.events) + 1))
        for kind in (TurnStarted, TurnEnded):
            turns = [event.turn for event in self.events if isinstance(event, kind)]
            assert len(turns) == len(set(turns)), f"{kind.__name__} twice"
        for turn in {event.turn for event in self.events if event.turn}:
            reported = [event for event in self.events if event.turn == turn]
            ends = [number for number, event in enumerate(reported) if isinstance(event, TurnEnded)]
            assert not ends or all(isinstance(event, ToolCall) and event.late for event in reported[ends[0] + 1 :])
            assert {event.thread for event in reported} == {self.begun[turn]}

    def pick(self, which: int) -> str | None:
        return self.threads[which % len(self.threads)] if self.threads else None

    async def thread(self, _: int) -> None:
        thread = await self.session.start_thread()
        self.threads.append(thread)
        self.reported[thread] = []

    async def turn(self, which: int) -> None:
        thread = self.pick(which)
        if thread is None:
            return
        word = self.word()
        if thread in self.open and self.session.feed.active_turn(thread) is not None:
            with pytest.raises(UsageError):
                await self.session.start_turn(thread, word)
            return
        turn = await self.session.start_turn(thread, word)
        self.begun[turn] = thread
        self.open[thread] = turn
        self.reported[thread].append(word)

    async def steer(self, which: int) -> None:
        thread = self.pick(which)
        if thread is None or thread not in self.open:
            return
        word = self.word()
        try:
            await self.session.steer_turn(thread, self.open[thread], word)
        except UsageError:
            assert self.session.feed.active_turn(thread) is None
        else:
            self.reported[thread].append(word)

    async def interrupt(self, which: int) -> None:
        thread = self.pick(which)
        if thread is not None and thread in self.open:
            turn = self.open.pop(thread)
            await self.session.interrupt_turn(thread, turn)
            result = await self.session.wait_turn(turn)
            assert result.status in ("interrupted", "completed", "failed")

    async def settle(self, which: int) -> None:
        """Wait for a turn to end, and check that it remembers all prompts and steering texts of its thread."""
        thread = self.pick(which)
        if thread is None or thread not in self.open:
            return
        with anyio.move_on_after(0.05) as scope:
            result = await self.session.wait_turn(self.open[thread])
        if not scope.cancelled_caught:
            del self.open[thread]
            if result.status == "completed" and "." in result.final_message and "\n" in result.final_message:
                # Texts up to its last message; steering may arrive between that message and the end of the turn.
                output = result.final_message.split("\n")
                assert output == self.reported[thread][: len(output)]

    async def fork(self, which: int) -> None:
        thread = self.pick(which)
        if thread is not None and thread not in self.open:
            new = await self.session.fork_thread(thread)
            self.threads.append(new)
            self.reported[new] = list(self.reported[thread])

    async def reopen(self, _: int) -> None:
        """Open another session with the same home and resume every thread."""
        await self.leave()
        await self.enter()
        for thread in self.threads:
            await self.session.resume_thread(thread)
            assert self.session._kept[thread].messages() == self.reported[thread]


@given(actions=ACTIONS)
def test_events_keep_their_rules_under_any_sequence_of_actions(actions: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as home, contextlib.ExitStack():
        anyio.run(Model(Path(home)).play, [("thread", 0), ("turn", 0), *actions])
