"""An unresponsive agent: the client kills the box itself, and only then reports it as lost.

The tests stop the agent from outside while it runs a command that would not end otherwise.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from pacing import LIMITS, in_time
from raw_agent import PATIENCE, alive, wait_until

from proofbox import AsyncSandboxes, Sandboxes
from proofbox.errors import SandboxLost
from proofbox.sandbox.client import async_connection, connection
from proofbox.sandbox.client.async_process import open_process
from proofbox.sandbox.conformance.context import command_line, commands_of, parent
from proofbox.sandbox.service import Session

pytestmark = pytest.mark.needs("bubblewrap", "root")
LOOPS = ["asyncio", *(["trio"] if importlib.util.find_spec("trio") else [])]


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (connection, async_connection):
        monkeypatch.setattr(module, "ANSWER_TIMEOUT", 1.0)


@pytest.fixture
def marker() -> Iterator[str]:
    marker = f"proofbox-silence-{secrets.token_hex(8)}"
    yield marker
    for pid in commands_of(marker):
        os.kill(pid, signal.SIGKILL)


def beat(marker: str) -> list[str]:
    return ["sh", "-c", "echo up; while :; do sleep 60; done", marker]


def stop_agent_above(marker: str) -> list[int]:
    """Stop the agent of the command and return its pid; an empty list if the command has timed out already."""
    found = {parent(pid) for pid in commands_of(marker) if "boxagent" in command_line(parent(pid)).split(" ")[0]}
    for agent in found:
        os.kill(agent, signal.SIGSTOP)
    return list(found)


def assert_ended(marker: str, agent: int) -> None:
    assert not commands_of(marker), "the command is still running"
    wait_until(lambda: not alive(agent), "the death of the killed agent")


def lose(session: Session, marker: str) -> None:
    agents: list[int] = []

    def attempt(limit: float) -> str:
        try:
            session.exec(beat(marker), timeout=limit, on_output=lambda _: agents.extend(stop_agent_above(marker)))
        except SandboxLost as error:
            return error.message
        return ""  # it timed out before its output

    assert "does not answer" in in_time(attempt, bool)
    assert_ended(marker, agents[0])
    assert session.info.state == "lost"
    with pytest.raises(SandboxLost):
        session.exec(["true"])


def test_command_is_dead_before_its_loss_is_reported(tmp_path: Path, marker: str) -> None:
    with Sandboxes(tmp_path) as boxes, boxes.start_session(provider="bubblewrap") as session:
        lose(session, marker)


def test_command_of_a_detached_session_is_dead_before_its_loss_is_reported(tmp_path: Path, marker: str) -> None:
    with Sandboxes(tmp_path) as boxes:
        session = boxes.start_session(provider="bubblewrap", detached=True)
        lose(session, marker)
        session.stop()
        boxes.prune_sessions()


def test_command_is_dead_after_its_caller_is_interrupted(tmp_path: Path, marker: str) -> None:
    agents: list[int] = []

    def interrupt(_: object) -> None:
        agents.extend(stop_agent_above(marker))
        raise KeyboardInterrupt

    with Sandboxes(tmp_path) as boxes, boxes.start_session(provider="bubblewrap") as session:
        with pytest.raises(KeyboardInterrupt):
            session.exec(beat(marker), on_output=interrupt)
        assert_ended(marker, agents[0])
        assert session.info.state == "lost"


def test_waiting_thread_kills_the_silent_box(tmp_path: Path, marker: str) -> None:
    with Sandboxes(tmp_path) as boxes, boxes.start_session(provider="bubblewrap") as session:

        def read() -> None:
            with pytest.raises(SandboxLost):
                session.exec(beat(marker))

        reading = threading.Thread(target=read)
        reading.start()
        wait_until(lambda: session._core.connection.hello and commands_of(marker), "a running command")
        [agent] = stop_agent_above(marker)
        with pytest.raises(SandboxLost, match="does not answer"):
            session.exec(["true"], timeout=0.1)
        assert_ended(marker, agent)
        reading.join(PATIENCE)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("detached", [False, True])
def test_async_client_kills_the_silent_box(tmp_path: Path, marker: str, loop: str, detached: bool) -> None:
    async def work() -> None:
        agents: list[int] = []
        async with AsyncSandboxes(tmp_path) as boxes:
            session = await boxes.start_session(provider="bubblewrap", detached=detached)

            async def attempt() -> None:
                for limit in LIMITS:  # until one is long enough for the command to be under way
                    await session.exec(
                        beat(marker), timeout=limit, on_output=lambda _: agents.extend(stop_agent_above(marker))
                    )

            with pytest.raises(SandboxLost, match="does not answer"):
                await attempt()
            assert_ended(marker, agents[0])
            assert session.info.state == "lost"
            await session.stop()
            await boxes.prune_sessions()

    anyio.run(work, backend=loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_process_is_dead_after_its_block(tmp_path: Path, marker: str, loop: str) -> None:
    async def work() -> None:
        async with AsyncSandboxes(tmp_path) as boxes:
            session = await boxes.start_session(provider="bubblewrap")
            async with open_process(session, beat(marker)) as process:
                await process.receive()
                [agent] = stop_agent_above(marker)
            assert_ended(marker, agent)
            assert session.info.state == "lost"

    anyio.run(work, backend=loop)
