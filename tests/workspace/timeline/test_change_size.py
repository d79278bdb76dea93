"""Tests of the size of a change, which decides between the branches of an exploration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proofbox.workspace.timeline import change_size
from proofbox.workspace.timeline.change_size import LineComparison, changed_lines
from proofbox.workspace.workspace import Workspace


def test_no_changed_file_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "project"
    place.mkdir()
    (place / "dashes").write_text("-- x\n" * 4 + "kept\n")
    (place / "binary").write_bytes(bytes(1000))
    (place / "moved").write_text("1\n2\n3\n")
    with Workspace.init(place) as workspace:

        def size_of(change: Callable[[], object]) -> int:
            before = workspace.snapshot().id
            change()
            return workspace.compare(before, workspace.snapshot().id, changed_lines)

        assert size_of(lambda: None) == 0
        assert size_of(lambda: (place / "dashes").write_text("kept\n" + "++ x\n" * 6)) == 4 + 6
        assert size_of(lambda: (place / "binary").write_bytes(bytes(3_000_000))) == 10 + 30_000
        assert size_of(lambda: (place / "long").write_text("x" * 9_999 + "\n")) == 100
        assert size_of(lambda: (place / "empty").touch()) == 1
        assert size_of(lambda: (place / "moved").rename(place / "there")) == 1
        assert size_of(lambda: (place / "there").chmod(0o755)) == 1
        assert size_of(lambda: (place / "link").symlink_to("there")) == 1
        assert size_of((place / "folder").mkdir) == 0
        assert size_of(lambda: (place / "folder/new").write_text("a\nb\n")) == 2
        (place / "equal").write_text("x\n" * 300)
        assert size_of(lambda: (place / "equal").write_text("x\n" * 10 + "y\n" + "x\n" * 289)) == 2
        monkeypatch.setattr(change_size, "MAX_COMPARED", 0)
        assert size_of(lambda: (place / "folder/new").write_text("a\nb\nc" + "c" * 100)) == 1 + 2


def weight(line: str) -> int:
    return 1 if len(line) < change_size.LONG_LINE else -(-len(line) // change_size.LINE_BYTES)


def fewest(one: list[str], other: list[str]) -> int:
    """Return the smallest number of changed lines, from the table of all pairs of beginnings."""
    row = [0]
    for line in other:
        row.append(row[-1] + weight(line))
    for line in one:
        above, row = row, [row[0] + weight(line)]
        for column, each in enumerate(other):
            change = min(above[column + 1] + weight(line), row[column] + weight(each))
            row.append(min(change, above[column]) if line == each else change)
    return row[-1]


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "", "d" * 1000, "e" * 1001, "f" * 2500]), max_size=12)


@given(LINES, LINES)
def test_count_is_the_smallest_possible(one: list[str], other: list[str]) -> None:
    assert LineComparison().changed_lines(one, other) == fewest(one, other)


@given(st.randoms(use_true_random=False), st.integers(150, 300), st.integers(1, 4))
@settings(max_examples=20)
def test_count_of_many_frequent_lines_is_the_smallest_possible(random: Random, size: int, kinds: int) -> None:
    one = [random.choice("abcd"[:kinds]) for _ in range(size)]
    other = one.copy()
    for _ in range(random.randrange(9)):
        place = random.randrange(len(other))
        other[place : place + random.randrange(3)] = random.choices("abcde", k=random.randrange(3))
    assert LineComparison().changed_lines(one, other) == fewest(one, other)


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [
        (["x"] * 300, ["x"] * 10 + ["y"] + ["x"] * 289, 2),
        (["a", *["x"] * 5000, "b"], ["c", *["x"] * 5000, "d"], 4),
        (["a", *["x", "y"] * 2500], [*["y", "x"] * 2500, "b"], 4),
        ([str(each) for each in range(5000)], [str(each) for each in range(5000, 0, -1)], 9998),
        ([str(each) for each in range(5000)], [f"new {each}" for each in range(5000)], 10_000),
        (["x" * 1_000_000, "a"], ["b", "x" * 1_000_000], 2),
    ],
)
def test_hostile_texts_are_compared_exactly_and_within_bounds(one: list[str], other: list[str], count: int) -> None:
    """Equal lines do not cause more comparisons than there are pairs of lines."""
    comparison = LineComparison()
    assert comparison.changed_lines(one, other) == count
    assert change_size.MAX_STEPS - comparison.steps <= 10_000**2


def test_count_beyond_the_bound_is_an_upper_bound() -> None:
    comparison = LineComparison(steps=100)
    one, other = ["same", "a", *["x"] * 10, "b", "same"], ["same", "c", *["x"] * 10, "d", "same"]
    assert (comparison.changed_lines(one, other), comparison.steps) == (4, 0)
    assert comparison.changed_lines(one, other) == 24
    assert comparison.changed_lines(["same", "a"], ["same", "b"]) == 2
