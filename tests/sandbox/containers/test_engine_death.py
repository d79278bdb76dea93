"""A private engine is killed while boxes run: lost boxes are reported as lost, and the others continue."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from pacing import SOON
from private_engine import IMAGE, PrivateEngine, private_engine

from proofbox import Sandboxes, Settings
from proofbox.errors import ProofboxError, ProviderUnavailable, SandboxLost

pytestmark = [pytest.mark.needs("docker"), pytest.mark.xdist_group("engine-death")]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Generator[PrivateEngine]:
    with private_engine() as started:
        monkeypatch.setenv("DOCKER_HOST", started.host)
        yield started


@pytest.fixture
def boxes(engine: PrivateEngine, tmp_path: Path) -> Sandboxes:
    return Sandboxes(tmp_path, settings=Settings(provider="docker", image=IMAGE))


def test_killed_engine_is_unavailable_and_running_commands_continue(engine: PrivateEngine, boxes: Sandboxes) -> None:
    session = boxes.start_session()
    result = session.exec(
        ["sh", "-c", "echo up; read -r x; echo over"],
        stdin=cast(BinaryIO, Resumed(lambda: os.kill(engine.pid, signal.SIGKILL))),
        on_output=lambda _: None,
    )
    assert result.stdout == "up\nover\n", "a command does not go through the engine"
    began = time.monotonic()
    with pytest.raises(ProviderUnavailable) as raised:
        boxes.start_session()
    assert time.monotonic() - began < SOON
    assert raised.value.fix_hints
    began = time.monotonic()
    with pytest.raises(ProviderUnavailable):  # the removal of the container can't be confirmed, and is not reported
        session.stop()
    assert time.monotonic() - began < SOON
    with pytest.raises(SandboxLost):
        session.exec(["true"])


@pytest.mark.needs("gvisor")
def test_box_attached_through_the_engine_is_lost_with_it(engine: PrivateEngine, boxes: Sandboxes) -> None:
    session = boxes.start_session(runtime="runsc")
    began = 0.0

    def kill(_: object) -> None:
        nonlocal began
        os.kill(engine.pid, signal.SIGKILL)
        began = time.monotonic()

    with pytest.raises(SandboxLost):
        session.exec(["sh", "-c", "echo up; sleep 60"], on_output=kill)
    assert time.monotonic() - began < SOON
    with pytest.raises(ProofboxError):
        session.stop()


class Resumed(io.RawIOBase):
    """A stdin that calls a function before its only line is read."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._lines = [b"go\n"]
        self._act = act

    def read(self, _size: int = -1) -> bytes:
        if not self._lines:
            return b""
        self._act()
        return self._lines.pop()
