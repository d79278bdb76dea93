"""Pass rates of one flow over missions and replicates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import msgspec

from proofbox.lab.statistics.intervals import wilson

Counts = Sequence[tuple[int, int]]  # for each mission: attempts passed, attempts scored
Estimate = Callable[[int, int], float]


class PassRate(msgspec.Struct, frozen=True):
    """A pass rate with its interval."""

    passed: int
    """The number of attempts that passed."""
    scored: int
    """The number of attempts that passed or failed."""
    missions: int
    """The number of missions with a score."""
    rate: float | None
    """The share of scored attempts that passed; null: no attempt was scored."""
    low: float
    """The lower end of Wilson's 95 % interval on the effective sample size."""
    high: float
    """The upper end of that interval."""
    design_effect: float
    """The variance between missions over that of independent attempts; 1: replicates count as much as missions."""
    effective_n: float
    """The number of scored attempts, divided by the design effect."""


class LossBounds(msgspec.Struct, frozen=True):
    """The lowest and highest rate that the attempts lost to infrastructure could have led to."""

    lost: int
    """The number of attempts without a score."""
    lowest: float
    """The rate if all of them had failed."""
    highest: float
    """The rate if all of them had passed."""


def pass_rate(counts: Counts, level: float = 0.95) -> PassRate:
    """Return the pass rate over all attempts, with Wilson's interval on the effective sample size.

    Replicates of one mission resemble each other, so `n` replicates say less than `n` missions. The sample size is
    divided by the design effect: the variance of the rate between missions (the ratio estimator) over that of
    independent attempts. It is at least 1, and at most what leaves one effective attempt per mission; that is also
    assumed if all attempts passed or all failed, because then the data cannot show how alike replicates are.
    L. Kish, Survey Sampling (1965), sections 5.4 and 8.2; E. L. Korn and B. I. Graubard, Survey Methodology 24 (1998).
    """
    counts = [(passed, scored) for passed, scored in counts if scored]
    passed, scored, missions = sum(p for p, _ in counts), sum(n for _, n in counts), len(counts)
    if not scored:
        return PassRate(0, 0, 0, None, 0.0, 1.0, 1.0, 0.0)
    rate = passed / scored
    effect = worst = scored / missions
    if missions > 1 and 0 < passed < scored:
        squares = sum((p - rate * n) ** 2 for p, n in counts)
        variance = missions / (missions - 1) * squares / scored**2
        effect = min(max(1.0, variance * scored / (rate * (1 - rate))), max(worst, 1.0))
    effective = scored / effect
    low, high = wilson(rate * effective, effective, level)
    return PassRate(passed, scored, missions, rate, low, high, effect, effective)


def loss_bounds(passed: int, scored: int, lost: int) -> LossBounds:
    """Return the rates if every lost attempt had failed, and if every one had passed."""
    total = scored + lost
    return LossBounds(lost, passed / total, (passed + lost) / total) if total else LossBounds(0, 0.0, 1.0)


def pass_at_k(counts: Counts, k: int) -> float | None:
    """Return the estimated probability that at least one of `k` attempts at a mission passes.

    The mean over the missions with at least `k` scored attempts; None without any. The estimate is unbiased: M. Chen et
    al., "Evaluating large language models trained on code" (2021), equation 1.
    """
    return _mean_over_missions(counts, k, lambda passed, n: 1 - math.comb(n - passed, k) / math.comb(n, k))


def pass_hat_k(counts: Counts, k: int) -> float | None:
    """Return the estimated probability that all of `k` attempts at a mission pass (pass^k).

    S. Yao et al., "τ-bench: a benchmark for tool-agent-user interaction in real-world domains" (2024), section 4.
    """
    return _mean_over_missions(counts, k, lambda passed, n: math.comb(passed, k) / math.comb(n, k))


def flaky(counts: Counts) -> list[int]:
    """Return the positions of the missions that some attempts passed and others failed."""
    return [i for i, (passed, scored) in enumerate(counts) if 0 < passed < scored]


def _mean_over_missions(counts: Counts, k: int, estimate: Estimate) -> float | None:
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    values = [estimate(passed, scored) for passed, scored in counts if scored >= k]
    return statistics.fmean(values) if values else None
