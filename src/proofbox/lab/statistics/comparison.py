"""Paired comparison of flows on the same missions, and its verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from itertools import combinations
from typing import Final

import msgspec

from proofbox.core.plurals import counted
from proofbox.lab.statistics.functions import deviation
from proofbox.lab.statistics.hypotheses import holm, mcnemar, sign_flip
from proofbox.lab.statistics.intervals import Interval, t_interval, tango, z_value
from proofbox.lab.statistics.planning import missions_needed, replicates_needed

MissionScores = Mapping[str, tuple[int, int]]  # by mission id: attempts passed, attempts scored

_EQUIVALENCE_LEVEL: Final = 0.90  # two one-sided tests at 5 %: D. J. Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987)
_MANY: Final = 20  # with fewer missions that differ, Student's interval is too narrow for skewed differences


class ComparisonVerdict(StrEnum):
    """The outcome of comparing the first flow with the second."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    UNDERPOWERED = "underpowered"


class Comparison(msgspec.Struct, frozen=True):
    """Two flows compared on the missions that both have scores for."""

    first: str
    """The first flow."""
    second: str
    """The second flow."""
    missions: int
    """The number of missions that both have scores for."""
    dropped: int
    """The number of missions that only one of them has scores for."""
    difference: float
    """The first pass rate minus the second, as the mean over missions."""
    low: float
    """The lower end of the 95 % interval of the difference."""
    high: float
    """The upper end of the 95 % interval of the difference."""
    narrow_low: float
    """The lower end of the 90 % interval, made cautious, which decides on `equivalent`."""
    narrow_high: float
    """The upper end of that interval."""
    p: float
    """The p-value of this comparison alone."""
    corrected_p: float
    """The p-value after Holm's correction over all comparisons."""
    test: str
    """The test that the p-value comes from."""
    interval: str
    """The kind of the 95 % interval."""
    verdict: ComparisonVerdict
    """`better` or `worse`: how the first flow compares with the second. `equivalent`: they differ by less than the
    margin. `underpowered`: neither could be shown."""
    reason: str
    missions_needed: int | None = None
    """Missions that would suffice for a verdict; null unless underpowered."""
    replicates_needed: int | None = None
    """Replicates that would suffice with these missions; null unless underpowered, or if only more missions would."""


def missions_for_verdict(verdict: ComparisonVerdict, replicates: int, margin: float, alpha: float) -> int:
    """Return the fewest missions with which a comparison can have this verdict at all.

    `alpha` is for one comparison: divided by their number, because Holm's correction multiplies the smallest of all
    p-values by it, and corrects no other p-value to a smaller one.
    """
    if verdict is ComparisonVerdict.UNDERPOWERED:
        return 0
    if verdict is not ComparisonVerdict.EQUIVALENT:
        return math.ceil(1 - math.log2(alpha))  # the smallest p-value of n missions is 2 ** (1 - n)
    z = z_value(_EQUIVALENCE_LEVEL)  # Tango's interval without any difference has half-width z² / (n + z²)
    needed = math.floor(z * z * (1 - margin) / margin) + 1
    return min(needed, _MANY) if replicates > 1 else needed


def compare(
    first: str, a: MissionScores, second: str, b: MissionScores, *, margin: float, alpha: float = 0.05, seed: int = 0
) -> Comparison:
    """Compare two flows on the same missions, as `compare_all` does."""
    return compare_all({first: a, second: b}, margin=margin, alpha=alpha, seed=seed)[0]


def compare_all(
    flows: Mapping[str, MissionScores],
    *,
    margin: float,
    alpha: float = 0.05,
    seed: int = 0,
    against: str | None = None,
) -> list[Comparison]:
    """Compare each pair of flows, or each flow with the one named by `against`, with Holm's correction over all pairs.

    One scored attempt of each mission gives the exact McNemar test and Tango's interval; several give a sign-flip test
    of the mission means and Student's interval. The verdict is `equivalent` if the 90 % interval lies within the
    margin; else `better` or `worse` if the corrected p-value is below `alpha`; else `underpowered`.
    `mcnemar`, `tango`, `sign_flip`, `t_interval` and `holm` name their references. `equivalent` is the result of two
    one-sided tests: D. J. Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987).
    """
    pairs = [(name, against) for name in flows if name != against] if against else list(combinations(flows, 2))
    named = [((first, flows[first]), (second, flows[second])) for first, second in pairs]
    return compare_pairs(named, margin=margin, alpha=alpha, seed=seed)


def compare_pairs(
    pairs: Sequence[tuple[tuple[str, MissionScores], tuple[str, MissionScores]]],
    *,
    margin: float,
    alpha: float = 0.05,
    seed: int = 0,
) -> list[Comparison]:
    """Compare the flows of each pair, given by name and scores, as `compare_all` does."""
    if not 0 < margin < 1:
        raise ValueError(f"the margin must be between 0 and 1, not {margin}")
    measured = [_Measured(a, b, seed) for (_, a), (_, b) in pairs]
    corrected = holm([one.p for one in measured])
    return [
        _evaluate(first, second, one, p, margin, alpha, len(pairs))
        for ((first, _), (second, _)), one, p in zip(pairs, measured, corrected, strict=True)
    ]


