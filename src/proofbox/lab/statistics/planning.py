"""How many missions and replicates a comparison needs.

All three functions describe a paired comparison of two flows. The difference on one mission varies with a standard
deviation between missions, and with that of its replicates: each of the two pass rates has variance p (1 - p) / r.
J. Cohen, Statistical Power Analysis for the Behavioral Sciences (1988), section 2.
"""

from __future__ import annotations

import math

from proofbox.lab.statistics.functions import normal_quantile


def detectable_difference(
    missions: int, replicates: int, *, rate: float = 0.5, between: float = 0.0, alpha: float = 0.05, power: float = 0.8
) -> float:
    """Return the smallest difference that the design detects with the given power (Cohen, section 2.4)."""
    if missions < 1 or replicates < 1:
        raise ValueError(f"a comparison needs missions and replicates, not {missions} and {replicates}")
    variance = between**2 + 2 * rate * (1 - rate) / replicates
    return min(1.0, _distance(alpha, power) * math.sqrt(variance / missions))


def missions_needed(difference: float, deviation: float, *, alpha: float = 0.05, power: float = 0.8) -> int:
    """Return the missions needed to detect a difference whose values per mission have this standard deviation.

    At least the number with which a sign-flip test can reach `alpha` at all, and with which no unseen kind of mission
    larger than the difference remains likely.
    """
    _require_positive(difference)
    reachable = math.ceil(1 - math.log2(alpha))
    return max(reachable, math.ceil((_distance(alpha, power) * deviation / difference) ** 2 - 1e-9))


def replicates_needed(
    difference: float,
    missions: int,
    *,
    rate: float = 0.5,
    between: float = 0.0,
    alpha: float = 0.05,
    power: float = 0.8,
) -> int | None:
    """Return the replicates of each mission needed to detect a difference; None if only more missions can.

    `detectable_difference`, solved for the replicates.
    """
    _require_positive(difference)
    left = missions * (difference / _distance(alpha, power)) ** 2 - between**2
    if left <= 0:
        return None
    return max(1, math.ceil(2 * rate * (1 - rate) / left - 1e-9))


def _require_positive(difference: float) -> None:
    if not difference > 0:
        raise ValueError(f"only a difference above 0 can be detected, not {difference}")


def _distance(alpha: float, power: float) -> float:
    return normal_quantile(1 - alpha / 2) + normal_quantile(power)
