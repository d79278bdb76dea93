"""`oracle` and `nop` as strategies of an ordinary suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from suites import HEAD, attempts, conduct, lines, mission, plan

from proofbox.lab.run.ledger import Ended

pytestmark = pytest.mark.needs("bubblewrap")

VERIFY = {"commands": ["grep -qx 42 answer.txt"]}


def outcome(tmp_path: Path, chain: str, **fields: str) -> tuple[Ended, list[dict[str, object]]]:
    out = tmp_path / "out"
    made = plan(HEAD + mission("answer", verify=VERIFY, **fields), out, tmp_path, chain=chain)
    conduct(made, out)
    attempt = attempts(made, out)["answer.1"]
    assert attempt.result is not None
    return attempt.result, [each for each in lines(out, made, attempt, "tool.calls.jsonl") if "call" in each]


def test_oracle_passes_by_its_solution_and_nop_fails(tmp_path: Path) -> None:
    (tmp_path / "solve.sh").write_text("echo 42 > answer.txt\n")
    ended, calls = outcome(tmp_path, "oracle", solution="solve.sh")
    assert (ended.strategy, ended.claimed, ended.verified, ended.infra) == ("oracle", "none", "passed", None)
    assert [call["command"] for call in calls] == ["/solution/solve.sh"]
    ended, calls = outcome(tmp_path, "nop", solution="solve.sh")
    assert (ended.strategy, ended.claimed, ended.verified, ended.infra) == ("nop", "none", "failed", None)
    assert calls == []


def test_oracle_without_a_solution_does_not_fail_the_mission(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = plan(HEAD + mission("answer", verify=VERIFY), out, tmp_path, chain="oracle")
    conduct(made, out)
    ended = attempts(made, out)["answer.1"].result
    assert ended is not None
    assert (ended.verified, ended.infra) == ("none", "RUNTIME_STRATEGY_UNAVAILABLE")
