"""The plots of a campaign: what they show, and that it can be read."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import pytest
from flow_reports import flow_report

from proofbox.lab.reports.campaigns.results import CampaignReport, CampaignResults, FlowReport
from proofbox.lab.statistics import compare, describe
from proofbox.viewer.campaigns import plots_of, scatter_plot
from proofbox.viewer.rendering import Renderer

LONG = "agent-with-a-template"


def report(*flows: FlowReport, **changes: Any) -> CampaignReport:
    results = CampaignResults(
        campaign="c",
        sha256="0" * 64,
        canary=None,
        complete=True,
        gates_passed=True,
        replicates=1,
        currency="EUR",
        flows=flows,
        missions=(),
        gates=(),
        **{"comparisons": (), **changes},
    )
    return CampaignReport(ok=True, out="out", committed=True, running=False, bundle="out/b", results=results)


def labels(plot: str) -> list[tuple[float, float, str]]:
    """Return left end, line and text of each label."""
    found = re.findall(r'<text class="label" x="([\d.]+)" y="([\d.]+)">(.*?)</text>', plot)
    return [(float(x), float(y), text) for x, y, text in found]


def test_labels_cover_neither_each_other_nor_points() -> None:
    plot = scatter_plot([("agent", 130.0, 0.85), (LONG, 100.0, 0.85), ("shell", 120.0, 0.83), ("solver", 9.0, 1)], "s")
    points = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', plot)
    found = [*labels(plot), *((float(x) - 6, float(y) + 4, "o") for x, y in points)]
    assert {text for _, _, text in found} == {"agent", LONG, "shell", "solver", "o"}
    for (x, y, text), (other_x, other_y, other) in combinations(found, 2):
        if text == other == "o":
            continue
        apart = x + 7 * len(text) < other_x or other_x + 7 * len(other) < x
        assert apart or abs(y - other_y) >= 13, (text, other)


@pytest.mark.parametrize(
    ("known", "unit"), [(("cost", "tokens", "seconds"), "EUR"), (("tokens", "seconds"), "tokens"), ((), None)]
)
def test_success_is_plotted_against_cost_if_every_flow_has_one(known: tuple[str, ...], unit: str | None) -> None:
    spent = {name: describe([1.0, 2.0, 3.0]) for name in known}
    plots = plots_of(report(flow_report(**spent), flow_report(flow="b", **spent)))
    assert (plots.cost is None) == (unit is None)
    assert plots.cost is None or f"median {unit} per attempt" in plots.cost
    assert [rows[0][0] for rows in plots.tables] == (["Medians", "Friction"] if known else ["Friction"])
    assert not known or plots.tables[0][0][-1] == ("Cost (EUR)" if "cost" in known else "Tokens")


def test_difference_of_flows_with_long_names_names_both() -> None:
    scores = {f"m{number}": (1, 1) for number in range(4)}
    flows = flow_report(flow=LONG), flow_report(flow="solver")
    plots = plots_of(report(*flows, comparisons=(compare(LONG, scores, "solver", scores, margin=0.1),)))
    assert plots.differences is not None
    assert [text for _, _, text in labels(plots.differences)] == [f"{LONG} −", "solver"]


def test_bars_show_how_attempts_ended() -> None:
    [bars] = [plots_of(report(flow_report())).buckets]
    assert re.findall(r'class="bucket (\w+)".*? width="([\d.]+)"', bars) == [
        ("passed", "368.0"),
        ("failed", "46.0"),
        ("infra", "46.0"),
    ]
    assert "8 passed" in bars


def test_page_shows_lost_attempts_with_the_bounds_of_the_rate() -> None:
    found = report(flow_report())
    page = Renderer("export").render("_campaign.html", report=found, plots=plots_of(found), at="c")
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", page.partition("Pass rates")[2].partition("</table>")[0])
    assert [(head, cell.replace("\xa0", " ")) for head, cell in zip(cells[:9], cells[8:], strict=False)][4:7] == [
        ("95 % interval", "56.0 % to 98.0 %"),
        ("Lost", "1"),
        ("Bounds", "80.0 % to 90.0 %"),
    ]


@pytest.mark.parametrize(
    ("spent", "unknown", "shown"), [(1000, 0, "1,000"), (1000, 2, "1,000, 2 unknown"), (0, 10, "unknown"), (0, 0, "0")]
)
def test_unknown_tokens_are_not_shown_as_none(spent: int, unknown: int, shown: str) -> None:
    found = report(flow_report(tokens_spent=spent, tokens_unknown=unknown))
    page = Renderer("export").render("_campaign.html", report=found, plots=plots_of(found), at="c")
    assert f'<td class="number wide">{shown}</td></tr>' in page
