"""Distributions of tokens, time and cost."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from proofbox.lab.statistics.functions import binomial_cdf


class Distribution(msgspec.Struct, frozen=True):
    """A sample described by its order statistics."""

    n: int
    """The number of values."""
    total: float
    """Their sum."""
    median: float
    """The middle value, or the mean of the two middle ones."""
    low: float | None
    """The lower end of the 95 % interval of the median; null: fewer than six values."""
    high: float | None
    """The upper end of the 95 % interval of the median; null: fewer than six values."""
    p10: float
    """The 10th percentile."""
    p90: float
    """The 90th percentile."""
    smallest: float
    """The smallest value."""
    largest: float
    """The largest value."""


def describe(values: Sequence[float], level: float = 0.95) -> Distribution | None:
    """Describe a sample; None if it is empty.

    The interval of the median consists of two order statistics and assumes nothing about the distribution: W. J.
    Conover, Practical Nonparametric Statistics (1999), section 3.2. At 95 % it needs six values.
    """
    if not values:
        return None
    ordered = sorted(values)
    n = len(ordered)
    # The largest number of values cut off on each side that keeps the coverage.
    rank = bisect_right(range(n // 2), 1 - level, key=lambda cut: 2 * binomial_cdf(cut, n, 0.5))
    deciles = statistics.quantiles(ordered, n=10, method="inclusive") if n > 1 else ordered * 9
    return Distribution(
        n=n,
        total=sum(ordered),
        median=statistics.median(ordered),
        low=ordered[rank - 1] if rank else None,
        high=ordered[n - rank] if rank else None,
        p10=deciles[0],
        p90=deciles[8],
        smallest=ordered[0],
        largest=ordered[-1],
    )
