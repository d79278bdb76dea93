"""What the attempts of a flow took and how hard they found it: means by mission, to compare campaigns with."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from proofbox.lab.attempt_metrics import AttemptMetrics
from proofbox.lab.campaign.prices import Price

Efforts = dict[str, dict[str, float]]  # by measure, then by mission: the mean over its scored attempts

REPEATED: Final = 3
"""Identical calls in succession that count as repeated: the second may be a retry, the third is a habit."""

_MEASURES: Final[Mapping[str, Callable[[AttemptMetrics], float | None]]] = {
    "seconds": lambda each: None if each.turn_ms is None else each.turn_ms / 1000,
    "tokens": lambda each: each.spent,
    "tool_calls": lambda each: each.tool_calls,
    "failed_calls": lambda each: None if each.tool_calls is None else sum(each.tool_failures.values()),
    "repeated_calls": lambda each: None if each.tool_calls is None else float(has_repeated(each)),
    "model_retries": lambda each: None if each.tool_calls is None else sum(each.retries.values()),
    "idle": lambda each: each.idle,
}
COST: Final = "cost"
DEAD_ENDS: Final = "dead_ends"
MEASURES: Final = (*_MEASURES, COST, DEAD_ENDS)
SHARES: Final = ("repeated_calls", "idle", DEAD_ENDS)
"""Measures that are shares: of attempts, or of a turn."""


def has_repeated(metrics: AttemptMetrics) -> bool:
    """Return whether an attempt made the same call too often in succession."""
    return metrics.no_progress.get("longest_run_of_identical_calls", 0) >= REPEATED


def efforts(scored: Iterable[tuple[str, bool, AttemptMetrics]], price: Price | None) -> Efforts:
    """Return the mean of each measure by mission. `scored` are attempts: their mission, whether it failed, figures.

    Unknown figures are left out of the mean. `dead_ends` is the share of attempts that failed after a failed call.
    """
    values: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for mission, failed, metrics in scored:
        found = {name: measure(metrics) for name, measure in _MEASURES.items()}
        found[COST] = None if price is None or metrics.usage is None else price.cost(metrics.usage)
        found[DEAD_ENDS] = None if metrics.tool_calls is None else float(failed and bool(metrics.last_call_failed))
        for name, value in found.items():
            if value is not None:
                values[name][mission].append(value)
    return {
        name: {mission: statistics.fmean(each) for mission, each in by_mission.items()}
        for name, by_mission in values.items()
    }
