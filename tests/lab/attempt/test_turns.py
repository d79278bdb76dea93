"""Missions with several turns: each further prompt continues the thread, and each turn's files are verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, conduct, document, plan, toml

from proofbox.errors import SuiteInvalid
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.lab.attempt.reward import Reward, combine_rewards
from proofbox.lab.reports.validation import validate
from proofbox.lab.suite.reading import parse_suite

SHELL = {"process": {"command": ["/bin/sh", "-s"]}}
"""An agent whose prompts are commands."""


class Ran:
    def __init__(self, tmp_path: Path, prompt: str, verify: str, *then: dict[str, Any]) -> None:
        fields = {"id": "m", "prompt": prompt, "verify": {"commands": [verify]}, "then": list(then)}
        source = HEAD + "[[mission]]\n" + "".join(f"{name} = {toml(value)}\n" for name, value in fields.items())
        out = tmp_path / "out"
        made = plan(source, out, tmp_path, chain="process!", runtimes=SHELL, retries=0)
        run = conduct(made, out)
        assert validate(load_bundle(run), strict=True) == []
        [attempt] = attempts(made, out).values()
        assert attempt.result is not None
        self.result = attempt.result
        self.report = document(out, made, attempt, "attempt.report.json")
        self.verification = document(out, made, attempt, "attempt.json")["verification"]
        self.prompts = (run / attempt.path / "prompt.txt").read_text()


def turn(prompt: str, verify: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "verify": {"commands": [verify]}, **fields}


@pytest.mark.needs("bubblewrap")
def test_each_turn_is_verified_with_the_files_at_its_end(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "echo 1 > a.txt", "grep -qx 1 a.txt", turn("echo 2 > a.txt", "grep -qx 2 a.txt"))
    assert (ran.result.verified, ran.result.reason, ran.report["turns"]) == ("passed", "completed", 2)
    assert [each["passed"] for each in ran.verification["commands"]] == [True, True]
    assert ran.prompts == "echo 1 > a.txt\n\necho 2 > a.txt"


@pytest.mark.needs("bubblewrap")
def test_one_turn_that_does_not_pass_fails_the_mission(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "echo 1 > a.txt", "grep -qx 7 a.txt", turn("echo 7 > a.txt", "grep -qx 7 a.txt"))
    assert (ran.result.verified, ran.result.reason) == ("failed", "completed")
    assert [each["passed"] for each in ran.verification["commands"]] == [False, True]


@pytest.mark.needs("bubblewrap")
def test_turns_after_a_failed_one_do_not_run_and_do_not_pass(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "echo 1 > a.txt; exit 3", "grep -qx 1 a.txt", turn("echo 2 > a.txt", "true"))
    assert (ran.result.verified, ran.result.reason, ran.report["turns"]) == ("failed", "turn_failed", 1)
    assert [(each["passed"], each["why"]) for each in ran.verification["commands"]] == [
        (True, ""),
        (False, "the turn that it verifies did not begin"),
    ]


@pytest.mark.needs("bubblewrap")
def test_every_turn_has_its_own_timeout(tmp_path: Path) -> None:
    endless = turn("while :; do sleep 0.1; done", "true", timeout=1.0)
    ran = Ran(tmp_path, "echo 1 > a.txt", "grep -qx 1 a.txt", endless, turn("true", "true"))
    assert (ran.result.verified, ran.result.reason, ran.report["turns"]) == ("failed", "timed_out", 2)


@pytest.mark.parametrize(
    ("turns", "how", "value"),
    [
        ([(1.0, None), (1.0, None)], "mean", 1.0),
        ([(1.0, None), (0.5, None)], "mean", 0.75),
        ([(0.0, None), (1.0, None)], "final", 1.0),
        ([(0.4, 0.5), (1.0, None)], "final", 0.0),
        ([(0.5, 0.5), (1.0, None)], "final", 1.0),
        ([(1.0, None), (None, None)], "mean", 0.5),
        ([(1.0, None), (None, None)], "final", 0.0),
    ],
)
def test_rewards_are_combined(turns: list[tuple[float | None, float | None]], how: Any, value: float) -> None:
    given = [(None if reward is None else Reward(value=reward), least) for reward, least in turns]
    assert combine_rewards(given, how).value == value


def test_a_missing_reward_is_missing_in_the_result() -> None:
    missing = Reward(problem="reward_missing", detail="nothing was written")
    found = combine_rewards([(Reward(value=1.0), None), (missing, None)], "mean")
    assert (found.value, found.problem, found.detail) == (None, "reward_missing", "turn 2: nothing was written")


def test_turns_that_are_verified_differently_are_refused(tmp_path: Path) -> None:
    then = {"prompt": "x", "verify": {"commands": ["true"], "reward": "/r"}}
    source = f'[[mission]]\nid = "m"\nprompt = "x"\nverify = {{ commands = ["true"] }}\nthen = {toml([then])}\n'
    with pytest.raises(SuiteInvalid, match="some turns have commands"):
        parse_suite(HEAD + source, base=tmp_path)
