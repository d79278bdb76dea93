"""The plots of a campaign, drawn as SVG: rates with intervals, paired differences, cost against success, failures.

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
from proofbox.lab.campaign.layout import FLOWS, MANIFEST
from proofbox.lab.reports.campaigns.results import CampaignReport, FlowReport
from proofbox.lab.reports.campaigns.text import Rows, effort_rows, friction_rows
from proofbox.viewer.reading import tree_mark
from proofbox.viewer.runs import files_mark

WIDTH: Final = 640
_LABEL: Final = 170
_LONGEST_LABEL: Final = 24
_ROW: Final = 30
_LINE: Final = 14
"""The height of a line of text."""
_LETTER: Final = 7.2
"""The width of a letter of a label, on average."""
_BUCKETS: Final = ("passed", "failed", "unverified", "infra")


@dataclass(frozen=True, slots=True)
class Plots:
    rates: Markup
    differences: Markup | None
    cost: Markup | None
    buckets: Markup
    tables: tuple[Rows, ...]
    """Figures without a plot, or those of one: each with its head."""


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
    unit, spent = _spent(report)
    return Plots(
        rates=interval_plot(rates, 0.0, 1.0, "%", "Pass rate of each flow with its 95 % interval"),
        differences=interval_plot(differences, -1.0, 1.0, "points", "Difference of pass rates with its 95 % interval")
        if differences
        else None,
        cost=scatter_plot(spent, unit) if len(spent) > 1 else None,
        buckets=_svg("How attempts ended, by flow", _ROW * len(report.flows) + _LINE, _bars(report.flows)),
        tables=tuple([_head(rows[0]), *rows[1:]] for rows in (effort_rows(report), friction_rows(report)) if rows),
    )


def _head(names: Sequence[str]) -> list[str]:
    """Return the head of a table in the case of a page. A unit stays as it is."""
    words = [name.partition(" (") for name in names]
    return [name.capitalize() + bracket + unit for name, bracket, unit in words]


def _spent(report: CampaignReport) -> tuple[str, list[tuple[str, float, float]]]:
    """Return what the flows with a score spent, and its unit: cost if it is known for all, else tokens or time."""
    scored = [(flow, flow.rate.rate) for flow in report.flows if flow.rate.rate is not None]
    spent = {
        report.results.currency or "": [flow.cost for flow, _ in scored],
        "tokens": [flow.tokens for flow, _ in scored],
        "seconds": [flow.seconds for flow, _ in scored],
    }
    for unit, found in spent.items():
        known = [(flow.flow, used.median, rate) for (flow, rate), used in zip(scored, found, strict=True) if used]
        if len(known) == len(scored):
            return unit, known
    return "", []


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
        yield from _label(row.label, y + 4)
        if row.value is None:
            yield Markup('<text class="tick" x="{}" y="{}">no score</text>').format(_LABEL, y + 4)
            continue
        yield Markup('<line class="interval" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>').format(
            x(row.low), x(row.high), y, y
        )
        yield Markup('<circle class="point" cx="{:.1f}" cy="{}" r="5"/>').format(x(row.value), y)
        yield Markup('<text class="tick" x="{}" y="{}">{}</text>').format(WIDTH - 80, y + 4, row.note)


def scatter_plot(points: Sequence[tuple[str, float, float]], unit: str) -> Markup:
    """Draw success against cost: up and to the left is better. No label covers another or a point."""
    height = 240
    most = max(cost for _, cost, _ in points) or 1.0
    right = WIDTH - 130
    parts: list[Markup] = []
    for part in range(5):
        level = 200 - part * 45
        parts.append(Markup('<line class="axis" x1="50" x2="{}" y1="{}" y2="{}"/>').format(WIDTH - 10, level, level))
        parts.append(Markup('<text class="tick" x="0" y="{}">{} %</text>').format(level + 4, part * 25))
    placed = [(60 + cost / most * (right - 60), 200 - rate * 180, _short(label)) for label, cost, rate in points]
    taken = [(x - 8, x + 8, y + 4) for x, y, _ in placed]  # the left and the right end of each, and its line of text
    for x, y, text in placed:
        parts.append(Markup('<circle class="point" cx="{:.1f}" cy="{:.1f}" r="6"/>').format(x, y))
        left, end, line = x + 10, x + 10 + _LETTER * len(text), y + 4
        while any(a < end and left < b and abs(line - other) < _LINE for a, b, other in taken):
            line += 1
        taken.append((left, end, line))
        parts.append(Markup('<text class="label" x="{:.1f}" y="{:.1f}">{}</text>').format(left, line, text))
    ends = ((60, "0"), ((60 + right) // 2, f"median {unit} per attempt"))
    for x, text in (*ends, (right, f"{most:,.0f}" if most >= 10 else f"{most:.2g}")):
        parts.append(Markup('<text class="tick" text-anchor="middle" x="{}" y="230">{}</text>').format(x, text))
    return _svg(f"Pass rate against the median {unit} of an attempt", height, parts)


def _bars(flows: Sequence[FlowReport]) -> Iterator[Markup]:
    """Draw a bar for each flow: attempts that passed, failed, could not be verified, and were lost."""
    for number, flow in enumerate(flows):
        y = _ROW * number + 8
        yield from _label(flow.flow, y + 16)
        lost = sum(flow.infra.values())
        counts = (flow.rate.passed, flow.rate.scored - flow.rate.passed, flow.unverified, lost)
        at, whole = float(_LABEL), WIDTH - _LABEL - 10
        for bucket, count in zip(_BUCKETS, counts, strict=True):
            width = whole * count / max(flow.planned, 1)
            if count:
                yield Markup('<rect class="bucket {}" x="{:.1f}" y="{}" width="{:.1f}" height="22"/>').format(
                    bucket, at, y, width
                )
                told = f"{count} {'lost' if bucket == 'infra' else bucket}"
                if _LETTER * len(told) < width:
                    yield Markup('<text class="tick" x="{:.1f}" y="{}">{}</text>').format(at + 6, y + 15, told)
            at += width


def _label(text: str, y: float) -> Iterator[Markup]:
    """Write the label of a row, in two lines if it is a long difference of two flows."""
    lines = [text] if len(text) <= _LONGEST_LABEL else text.replace(" − ", " −\n", 1).split("\n")
    for number, line in enumerate(lines):
        at = y + _LINE * (number - (len(lines) - 1) / 2)
        yield Markup('<text class="label" x="0" y="{:.1f}">{}</text>').format(at, _short(line))


def _svg(title: str, height: int, parts: Iterator[Markup] | Sequence[Markup]) -> Markup:
    head = Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, height, title)
    return head + Markup("").join(parts) + Markup("</svg>")


def _short(label: str) -> str:
    shown = printable(label).replace("\n", " ")
    return shown if len(shown) <= _LONGEST_LABEL else shown[: _LONGEST_LABEL - 1] + "…"
