"""Confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from proofbox.lab.statistics.functions import bisect, deviation, normal_quantile, t_quantile

Interval = tuple[float, float]


def wilson(passed: float, n: float, level: float = 0.95) -> Interval:
    """Return Wilson's score interval for a proportion.

    `n` may be an effective sample size, so neither number has to be whole. No trials give the interval from 0 to 1.
    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    if n < 0 or not 0 <= passed <= n:
        raise ValueError(f"passed must be between 0 and n, not {passed} of {n}")
    z = z_value(level)
    if n == 0:
        return 0.0, 1.0
    p = passed / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (0.0 if passed == 0 else centre - half), (1.0 if passed == n else centre + half)


def tango(first_only: float, second_only: float, n: int, level: float = 0.95) -> Interval:
    """Return Tango's score interval for the difference of two paired proportions.

    `first_only` and `second_only` count the pairs in which only the first or only the second passed; `n` counts all.
    Pairs that differ in part may count as fractions.
    T. Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample design",
    Statistics in Medicine 17 (1998).
    """
    if min(first_only, second_only) < 0 or first_only + second_only > n or n < 1:
        raise ValueError(f"{first_only} and {second_only} discordant pairs do not fit into {n} pairs")
    z = z_value(level)

    def score(difference: float) -> float:
        a = 2 * n
        b = (2 * n - first_only + second_only) * difference - first_only - second_only
        c = -second_only * difference * (1 - difference)
        p = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)  # of the pairs in which only the second passes
        variance = n * (2 * p + difference * (1 - difference))
        gap = first_only - second_only - n * difference
        return gap / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, gap) if gap else 0.0

    low = -1.0 if second_only == n else bisect(lambda d: score(d) - z, -1.0, 1.0)
    high = 1.0 if first_only == n else bisect(lambda d: score(d) + z, -1.0, 1.0)
    return low, high


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return Student's interval for the mean. It needs at least two values.

    Student, "The probable error of a mean", Biometrika 6 (1908).
    """
    if len(values) < 2:
        raise ValueError("an interval for a mean needs at least two values")
    mean, error = statistics.fmean(values), deviation(values) / math.sqrt(len(values))
    half = t_quantile(1 - (1 - level) / 2, len(values) - 1) * error
    return mean - half, mean + half


def z_value(level: float) -> float:
    """Return the normal quantile of a two-sided interval at `level`."""
    if not 0 < level < 1:
        raise ValueError(f"a confidence level must be between 0 and 1, not {level}")
    return normal_quantile(1 - (1 - level) / 2)
