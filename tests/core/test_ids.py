"""Ids: sorted by creation, unique, and safe as names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.core.clock import ManualClock
from proofbox.core.ids import MAX_PREFIX, IdSource, is_id


class Clock:
    """Returns the given milliseconds in turn, forward and back."""

    def __init__(self, milliseconds: Iterable[int]) -> None:
        self._times = iter(milliseconds)

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=next(self._times))

    def monotonic(self) -> float:
        raise AssertionError("ids don't need it")


@given(st.lists(st.integers(0, 5), min_size=2, max_size=30), st.randoms(use_true_random=False))
def test_ids_increase_even_if_the_clock_stops_or_goes_back(times: list[int], random: Random) -> None:
    source = IdSource(Clock(times), random.randbytes)
    made = [source.new_id("run") for _ in times]
    assert made == sorted(set(made))


def test_running_out_of_random_bits_keeps_the_order() -> None:
    source = IdSource(ManualClock(), lambda size: b"\xff" * size)
    made = [source.new_id("x") for _ in range(3)]
    assert made == sorted(set(made))
    assert all(is_id(one, "x") for one in made)


def test_time_is_the_leading_part() -> None:
    clock = ManualClock()
    source = IdSource(clock, lambda size: b"\xff" * size)
    early = source.new_id("a")
    clock.advance(0.001)
    assert early < IdSource(clock, bytes).new_id("a")


def test_two_sources_in_one_millisecond_do_not_collide() -> None:
    clock = ManualClock()
    one, other = IdSource(clock), IdSource(clock)
    assert not {one.new_id("x") for _ in range(1000)} & {other.new_id("x") for _ in range(1000)}


def test_eighty_bits_are_drawn() -> None:
    sizes: list[int] = []

    def draw(size: int) -> bytes:
        sizes.append(size)
        return os.urandom(size)

    IdSource(ManualClock(), draw).new_id("x")
    assert sizes == [10]


def test_a_forked_child_does_not_repeat_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter([b"\x01" * 10, b"\x01" * 9 + b"\x03"])
    source = IdSource(ManualClock(), lambda size: next(draws))
    source.new_id("x")
    parent_next = "x-" + _plus_one(source)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert source.new_id("x") != parent_next


def _plus_one(source: IdSource) -> str:
    twin = IdSource(ManualClock(), lambda size: b"\x01" * 10)
    twin.new_id("x")
    return twin.new_id("x").removeprefix("x-")


def test_threads_share_a_source() -> None:
    source = IdSource()
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(source.new_id, ["x"] * 2000))
    assert len(set(made)) == 2000


@pytest.mark.parametrize("prefix", ["a", "run", "attempt-2", "x" * MAX_PREFIX])
def test_ids_are_safe_names(prefix: str) -> None:
    made = IdSource().new_id(prefix)
    assert re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", made)
    assert is_id(made, prefix)


@pytest.mark.parametrize(
    "prefix", ["", "-a", "a-", "A", "a--b", "a_b", "a/b", "1a", "é", "x" * (MAX_PREFIX + 1), "a\n"]
)
def test_unsafe_prefixes_are_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        IdSource().new_id(prefix)


def test_other_strings_are_not_ids() -> None:
    made = IdSource().new_id("run")
    assert not is_id(made, "attempt")
    for wrong in (made[:-1], made + "0", made.upper(), made + "\n", "run-8" + made[5:], made[:-1] + "u", "run-", ""):
        assert not is_id(wrong, "run")
