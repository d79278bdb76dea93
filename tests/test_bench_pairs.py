"""The ratio of interleaved turns does not depend on drift or on single delays."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from _pairs import paired_ratio


def test_drift_of_both_programs_cancels_out() -> None:
    base = [1.0 + 0.1 * number for number in range(60)]
    assert paired_ratio([1.1 * time for time in base], base) == pytest.approx((1.1, 1.1, 1.1))


def test_single_delays_do_not_change_the_ratio() -> None:
    times, base = [1.2] * 60, [1.0] * 60
    times[3:15], base[30:42] = [50.0] * 12, [50.0] * 12
    assert paired_ratio(times, base) == pytest.approx((1.2, 1.2, 1.2))


def test_interval_contains_the_ratio_in_95_of_100_cases() -> None:
    chance = random.Random(1)  # noqa: S311 (a simulation)
    within = 0
    for _ in range(400):
        base = [chance.gauss(1.0, 0.1) for _ in range(60)]
        ratio = paired_ratio([1.1 * time * chance.choice((0.9, 0.95, 1.05, 1.1)) for time in base], base)
        within += ratio.low <= 1.1 <= ratio.high
    assert within / 400 == pytest.approx(0.95, abs=0.04)
