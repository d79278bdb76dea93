"""Distributions of tokens, time and cost."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from proofbox.lab.statistics.functions import binomial_cdf
from proofbox.lab.statistics.rates import effective_size


class Distribution(msgspec.Struct, frozen=True):
    """A sample described by its order statistics."""

    n: int
    """The number of values."""
    total: float
    """Their sum."""
    median: float
    """The middle value, or the mean of the two middle ones."""
    low: float | None
    """The lower end of the 95 % interval of the median; null: the values are worth fewer than six
    independent ones."""
    high: float | None
    """The upper end of the 95 % interval of the median; null: the values are worth fewer than six
    independent ones."""
    p10: float
    """The 10th percentile."""
    p90: float
    """The 90th percentile."""
    smallest: float
    """The smallest value."""
    largest: float
    """The largest value."""


def describe(
    values: Sequence[float], level: float = 0.95, *, missions: Sequence[str] | None = None
) -> Distribution | None:
    """Describe a sample; None if it is empty.

    The interval of the median consists of two order statistics and assumes nothing about the distribution: W. J.
    Conover, Practical Nonparametric Statistics (1999), section 3.2. At 95 % it needs six values.

    `missions` names the mission of each value. Values of one mission resemble each other, so the ranks are those for
    the effective sample size of the share of values up to the median: R. S. Woodruff, "Confidence intervals for medians
    and other position measures", JASA 47 (1952), with `effective_size`.
    """
    if any(map(math.isnan, values)):
        raise ValueError("a distribution of values that are not numbers is not defined")
    if not values:
        return None
    ordered = sorted(values)
    n, median = len(ordered), statistics.median(ordered)
    rank = _rank(n if missions is None else _effective(values, missions, median, level), n, level)
    deciles = statistics.quantiles(ordered, n=10, method="inclusive") if n > 1 else ordered * 9
    return Distribution(
        n=n,
        total=sum(ordered),
        median=median,
        low=ordered[rank - 1] if rank else None,
        high=ordered[n - rank] if rank else None,
        p10=deciles[0],
        p90=deciles[8],
        smallest=ordered[0],
        largest=ordered[-1],
    )


def _effective(values: Sequence[float], missions: Sequence[str], median: float, level: float) -> int:
    """Return the effective number of values, for the share of them that are at most the median."""
    below: defaultdict[str, list[bool]] = defaultdict(list)
    for value, mission in zip(values, missions, strict=True):
        below[mission].append(value <= median)
    return math.floor(effective_size([(sum(each), len(each)) for each in below.values()], level)[1] + 1e-9)


def _rank(effective: int, n: int, level: float) -> int:
    """Return the rank of the lower end of the median's interval, from either end; 0: there are too few values."""
    # The largest number of values cut off on each side that keeps the coverage.
    cut = bisect_right(range(effective // 2), 1 - level, key=lambda cut: 2 * binomial_cdf(cut, effective, 0.5))
    return cut * n // effective
