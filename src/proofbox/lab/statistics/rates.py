"""Pass rates of one flow over missions and replicates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import msgspec

from proofbox.lab.statistics.functions import t_quantile
from proofbox.lab.statistics.intervals import wilson, z_value

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
    """The number of independent attempts that would say as much: scored attempts, divided by the design effect, and
    corrected for the number of missions that it is estimated from; at least the number of missions."""


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

    Replicates of one mission resemble each other, so `n` replicates say less than `n` missions: see `effective_size`.
    L. Kish, Survey Sampling (1965), sections 5.4 and 8.2.
    """
    counts = [(passed, scored) for passed, scored in counts if scored]
    passed, scored, missions = sum(p for p, _ in counts), sum(n for _, n in counts), len(counts)
    if not scored:
        return PassRate(0, 0, 0, None, 0.0, 1.0, 1.0, 0.0)
    rate = passed / scored
    effect, effective = effective_size(counts, level)
    low, high = wilson(rate * effective, effective, level)
    return PassRate(passed, scored, missions, rate, low, high, effect, effective)


def highest_lower_end(missions: int, replicates: int) -> float:
    """Return the highest lower end of the 95 % interval that a pass rate can have with this design.

    Not always that of attempts that all passed: a single failure shows how alike the replicates of a mission are.
    """
    passed, failed_once = (replicates, replicates), (replicates - 1, replicates)
    return max(pass_rate([last, *[passed] * (missions - 1)]).low for last in (passed, failed_once))


def missions_for_lower_end(low: float) -> int:
    """Return the missions with which the lower end of the 95 % interval reaches this value if all attempts pass.

    The lower end of Wilson's interval for n of n is n / (n + z²).
    """
    if not 0 <= low < 1:
        raise ValueError(f"a lower end must be at least 0 and below 1, not {low}")
    return math.ceil(z_value(0.95) ** 2 * low / (1 - low) + 1e-9)


def effective_size(counts: Counts, level: float = 0.95) -> tuple[float, float]:
    """Return the design effect of clusters of trials, and the effective sample size for an interval at `level`.

    `counts` are the clusters: successes and trials, at least one. The sample size is divided by the design effect, the
    variance between clusters (the ratio estimator) over that of independent trials. It is then multiplied by the
    squared ratio of Student's quantiles for all trials and for the clusters, because the design effect is only an
    estimate from this number of clusters. The design effect is at least 1, and the result at least one effective trial
    per cluster, the value for trials that are all alike. That is also assumed if all trials succeeded or all failed,
    because then the data cannot show how alike they are.
    E. L. Korn and B. I. Graubard, "Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data", Survey Methodology 24 (1998), section 2.
    """
    passed, n, clusters = sum(p for p, _ in counts), sum(n for _, n in counts), len(counts)
    rate = passed / n
    effect = worst = n / clusters
    if clusters > 1 and 0 < passed < n:
        squares = sum((p - rate * size) ** 2 for p, size in counts)
        variance = clusters / (clusters - 1) * squares / n**2
        effect = min(max(1.0, variance * n / (rate * (1 - rate))), worst)
    if clusters == 1 or clusters == n:
        return effect, n / effect
    at = 1 - (1 - level) / 2
    return effect, max(clusters, n / effect * (t_quantile(at, n - 1) / t_quantile(at, clusters - 1)) ** 2)


def loss_bounds(passed: int, scored: int, lost: int) -> LossBounds:
    """Return the rates if every lost attempt had failed, and if every one had passed.

    C. F. Manski, "Nonparametric bounds on treatment effects", American Economic Review 80 (1990): without assumptions
    about missing outcomes, only these bounds are known.
    """
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
    """Return the positions of the missions that some attempts passed and others failed.

    Q. Luo et al., "An empirical analysis of flaky tests", FSE (2014): the same code with both results.
    """
    return [i for i, (passed, scored) in enumerate(counts) if 0 < passed < scored]


def _mean_over_missions(counts: Counts, k: int, estimate: Estimate) -> float | None:
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    values = [estimate(passed, scored) for passed, scored in counts if scored >= k]
    return statistics.fmean(values) if values else None
