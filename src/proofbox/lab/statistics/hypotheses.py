"""Tests of paired differences, and the correction for making several."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

import msgspec

from proofbox.lab.statistics.functions import binomial_cdf

MAX_EXACT_SUMS: Final = 100_000  # distinct sums that the exact test keeps; beyond that it samples
SAMPLES: Final = 20_000  # sampled sign patterns: the standard error of p = 0.05 is 0.0015


class SignFlip(msgspec.Struct, frozen=True):
    """The result of a sign-flip test."""

    p: float
    exact: bool


def mcnemar(first_only: int, second_only: int) -> float:
    """Return the two-sided p-value of the exact McNemar test.

    Q. McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12 (1947); the exact form is a binomial test of the discordant pairs.
    """
    n = first_only + second_only
    return min(1.0, 2 * binomial_cdf(min(first_only, second_only), n, 0.5)) if n else 1.0


def sign_flip(differences: Sequence[float | Fraction], *, seed: int = 0) -> SignFlip:
    """Test whether paired differences are symmetric around 0, by flipping their signs.

    The test is exact as long as the sums of all sign patterns take few enough values, as those of pass rates do.
    Otherwise it samples, and counts the observed pattern among the samples so that p is never 0.
    R. A. Fisher, The Design of Experiments (1935), section 21; B. Phipson and G. K. Smyth, "Permutation p-values should
    never be zero", SAGMB 9 (2010).
    """
    exact = [Fraction(value) for value in differences]
    scale = math.lcm(*(value.denominator for value in exact))
    whole = [int(value * scale) for value in exact]
    sizes = [abs(value) for value in whole if value]
    observed = abs(sum(whole))
    ways = {0: 1}  # the number of sign patterns by their sum
    for size in sizes:
        grown: dict[int, int] = {}
        for total, count in ways.items():
            grown[total + size] = grown.get(total + size, 0) + count
            grown[total - size] = grown.get(total - size, 0) + count
        if len(grown) > MAX_EXACT_SUMS:
            return SignFlip(p=_sampled(sizes, observed, seed), exact=False)
        ways = grown
    extreme = sum(count for total, count in ways.items() if abs(total) >= observed)
    return SignFlip(p=float(Fraction(extreme, 2 ** len(sizes))), exact=True)


def _sampled(sizes: Sequence[int], observed: int, seed: int) -> float:
    generator = random.Random(seed)  # noqa: S311 -- a reproducible sample, not a secret
    extreme = 0
    for _ in range(SAMPLES):
        bits = generator.getrandbits(len(sizes))
        total = sum(size if bits >> i & 1 else -size for i, size in enumerate(sizes))
        extreme += int(abs(total) >= observed)
    return (extreme + 1) / (SAMPLES + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for testing all of them, in the order given.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979).
    """
    for p in p_values:
        if not 0 <= p <= 1:  # true for NaN as well
            raise ValueError(f"a p-value must be between 0 and 1, not {p}")
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
