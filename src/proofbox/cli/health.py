"""The health of strategies as a table of 80 columns: for `doctor`, `runtime list` and `campaign status`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from proofbox.agents.health.counters import Latency, StrategyHealth
from proofbox.agents.health.recommendation import Recommendation
from proofbox.cli.output import columns
from proofbox.core.text import printable

WIDTH = 80


def health_table(found: Sequence[StrategyHealth]) -> str:
    """Return the counters of the strategies that were used, and their failures by code; empty if none was used."""
    used = [each for each in found if each.attempts or each.problem]
    if not used:
        return ""
    rows = [["STRATEGY", "ATTEMPTS", "LOST", "RELIABLE", "RETRIES", "RESTARTS", "START", "TURN"]]
    notes = []
    for each in used:
        reliability = "-" if each.reliability is None else f"{each.reliability * 100:.1f} %"
        counts = [str(each.attempt_retries + each.model_retries), str(each.restarts)]
        times = [_time(each.start_ms), _time(each.turn_ms)]
        rows.append([each.strategy, str(each.attempts), str(sum(each.infra.values())), reliability, *counts, *times])
        if each.infra:
            codes = ", ".join(f"{code} {count}" for code, count in each.infra.items())
            notes.append(f"{each.strategy}: lost to {codes}")
        if each.problem:
            notes.append(f"{each.strategy}: {each.problem}")
    return "\n".join([columns(rows), *map(wrapped, notes)])


def recommendation_line(strategy: str, found: Recommendation) -> str:
    """Return whether a strategy is recommended here, and why or why not."""
    verdict = "recommended here" if found.recommended else "not recommended here"
    return wrapped(f"{strategy}: {verdict}: {'; '.join(found.reasons)}")


def wrapped(text: str) -> str:
    """Return a note in lines of 80 columns. Words that are longer, such as paths, stay whole."""
    return printable(textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def _time(found: Latency | None) -> str:
    if found is None:
        return "-"
    return f"{found.median:.0f} ms" if found.median < 10_000 else f"{found.median / 1000:.0f} s"
