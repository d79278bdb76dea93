"""Compare the times of two programs that take turns.

The figure is the median, over all rounds, of one program's time divided by the other's in the same round.

- Changes during the measurement (the length of a conversation, the load of the machine, its clock frequency) affect
  both times of a round equally, so they cancel out. Quantiles of each program's times compare different rounds.
- Some turns are slow for the agent's own reasons: one in five turns of Claude Code takes a third longer, with or
  without proofbox. A median of ratios tolerates these turns, and those that something else delays. Its error is 0.6
  times that of a ratio of medians (resampling 40 rounds of Claude Code: 0.026 instead of 0.041).
- It is the overhead of a typical turn. A ratio of minima or lower quartiles misses what delays half of the turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple


class PairedRatio(NamedTuple):
    """How much longer one program takes than another: the median, and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} (95 %: {self.low:.2f} to {self.high:.2f})"


def paired_ratio(times: Sequence[float], base: Sequence[float]) -> PairedRatio:
    """Compare times with those of a base in the same rounds. The interval assumes no distribution."""
    ratios = sorted(time / other for time, other in zip(times, base, strict=True))
    cut = max(int(len(ratios) / 2 - 0.98 * len(ratios) ** 0.5), 0)  # normal approximation of the binomial distribution
    return PairedRatio(median(ratios), ratios[cut], ratios[len(ratios) - 1 - cut])
