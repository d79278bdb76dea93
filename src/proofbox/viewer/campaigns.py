"""The plots of a campaign, drawn as SVG: rates with intervals, paired differences, cost against success.

A plot contains no styles: classes give its colours, so that it follows the page. Every number that a plot shows is
also in a table of the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from markupsafe import Markup

from proofbox.core.text import printable
from proofbox.evidence.bundle.paths import INDEX
from proofbox.lab.campaign.registration import FLOWS, MANIFEST
from proofbox.lab.reports.campaigns.results import CampaignReport
from proofbox.viewer.reading import tree_mark
from proofbox.viewer.runs import files_mark

WIDTH: Final = 640
_LABEL: Final = 170
_ROW: Final = 30


@dataclass(frozen=True, slots=True)
class Plots:
    rates: Markup
    differences: Markup | None
    cost: Markup | None


def campaign_mark(out: Path) -> object:
    """Return a value that changes when a run of a campaign does."""
    ledgers = sorted(out.glob(f"{FLOWS}/*/*.ledger"))
    places = [out / MANIFEST, *ledgers, *(Path(f"{each}-wal") for each in ledgers), *sorted(out.glob(f"*/{INDEX}"))]
    places += sorted(out.glob(f"{FLOWS}/*/*/{INDEX}"))
    return tuple(places), files_mark(*places)


def campaign_evidence_mark(out: Path) -> object:
    """Return a value that changes when any file of a committed run of a campaign does."""
    committed = sorted([*out.glob(f"*/{INDEX}"), *out.glob(f"{FLOWS}/*/*/{INDEX}")])
    return campaign_mark(out), tuple(tree_mark(index.parent) for index in committed)


def plots_of(report: CampaignReport) -> Plots:
    """Draw the plots of a campaign."""
    rates = [
        IntervalRow(flow.flow, flow.rate.rate, flow.rate.low, flow.rate.high, f"{flow.rate.passed}/{flow.rate.scored}")
        for flow in report.flows
    ]
    differences = [
        IntervalRow(f"{each.first} − {each.second}", each.difference, each.low, each.high, each.verdict)
        for each in report.comparisons
    ]
    in_tokens = all(flow.tokens is not None for flow in report.flows)
    spent = [
        (flow.flow, used.median, flow.rate.rate)
        for flow in report.flows
        if flow.rate.rate is not None and (used := flow.tokens if in_tokens else flow.seconds) is not None
    ]
    return Plots(
        rates=interval_plot(rates, 0.0, 1.0, "%", "Pass rate of each flow with its 95 % interval"),
        differences=interval_plot(differences, -1.0, 1.0, "points", "Difference of pass rates with its 95 % interval")
        if differences
        else None,
        cost=scatter_plot(spent, "tokens" if in_tokens else "seconds") if len(spent) > 1 else None,
    )


@dataclass(frozen=True, slots=True)
class IntervalRow:
    label: str
    value: float | None
    low: float
    high: float
    note: str


def interval_plot(rows: Sequence[IntervalRow], low: float, high: float, unit: str, title: str) -> Markup:
    """Draw one line for each row: a dot for the value, and a bar for its interval."""
    height = _ROW * len(rows) + 30
    return _svg(title, height, _intervals(rows, low, high, unit, height))


def _intervals(rows: Sequence[IntervalRow], low: float, high: float, unit: str, height: int) -> Iterator[Markup]:
    def x(value: float) -> float:
        share = (min(max(value, low), high) - low) / (high - low)
        return _LABEL + share * (WIDTH - _LABEL - 90)

    for part in range(5):
        value = low + (high - low) * part / 4
        kind = "axis zero" if value == 0 and low < 0 else "axis"
        yield Markup('<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="4" y2="{}"/>').format(
            kind, x(value), x(value), height - 22
        )
        label = f"{value * 100:.0f} {unit}".replace("-", "\N{MINUS SIGN}")
        yield Markup('<text class="tick" text-anchor="middle" x="{:.1f}" y="{}">{}</text>').format(
            x(value), height - 6, label
        )
    for number, row in enumerate(rows):
        y = _ROW * number + 20
        yield Markup('<text class="label" x="0" y="{}">{}</text>').format(y + 4, _short(row.label))
        if row.value is None:
            yield Markup('<text class="tick" x="{}" y="{}">no score</text>').format(_LABEL, y + 4)
            continue
        yield Markup('<line class="interval" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>').format(
            x(row.low), x(row.high), y, y
        )
        yield Markup('<circle class="point" cx="{:.1f}" cy="{}" r="5"/>').format(x(row.value), y)
        yield Markup('<text class="tick" x="{}" y="{}">{}</text>').format(WIDTH - 80, y + 4, row.note)


def scatter_plot(points: Sequence[tuple[str, float, float]], unit: str) -> Markup:
    """Draw success against cost: up and to the left is better."""
    height = 240
    most = max(cost for _, cost, _ in points) or 1.0
    right = WIDTH - 130
    parts: list[Markup] = []
    for part in range(5):
        level = 200 - part * 45
        parts.append(Markup('<line class="axis" x1="50" x2="{}" y1="{}" y2="{}"/>').format(WIDTH - 10, level, level))
        parts.append(Markup('<text class="tick" x="0" y="{}">{} %</text>').format(level + 4, part * 25))
    for label, cost, rate in points:
        x, y = 60 + cost / most * (right - 60), 200 - rate * 180
        parts.append(Markup('<circle class="point" cx="{:.1f}" cy="{:.1f}" r="6"/>').format(x, y))
        parts.append(Markup('<text class="label" x="{:.1f}" y="{:.1f}">{}</text>').format(x + 10, y + 4, _short(label)))
    ends = ((60, "0"), ((60 + right) // 2, f"median {unit} per attempt"))
    for x, text in (*ends, (right, f"{most:,.0f}" if most >= 10 else f"{most:.2g}")):
        parts.append(Markup('<text class="tick" text-anchor="middle" x="{}" y="230">{}</text>').format(x, text))
    return _svg(f"Pass rate against the median {unit} of an attempt", height, parts)


def _svg(title: str, height: int, parts: Iterator[Markup] | Sequence[Markup]) -> Markup:
    head = Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, height, title)
    return head + Markup("").join(parts) + Markup("</svg>")


def _short(label: str) -> str:
    shown = printable(label).replace("\n", " ")
    return shown if len(shown) <= 24 else shown[:23] + "…"
