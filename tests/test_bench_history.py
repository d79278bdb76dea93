"""The history of benchmark figures shows what became worse, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import _history


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "history.jsonl"
    monkeypatch.setenv(_history.FILE, str(file))
    monkeypatch.setattr(sys, "argv", ["benchmarks/exec.py"])
    return file


def add_runs(monkeypatch: pytest.MonkeyPatch, *values: tuple[float, float]) -> None:
    """Record a ratio and a rate in each of several runs."""
    for number, (ratio, rate) in enumerate(values):
        monkeypatch.setenv(_history.RUN, f"night {number}")
        _history.at_most("exec, to subprocess.run", ratio, 1.5)
        _history.at_least("attempts a second", rate, 25)


def test_figures_worse_than_the_median_are_named(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_runs(monkeypatch, (1.0, 30), (1.1, 32), (9.0, 31), (1.0, 30), (1.3, 24))
    ratio, rate = _history.regressions(_history.read(history))
    assert ratio == "exec: exec, to subprocess.run: 1.3, was 1.05 (median of 4 runs)"
    assert rate == "exec: attempts a second: 24, was 30.5 (median of 4 runs)"
    monkeypatch.setattr(sys, "argv", ["_history.py", str(history)])
    assert _history.main() == 1


@pytest.mark.parametrize("last", [(1.14, 27.0), (0.5, 90.0)])
def test_figures_within_the_tolerance_or_better_are_not_named(
    history: Path, monkeypatch: pytest.MonkeyPatch, last: tuple[float, float]
) -> None:
    add_runs(monkeypatch, (1.0, 30), (1.0, 30), (1.0, 30), last)
    assert _history.regressions(_history.read(history)) == []
    monkeypatch.setattr(sys, "argv", ["_history.py", str(history)])
    assert _history.main() == 0


def test_few_runs_and_torn_lines_decide_nothing(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_runs(monkeypatch, (1.0, 30), (1.0, 30), (5.0, 1))
    with history.open("a") as file:
        file.write('{"run": "night 2", "na')
    assert _history.regressions(_history.read(history)) == []


def test_thresholds_decide_without_a_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_history.FILE, raising=False)
    assert (_history.at_most("x", 1.5, 1.5), _history.at_most("x", 1.6, 1.5)) == (True, False)
    assert (_history.at_least("x", 25, 25), _history.at_least("x", 24.9, 25)) == (True, False)


def test_table_has_the_last_two_runs(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_runs(monkeypatch, (9.0, 9), (1.0, 30), (1.1, 31))
    assert _history.table(_history.read(history)).splitlines() == [
        "| benchmark | figure | run 1 | run 2 | goal |",
        "|---|---|---|---|---|",
        "| `exec` | exec, to subprocess.run | 1.00 | 1.10 | at most 1.5 |",
        "| `exec` | attempts a second | 30.00 | 31.00 | at least 25 |",
    ]
