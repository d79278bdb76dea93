"""Paired comparison of means, such as seconds or tokens, on the same missions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from proofbox.lab.statistics.hypotheses import holm, sign_flip
from proofbox.lab.statistics.intervals import t_interval

MissionMeans = Mapping[str, float]  # by mission id: the mean over its attempts


class MeanComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two means compared on the missions that both have values for."""

    missions: int
    """The number of missions that both have values for."""
    first: float
    """The first mean over these missions."""
    second: float
    """The second mean over these missions."""
    difference: float
    """The first mean minus the second."""
    low: float | None
    """The lower end of the 95 % interval of the difference (Student's t); null: fewer than two missions."""
    high: float | None
    """The upper end of that interval; null: fewer than two missions."""
    p: float
    """The p-value of this comparison alone, by sign flips of the differences."""
    corrected_p: float
    """The p-value after Holm's correction over all comparisons."""


def compare_means(pairs: Sequence[tuple[MissionMeans, MissionMeans]], *, seed: int = 0) -> list[MeanComparison | None]:
    """Compare the means of each pair, with Holm's correction over all of them; None without a shared mission.

    Missions are compared with themselves, so that hard missions do not hide a difference. The p-value comes from
    `sign_flip`, the interval from `t_interval` and the correction from `holm`; see their references.
    """
    shared = [[(a[mission], b[mission]) for mission in a if mission in b] for a, b in pairs]
    differences = [[x - y for x, y in values] for values in shared]
    p_values = [sign_flip(values, seed=seed).p for values in differences]
    known = [number for number, values in enumerate(shared) if values]
    corrected = dict(zip(known, holm([p_values[number] for number in known]), strict=True))
    return [
        _compared(values, differences[number], p_values[number], corrected[number]) if values else None
        for number, values in enumerate(shared)
    ]


def _compared(
    values: Sequence[tuple[float, float]], differences: Sequence[float], p: float, corrected: float
) -> MeanComparison:
    low, high = t_interval(differences) if len(differences) > 1 else (None, None)
    return MeanComparison(
        missions=len(values),
        first=statistics.fmean(x for x, _ in values),
        second=statistics.fmean(y for _, y in values),
        difference=statistics.fmean(differences),
        low=low,
        high=high,
        p=p,
        corrected_p=corrected,
    )