class _Measured:
    """The test and the intervals of one pair of flows."""

    def __init__(self, a: MissionScores, b: MissionScores, seed: int) -> None:
        shared = [mission for mission in a if a[mission][1] and b.get(mission, (0, 0))[1]]
        self.dropped = len({m for s in (a, b) for m, (_, scored) in s.items() if scored}) - len(shared)
        self.scores = [(a[mission], b[mission]) for mission in shared]
        self.missions = len(shared)
        exact = [Fraction(*x) - Fraction(*y) for x, y in self.scores]
        self.differences = [float(value) for value in exact]
        self.mean = statistics.fmean(self.differences) if shared else 0.0
        self.deviation = deviation(self.differences) if self.missions > 1 else 1.0
        self.single = all(x[1] == y[1] == 1 for x, y in self.scores)
        self.smallest_p = min(1.0, 2.0 ** (1 - self.missions))
        if self.single:
            self.test, self.interval_name = "exact McNemar", "Tango"
            self.p = mcnemar(sum(d > 0 for d in self.differences), sum(d < 0 for d in self.differences))
        else:
            flips = sign_flip(exact, seed=seed)
            self.test = "sign flips of mission means" + ("" if flips.exact else ", sampled")
            self.interval_name = (
                "Tango, on mission means" if self.deviation == 0 or self.missions == 1 else "Student's t"
            )
            self.p = flips.p

    def interval(self, level: float) -> Interval:
        """Return the interval of the difference.

        Differences that are all alike have no spread, and Student's interval would have no width: Tango's interval for
        that many missions takes its place.
        """
        if self.interval_name != "Student's t":
            return self._tango(level)
        low, high = t_interval(self.differences, level)
        return max(low, -1.0), min(high, 1.0)  # a difference of rates cannot be larger

    def conservative_interval(self, level: float) -> Interval:
        """Return an interval that also holds if the flows differ much on few missions.

        If few missions show a difference, Student's interval is too narrow: a mission of the kind that matters may not
        be among them. Tango's interval assumes the worst, that each mission shows either no difference or a whole one.
        """
        low, high = self.interval(level)
        if sum(d != 0 for d in self.differences) >= _MANY:
            return low, high
        cautious = self._tango(level)
        return min(low, cautious[0]), max(high, cautious[1])

    def _tango(self, level: float) -> Interval:
        if not self.missions:
            return -1.0, 1.0
        gains, losses = (math.fsum(max(sign * d, 0.0) for d in self.differences) for sign in (1, -1))
        return tango(gains, losses, self.missions, level)


def _evaluate(
    first: str, second: str, one: _Measured, corrected: float, margin: float, alpha: float, pairs: int
) -> Comparison:
    low, high = one.interval(0.95)
    narrow_low, narrow_high = one.conservative_interval(_EQUIVALENCE_LEVEL)
    significant = corrected < alpha
    direction = ComparisonVerdict.BETTER if one.mean > 0 else ComparisonVerdict.WORSE
    within = -margin < narrow_low and narrow_high < margin
    needed: int | None = None
    replicates: int | None = None
    points = f"{margin * 100:g} points"
    if within:
        verdict = ComparisonVerdict.EQUIVALENT
        reason = f"the 90 % interval lies within {points}"
        if significant:
            reason += f"; the difference is nevertheless significant ({first} is {direction})"
        elif narrow_low > 0 or narrow_high < 0:
            reason += "; it excludes 0"
    elif significant:
        verdict, reason = direction, f"corrected p = {corrected:.2g} is below {alpha:g}"
    else:
        verdict = ComparisonVerdict.UNDERPOWERED
        strict = alpha / pairs
        z = z_value(_EQUIVALENCE_LEVEL)  # Tango's interval without any difference has half-width z² / (n + z²)
        needed = max(
            missions_needed(margin, one.deviation, alpha=strict), math.ceil(z * z * (1 - margin) / margin + 1e-9)
        )
        needed = max(needed, one.missions + 1)
        replicates = _replicates(one, margin, strict)
        if one.smallest_p >= strict:
            few = counted(one.missions, "mission")
            reason = f"{few} can never be significant: the smallest p-value is {one.smallest_p:.2g}"
            if pairs > 1:
                reason += f", and {min(1.0, pairs * one.smallest_p):.2g} after the correction"
        else:
            reason = f"the difference is not significant, and may be larger than {points}"
    return Comparison(
        first=first,
        second=second,
        missions=one.missions,
        dropped=one.dropped,
        difference=one.mean,
        low=low,
        high=high,
        narrow_low=narrow_low,
        narrow_high=narrow_high,
        p=one.p,
        corrected_p=corrected,
        test=one.test,
        interval=one.interval_name,
        verdict=verdict,
        reason=reason,
        missions_needed=needed,
        replicates_needed=replicates,
    )


def _replicates(one: _Measured, margin: float, alpha: float) -> int | None:
    """Return the replicates that would suffice with these missions; None if only more missions can."""
    if one.missions < 2 or one.smallest_p >= alpha:
        return None
    scored = [x for pair in one.scores for x in pair]
    rate = sum(passed for passed, _ in scored) / sum(n for _, n in scored)
    within = statistics.fmean(
        p / n * (1 - p / n) / max(n - 1, 1) + q / m * (1 - q / m) / max(m - 1, 1) for (p, n), (q, m) in one.scores
    )
    between = math.sqrt(max(0.0, one.deviation**2 - within))
    needed = replicates_needed(margin, one.missions, rate=rate, between=between, alpha=alpha)
    return needed if needed is not None and needed > max(n for _, n in scored) else None
