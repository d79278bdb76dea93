"""The history of benchmark figures shows what became worse, and nothing else."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import _history

ROOT = Path(__file__).parents[1]


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
    _history.at_least("fork, 10 files, faster than cp -a", 5.25, 5, ours="1.0 ms", theirs="5.3 ms")
    assert _history.table(_history.read(history)).splitlines() == [
        "| benchmark | operation | compared with | ours | theirs | run 1 | run 2 | goal |",
        "|---|---|---|---|---|---|---|---|",
        "| `exec` | exec | subprocess.run |  |  | 1.00 | 1.10 | at most 1.5 |",
        "| `exec` | attempts a second |  |  |  | 30.00 | 31.00 | at least 25 |",
        "| `exec` | fork, 10 files | cp -a | 1.0 ms | 5.3 ms | not measured | 5.25 | at least 5 |",
    ]


def test_page_gets_the_table_and_keeps_its_text(history: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text(f"# Speed\n\n{_history.BEGIN}\nold\n{_history.END}\n\nMore.\n")
    add_runs(monkeypatch, (1.0, 30))
    monkeypatch.setattr(sys, "argv", ["_history.py", str(history), "--page", str(page)])
    for _ in range(2):
        assert _history.main() == 0
        table = _history.table(_history.read(history))
        assert page.read_text() == f"# Speed\n\n{_history.BEGIN}\n\n{table}\n\n{_history.END}\n\nMore.\n"


def test_page_without_a_place_for_the_figures_is_refused(history: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Speed\n")
    with pytest.raises(SystemExit, match="no place for the figures"):
        _history.write_page(page, [])
    assert page.read_text() == "# Speed\n"


def test_page_has_a_table_in_the_form_of_the_benchmarks() -> None:
    """Written by `_history.py --page`, from figures that benchmarks recorded."""
    figures = (ROOT / "docs/speed.md").read_text().partition(_history.BEGIN)[2].partition(_history.END)[0]
    *head, first = figures.strip().splitlines()[:3]
    runs = first.count("|") - _history.heading(0)[0].count("|")
    assert runs in (1, 2)
    assert head == _history.heading(runs)
    for row in figures.strip().splitlines()[2:]:
        bench, operation, *rest = [cell.strip() for cell in row.strip("|").split("|")]
        ratios, goal = rest[3:-1], rest[-1]
        assert (ROOT / f"benchmarks/{bench.strip('`')}.py").is_file(), row
        assert operation, row
        assert len(ratios) == runs, row
        assert all(re.fullmatch(r"[0-9]+\.[0-9]{2}|not measured", ratio) for ratio in ratios), row
        assert re.fullmatch(r"at (most|least) [0-9.]+", goal), row
