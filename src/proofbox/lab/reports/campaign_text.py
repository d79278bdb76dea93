"""Formats the results of a campaign for people: a table for terminals, and Markdown for pull request comments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from proofbox.core.text import printable
from proofbox.core.words import counted
from proofbox.lab.reports.campaign_results import CampaignReport, FlowReport
from proofbox.lab.statistics import Comparison, Distribution, PassRate, Verdict

SHOWN_MISSIONS: Final = 10
"""Maximum number of flaky missions listed by name."""

Rows = list[list[str]]


def flow_rows(report: CampaignReport) -> Rows:
    """Return the table of flows, with its head."""
    rows = [["FLOW", "PASSED", "RATE", "95 % INTERVAL", "LOST", "BOUNDS", "SECONDS", "TOKENS"]]
    for flow in report.flows:
        rate, lost = flow.rate, flow.bounds.lost
        rows.append(
            [
                flow.flow,
                *rate_row(rate),
                str(lost),
                f"{_percent(flow.bounds.lowest)} to {_percent(flow.bounds.highest)}" if lost else "-",
                _median(flow.seconds, 1),
                _median(flow.tokens, 0),
            ]
        )
    return rows


def rate_row(rate: PassRate) -> list[str]:
    """Return the cells of a pass rate: counts, rate, interval."""
    interval = f"{_percent(rate.low)} to {_percent(rate.high)}" if rate.scored else "-"
    return [f"{rate.passed}/{rate.scored}", _percent(rate.rate), interval]


def comparison_rows(comparisons: Sequence[Comparison]) -> Rows:
    """Return the table of comparisons, with its head."""
    rows = [["COMPARED", "DIFFERENCE", "95 % INTERVAL", "P", "VERDICT"]]
    for each in comparisons:
        interval = f"{_points(each.low)} to {_points(each.high)}"
        names = f"{each.first} - {each.second}"
        rows.append([names, _points(each.difference), interval, f"{each.corrected_p:.2g}", str(each.verdict)])
    return rows


def notes(report: CampaignReport) -> list[str]:
    """Return what the tables do not show, one sentence each."""
    results = report.results
    found = [sentence(each) for each in report.comparisons]
    for flow in report.flows:
        found += _flow_notes(flow, results.replicates)
    for gate in results.gates:
        found.append(f"gate {gate.type} of {gate.flow}: {'passed' if gate.passed else 'FAILED'}: {gate.detail}")
    if results.canary is not None:
        found.append(f"a canary of {counted(results.canary, 'mission')}: its results can never be published")
    missing = sum(flow.planned - flow.ended for flow in report.flows)
    if missing:
        found.append(f"not complete: {counted(missing, 'result')} missing")
    found += [f"{each.code}: {each.path}: {each.detail}" for each in report.findings]
    return [printable(each) for each in found]


def as_markdown(report: CampaignReport) -> str:
    """Return the report as Markdown, for a comment on a pull request."""
    results = report.results
    state = "" if report.ok else f" ({report.error.code if report.error else 'not complete'})"
    parts = [f"### Campaign {_cell(results.campaign)}{state}", _markdown_table(flow_rows(report))]
    if report.comparisons:
        parts.append(_markdown_table(comparison_rows(report.comparisons)))
    parts.append("\n".join(f"- {_cell(note)}" for note in notes(report)))
    parts.append(
        f"{counted(len(results.missions), 'mission')} × {results.replicates}; registered as `{results.sha256}`"
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _flow_notes(flow: FlowReport, replicates: int) -> list[str]:
    found = []
    if flow.infra:
        codes = ", ".join(f"{code} {count}" for code, count in flow.infra.items())
        found.append(f"{flow.flow}: lost to infrastructure, excluded from the rate: {codes}")
    if flow.unverified:
        found.append(f"{flow.flow}: {counted(flow.unverified, 'attempt')} could not be verified")
    if flow.cleanup_failures:
        codes = ", ".join(f"{code} {count}" for code, count in flow.cleanup_failures.items())
        found.append(f"{flow.flow}: cleanup failed: {codes}")
    k = str(replicates)
    if replicates > 1 and k in flow.pass_at_k:
        any_of, all_of = _percent(flow.pass_at_k[k]), _percent(flow.pass_hat_k[k])
        found.append(f"{flow.flow}: pass@{k} {any_of}, pass^{k} {all_of}")
    if flow.flaky:
        more = f" and {len(flow.flaky) - SHOWN_MISSIONS} more" if len(flow.flaky) > SHOWN_MISSIONS else ""
        found.append(f"{flow.flow}: flaky: {', '.join(flow.flaky[:SHOWN_MISSIONS])}{more}")
    return found


def sentence(each: Comparison) -> str:
    """Return the verdict of a comparison in words."""
    needed = [
        counted(number, thing)
        for number, thing in ((each.missions_needed, "mission"), (each.replicates_needed, "replicate"))
        if number is not None
    ]
    more = f"; needed: {' or '.join(needed)}" if needed else ""
    verdict = {
        Verdict.BETTER: f"{each.first} is better than {each.second}",
        Verdict.WORSE: f"{each.first} is worse than {each.second}",
        Verdict.EQUIVALENT: f"{each.first} and {each.second} are equivalent",
        Verdict.UNDERPOWERED: f"{each.first} and {each.second}: no verdict",
    }[each.verdict]
    return f"{verdict}: {each.reason}{more}"


def _markdown_table(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *rest])


def _cell(text: str) -> str:
    """Escape text for Markdown: ids and reasons come from files of others."""
    return "".join(f"\\{each}" if each in r"\`*_[]<>|#!" else each for each in printable(text).replace("\n", " "))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.1f} %"


def _points(value: float) -> str:
    return f"{value * 100:+.1f}"


def _median(found: Distribution | None, digits: int) -> str:
    return "-" if found is None else f"{found.median:.{digits}f}"
