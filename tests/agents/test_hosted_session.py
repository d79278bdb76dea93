"""A failed turn is attributed to the agent or to the infrastructure."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from drive import Driven, drive

from proofbox.agents.contract import SessionOptions, TurnResult
from proofbox.agents.runtimes.scripted.runtime import ScriptedRuntime
from proofbox.errors import SandboxLost
from proofbox.workspace.tools.results import ToolResult

SCRIPT = {"step": [{"tool": "run_command", "args": {"command": "work"}}, {"say": "done"}]}


class FailingTools:
    """Tools whose calls raise the given error."""

    facts: Mapping[str, Any] = {}
    error: Exception

    def __init__(self, options: SessionOptions) -> None:
        del options

    def call(self, name: str, args: Mapping[str, Any]) -> ToolResult:
        raise self.error

    def commands_alive(self) -> int:
        return 0

    def stop(self) -> None:
        pass


class StoppedTools(FailingTools):
    """Tools whose calls end when their box is stopped."""

    def __init__(self, options: SessionOptions) -> None:
        super().__init__(options)
        self.called, self._stopped = threading.Event(), threading.Event()

    def call(self, name: str, args: Mapping[str, Any]) -> ToolResult:
        self.called.set()
        self._stopped.wait(30)
        raise SandboxLost("the box was stopped")

    def stop(self) -> None:
        self._stopped.set()


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [(SandboxLost("the box ended"), "SANDBOX_LOST", True), (ValueError("a bug"), "PROOFBOX_INTERNAL", False)],
)
def test_lost_box_and_own_bug_are_observed_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str, retryable: bool
) -> None:
    monkeypatch.setattr(FailingTools, "error", error, raising=False)
    results: list[TurnResult] = []

    async def work(driven: Driven) -> None:
        results.append(await driven.turn())

    drive(ScriptedRuntime(open_tools=FailingTools), tmp_path, {"script": SCRIPT}, work)
    (result,) = results
    assert result.status == "failed"
    assert result.error is not None
    assert result.error.details["cause"] == code
    assert result.observed_failure is not None
    assert (result.observed_failure.code, result.observed_failure.retryable) == (code, retryable)


def test_box_stopped_by_an_interrupt_is_not_an_observed_failure(tmp_path: Path) -> None:
    opened: list[StoppedTools] = []
    results: list[TurnResult] = []

    def open_tools(options: SessionOptions) -> StoppedTools:
        opened.append(StoppedTools(options))
        return opened[-1]

    async def work(driven: Driven) -> None:
        thread = await driven.session.start_thread()
        turn = await driven.session.start_turn(thread, "go")
        while not (opened and opened[0].called.is_set()):  # noqa: ASYNC110 (tests wait by polling)
            await anyio.sleep(0.001)
        await driven.session.interrupt_turn(thread, turn)
        results.append(await driven.session.wait_turn(turn))

    drive(ScriptedRuntime(open_tools=open_tools), tmp_path, {"script": SCRIPT}, work)
    (result,) = results
    assert (result.status, result.observed_failure) == ("interrupted", None)
