"""Tests of the controls: `nop` does nothing, and `oracle` runs the solution as a recorded call."""

from __future__ import annotations

from pathlib import Path

import pytest
from drive import Driven, drive

from proofbox.agents.contract import ApprovalRule
from proofbox.agents.events import Message, ToolCall
from proofbox.agents.runtimes.controls import NopRuntime, OracleRuntime
from proofbox.errors import StrategyUnavailable

pytestmark = pytest.mark.needs("bubblewrap")


def test_nop_does_nothing_and_sends_no_message(tmp_path: Path) -> None:
    async def work(driven: Driven) -> None:
        result = await driven.turn("write the answer")
        assert (result.status, result.final_message) == ("completed", "")

    driven = drive(NopRuntime(), tmp_path, {}, work)
    assert not driven.of(ToolCall)
    assert list((tmp_path / "workspace").iterdir()) == []


@pytest.mark.parametrize("as_directory", [True, False])
def test_oracle_runs_the_solution_as_an_observed_call(tmp_path: Path, *, as_directory: bool) -> None:
    given = tmp_path / "given"
    given.mkdir()
    script = given / "solve.sh"
    script.write_text('#!/bin/sh\necho "$WORD"; echo 42 > answer.txt; ls /solution > listing; exit 3\n')
    (given / "data").write_text("x")

    async def work(driven: Driven) -> None:
        result = await driven.turn()
        assert (result.status, result.final_message) == ("completed", "")

    settings = {"solution": str(given if as_directory else script), "env": {"WORD": "heard"}}
    nothing = (ApprovalRule(answer="decline"),)  # approval rules do not apply to controls
    driven = drive(OracleRuntime(), tmp_path, settings, work, approvals=nothing)
    (call,) = driven.of(ToolCall)
    assert (call.source, call.command, call.exit_code) == ("observed", "/solution/solve.sh", 3)
    assert "heard" in call.output
    assert not driven.of(Message)
    assert (tmp_path / "workspace/answer.txt").read_text() == "42\n"
    seen = (tmp_path / "workspace/listing").read_text().split()
    assert seen == (["data", "solve.sh"] if as_directory else ["solve.sh"])
    assert not script.stat().st_mode & 0o111, "the original was changed"


@pytest.mark.parametrize("solution", ["", "nowhere", "empty"])
def test_oracle_is_unavailable_without_a_solution(tmp_path: Path, solution: str) -> None:
    (tmp_path / "empty").mkdir()

    async def work(driven: Driven) -> None:
        raise AssertionError(f"{driven} was started")

    with pytest.raises(StrategyUnavailable, match="no solution"):
        drive(OracleRuntime(), tmp_path, {"solution": solution and str(tmp_path / solution)}, work)
