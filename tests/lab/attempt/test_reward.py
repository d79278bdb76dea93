"""Rewards written by a possibly hostile program: a valid number, or the reason why there is none."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proofbox.lab.attempt.reward import MAX_BYTES, read_reward


@pytest.mark.parametrize(
    ("text", "value", "passed"),
    [("1\n", 1.0, True), (" 1.0 ", 1.0, True), ("2", 2.0, True), ("0.999", 0.999, False), ("-1e3", -1000.0, False)],
)
def test_a_number_is_a_reward(tmp_path: Path, text: str, value: float, *, passed: bool) -> None:
    (tmp_path / "reward.txt").write_text(text)
    found = read_reward(tmp_path)
    assert (found.value, found.passed, found.problem) == (value, passed, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("reward.txt", text) for text in ("", "one", "1 1", "nan", "inf", "1,0", "\u0661", "9" * (MAX_BYTES + 1))),
        *(("reward.json", text) for text in ("", "1", "[1]", "{}", '{"a": true}', '{"a": "1"}', '{"a": null}')),
        *(("reward.json", text) for text in ('{"a": 1, "a": 0}', '{"a": NaN}', '{"a": {"b": 1}}', "{" * 5000)),
    ],
)
def test_non_number_is_not_a_reward(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    found = read_reward(tmp_path)
    assert (found.value, found.passed, found.problem) == (None, None, "reward_malformed")
    assert found.detail


def test_two_files_must_agree(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("1")
    (tmp_path / "reward.json").write_text('{"reward": 0, "other": 1}')
    assert read_reward(tmp_path).problem == "reward_malformed"
    (tmp_path / "reward.txt").write_text("0")
    assert read_reward(tmp_path).value == 0.0


def test_neither_links_nor_pipes_are_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("1")
    (tmp_path / "reward.txt").symlink_to("elsewhere")
    assert read_reward(tmp_path).problem == "reward_malformed"
    (tmp_path / "reward.txt").unlink()
    os.mkfifo(tmp_path / "reward.txt")
    assert read_reward(tmp_path).problem == "reward_malformed"
    (tmp_path / "reward.txt").unlink()
    (tmp_path / "reward.json").mkdir()
    assert read_reward(tmp_path).problem == "reward_malformed"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False) | st.booleans()))
def test_object_passes_only_by_its_numbers(tmp_path: Path, values: dict[str, float | bool]) -> None:
    (tmp_path / "reward.json").write_text(json.dumps(values))
    found = read_reward(tmp_path)
    numbers = [value for value in values.values() if not isinstance(value, bool)]
    if found.passed:
        assert len(numbers) == len(values) > 0
        assert values.get("reward", min(numbers, default=-math.inf)) >= 1
    else:
        assert found.problem or values.get("reward", min(numbers)) < 1
