"""Simulations: intervals cover, and verdicts are wrong no more often than stated."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from proofbox.lab.statistics import ComparisonVerdict, MissionScores, compare_all, describe, pass_rate, wilson
from proofbox.lab.statistics.functions import binomial_cdf, incomplete_beta

Rounds = Callable[[int, int], int]


def test_wilson_covers_a_uniform_rate_at_least_94_percent_of_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    """The mean coverage over all rates is an integral that has a closed form; no sampling is needed."""
    lowest: tuple[float, int, float] = (1.0, 0, 0.0)
    for n in range(5, 201):
        ends = [wilson(k, n) for k in range(n + 1)]
        mean = sum(
            incomplete_beta(k + 1, n - k + 1, high) - incomplete_beta(k + 1, n - k + 1, low)
            for k, (low, high) in enumerate(ends)
        ) / (n + 1)
        assert mean >= 0.94, n
        for p in (0.01, 0.05, 0.1, 0.3, 0.5):
            covering = [k for k, (low, high) in enumerate(ends) if low <= p <= high]
            coverage = binomial_cdf(covering[-1], n, p) - binomial_cdf(covering[0] - 1, n, p)
            lowest = min(lowest, (coverage, n, p))
    with capsys.disabled():
        coverage, n, p = lowest
        print(f"\nlowest coverage of Wilson's 95 % interval on the grid: {coverage:.3f} (n = {n}, p = {p})")


@pytest.mark.parametrize("alike", [0.05, 0.2, 0.5, 0.8])
@pytest.mark.parametrize(("missions", "replicates"), [(5, 5), (10, 5), (30, 3), (100, 2)])
def test_the_interval_of_a_clustered_rate_covers(missions: int, replicates: int, alike: float, rounds: Rounds) -> None:
    """Over uniform rates; `alike` is the correlation of the replicates of one mission."""
    trials = rounds(60, 5_000)
    generator = random.Random(missions)
    covered = 0
    for _ in range(trials):
        centre, size = generator.uniform(1e-6, 1 - 1e-6), 1 / alike - 1
        rates = [generator.betavariate(centre * size, (1 - centre) * size) for _ in range(missions)]
        rate = pass_rate([(drawn(generator, p, replicates), replicates) for p in rates])
        covered += rate.low <= centre <= rate.high
    assert covered / trials >= 0.94 - tolerance(trials)


@pytest.mark.parametrize("between", [0.3, 1.0, 3.0])
@pytest.mark.parametrize(("missions", "replicates"), [(6, 5), (10, 5), (30, 3), (100, 2)])
def test_the_interval_of_a_clustered_median_covers(
    missions: int, replicates: int, between: float, rounds: Rounds
) -> None:
    """Tokens and seconds are skewed, and vary between missions (`between`) and between replicates of one."""
    trials = rounds(60, 5_000)
    generator = random.Random(missions)
    covered = 0
    for _ in range(trials):
        centres = {str(number): generator.gauss(0, between) for number in range(missions)}
        named = [(math.exp(generator.gauss(centres[m], 0.5)), m) for m in centres for _ in range(replicates)]
        found = describe([value for value, _ in named], missions=[mission for _, mission in named])
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.0 <= found.high
    assert covered / trials >= 0.94 - tolerance(trials)


@pytest.mark.parametrize(("missions", "replicates", "flows"), [(10, 5, 3), (20, 1, 2), (40, 2, 4)])
def test_equal_flows_are_called_different_at_most_alpha_of_the_time(
    missions: int, replicates: int, flows: int, rounds: Rounds
) -> None:
    trials = rounds(120, 20_000)
    generator = random.Random(missions * 100 + replicates)
    wrong = 0
    for _ in range(trials):
        rates = [generator.betavariate(0.8, 0.8) for _ in range(missions)]
        scores = {str(flow): scores_of(generator, rates, replicates) for flow in range(flows)}
        verdicts = {comparison.verdict for comparison in compare_all(scores, margin=0.05)}
        wrong += bool(verdicts & {ComparisonVerdict.BETTER, ComparisonVerdict.WORSE})
    assert wrong / trials <= 0.05 + tolerance(trials)


@pytest.mark.parametrize(
    ("missions", "replicates", "share"), [(30, 5, 0.1), (60, 1, 0.1), (60, 3, 0.05), (200, 2, 0.1)]
)
def test_flows_that_differ_by_the_margin_are_rarely_called_equivalent(
    missions: int, replicates: int, share: float, rounds: Rounds
) -> None:
    """The hardest case: the flows are alike on most missions, and one fails on a few."""
    trials = rounds(120, 20_000)
    generator = random.Random(missions)
    wrong = 0
    for _ in range(trials):
        rates = [generator.choice([0.0, 1.0]) for _ in range(missions)]
        # As often better on a mission as needed for a mean difference of `share`.
        broken = [1.0 if generator.random() < share else None for _ in rates]
        better = [1.0 if b is not None else p for p, b in zip(rates, broken, strict=True)]
        worse = [0.0 if b is not None else p for p, b in zip(rates, broken, strict=True)]
        scores = {"a": scores_of(generator, better, replicates), "b": scores_of(generator, worse, replicates)}
        wrong += compare_all(scores, margin=share)[0].verdict is ComparisonVerdict.EQUIVALENT
    assert wrong / trials <= 0.05 + tolerance(trials)


def test_a_large_difference_is_found(rounds: Rounds) -> None:
    trials = rounds(120, 20_000)
    generator = random.Random(3)
    found = 0
    for _ in range(trials):
        a = scores_of(generator, [0.9] * 20, 5)
        b = scores_of(generator, [0.5] * 20, 5)
        found += compare_all({"a": a, "b": b}, margin=0.05)[0].verdict is ComparisonVerdict.BETTER
    assert found / trials >= 0.99


def drawn(generator: random.Random, p: float, n: int) -> int:
    return sum(generator.random() < p for _ in range(n))


def scores_of(generator: random.Random, rates: list[float], replicates: int) -> MissionScores:
    return {str(i): (drawn(generator, p, replicates), replicates) for i, p in enumerate(rates)}


def tolerance(trials: int) -> float:
    """Three standard errors of a simulated share of 5 %."""
    return 3 * math.sqrt(0.05 * 0.95 / trials)
