"""Formats the results of a campaign for people: a table for terminals, and Markdown for pull request comments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from proofbox.core.plurals import counted
from proofbox.core.text import printable
from proofbox.lab.campaign.comparing import CampaignComparison
from proofbox.lab.reports.campaigns.efforts import SHARES
from proofbox.lab.reports.campaigns.results import CampaignReport, FlowReport
from proofbox.lab.statistics import Comparison, ComparisonVerdict, Distribution, PassRate

SHOWN_MISSIONS: Final = 10
"""Maximum number of flaky missions listed by name."""

Rows = list[list[str]]


def flow_rows(report: CampaignReport) -> Rows:
    """Return the table of pass rates, with its head."""
    rows = [["FLOW", "PASSED", "RATE", "95 % INTERVAL", "LOST", "BOUNDS"]]
    for flow in report.flows:
        bounds, lost = flow.bounds, flow.bounds.lost
        between = f"{_percent(bounds.lowest)} to {_percent(bounds.highest)}" if lost else "-"
        rows.append([flow.flow, *rate_row(flow.rate), str(lost), between])
    return rows


def effort_rows(report: CampaignReport) -> Rows:
    """Return the table of medians per attempt, each with its 95 % interval, with its head; empty if nothing is known.

    A column without any value is left out: an unknown cost is unknown, not 0.
    """
    currency = report.results.currency
    found = {
        "SECONDS": [_spread(flow.seconds, ".1f") for flow in report.flows],
        "TOKENS": [_spread(flow.tokens, ",.0f") for flow in report.flows],
        f"COST ({currency})": [_spread(flow.cost, ".3g") for flow in report.flows],
    }
    known = {head: cells for head, cells in found.items() if any(cell != "-" for cell in cells)}
    if not known:
        return []
    names = [flow.flow for flow in report.flows]
    return [["MEDIANS", *known], *map(list, zip(names, *known.values(), strict=True))]


def friction_rows(report: CampaignReport) -> Rows:
    """Return the table of signs of trouble, with its head; empty without any."""
    rows = [["FRICTION", "REPEATED", "DEAD ENDS", "FAILED CALLS", "DECLINED", "RETRIES", "IDLE"]]
    for flow in report.flows:
        found = flow.friction
        counts = (found.repeated_calls, found.dead_ends, found.tool_failures, found.declined)
        retries = found.model_retries + found.attempt_retries
        idle = "-" if flow.idle is None else _percent(flow.idle.median)
        rows.append([flow.flow, *map(str, counts), str(retries), idle])
    quiet = all(cell in ("0", "-") for row in rows[1:] for cell in row[1:-1])
    return [] if quiet else rows


def rate_row(rate: PassRate) -> list[str]:
    """Return the cells of a pass rate: counts, rate, interval."""
    interval = f"{_percent(rate.low)} to {_percent(rate.high)}" if rate.scored else "-"
    return [f"{rate.passed}/{rate.scored}", _percent(rate.rate), interval]


def comparison_rows(comparisons: Sequence[Comparison]) -> Rows:
    """Return the table of comparisons, with its head."""
    rows = [["COMPARED", "DIFFERENCE", "95 % INTERVAL", "P", "VERDICT"]]
    for each in comparisons:
        names, difference, interval = f"{each.first} - {each.second}", "-", "-"
        if each.missions:
            difference, interval = f"{_points(each.difference)} pt", f"{_points(each.low)} to {_points(each.high)}"
        rows.append([names, difference, interval, f"{each.corrected_p:.2g}", str(each.verdict)])
    return rows


def regression_tables(found: CampaignComparison) -> list[Rows]:
    """Return the tables of two campaigns compared: pass rates, and what the attempts took."""
    rates = [["PASS RATE", "LATER - EARLIER", "95 % INTERVAL", "P", "VERDICT"]]
    for flow, (_, *cells) in zip(found.flows, comparison_rows(found.comparisons)[1:], strict=True):
        rates.append([flow, *cells])
    efforts = [["PER ATTEMPT", "EARLIER", "LATER", "CHANGE", "95 % INTERVAL", "P"]]
    for each in found.efforts:
        means = each.means
        scale, unit = (100, " %") if each.measure in SHARES else (1, "")
        low, high = ("-" if end is None else f"{end * scale:+.3g}" for end in (means.low, means.high))
        relative = means.difference / means.second * 100 if means.second else None
        change = f"{means.difference * scale:+.3g}{unit}" if relative is None else f"{relative:+.1f} %"
        figures = [f"{mean * scale:.4g}{unit}" for mean in (means.second, means.first)]
        interval = "-" if means.low is None else f"{low} to {high}{unit}"
        name = f"{each.flow} {each.measure.replace('_', ' ')}"
        efforts.append([name, *figures, change, interval, f"{means.corrected_p:.2g}"])
    return [rows for rows in (rates, efforts) if len(rows) > 1]


def regression_notes(found: CampaignComparison) -> list[str]:
    """Return the verdicts on two campaigns in words, and what may explain them, one sentence each."""
    told = [sentence(each, len(found.comparisons)) for each in found.comparisons]
    for each in found.efforts:
        if each.change != "unclear":
            what = f"{each.change} {each.measure.replace('_', ' ')} than before"
            told.append(f"{each.flow}: {what}: corrected p = {each.means.corrected_p:.2g}")
    if found.efforts and all(each.change == "unclear" for each in found.efforts):
        told.append("no significant change in time, tokens, cost or friction")
    for names, which in ((found.only_first, "earlier"), (found.only_second, "later")):
        if names:
            told.append(f"not compared, only in the {which} campaign: {', '.join(names)}")
    if found.changed_inputs:
        told.append(f"changed between them, and a possible reason: {', '.join(found.changed_inputs)}")
    told += found.notes
    told += [f"{each.code}: {each.path}: {each.detail}" for each in found.findings]
    return [printable(each) for each in told]


def tables(report: CampaignReport) -> list[Rows]:
    """Return the tables of a report: rates, comparisons, medians and friction, without empty tables."""
    compared = comparison_rows(report.comparisons) if report.comparisons else []
    return [rows for rows in (flow_rows(report), compared, effort_rows(report), friction_rows(report)) if rows]


def notes(report: CampaignReport) -> list[str]:
    """Return what the tables do not show, one sentence each."""
    results = report.results
    found = [sentence(each, len(report.comparisons)) for each in report.comparisons]
    for flow in report.flows:
        found += _flow_notes(flow, results.replicates, results.currency)
    for gate in results.gates:
        found.append(f"gate {gate.type} of {gate.flow}: {'passed' if gate.passed else 'FAILED'}: {gate.detail}")
    if results.canary is not None:
        found.append(f"a canary of {counted(len(results.missions), 'mission')}: its results can never be published")
    missing = sum(flow.planned - flow.ended for flow in report.flows)
    if missing:
        found.append(f"not complete: {counted(missing, 'result')} missing")
    elif not results.complete:
        unscored = sum(flow.planned - flow.rate.scored for flow in report.flows)
        found.append(f"not complete: {counted(unscored, 'result')} without a score")
    found += [f"{each.code}: {each.path}: {each.detail}" for each in report.findings]
    return [printable(each) for each in found]


def as_markdown(report: CampaignReport) -> str:
    """Return the report as Markdown, for a comment on a pull request."""
    results = report.results
    state = "" if report.ok else f" ({report.error.code if report.error else 'not complete'})"
    parts = [f"### Campaign {_cell(results.campaign)}{state}"]
    parts += [_markdown_table(rows) for rows in tables(report)]
    parts.append("\n".join(f"- {_cell(note)}" for note in notes(report)))
    parts.append(
        f"{counted(len(results.missions), 'mission')} × {results.replicates}; registered as `{results.sha256}`"
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _flow_notes(flow: FlowReport, replicates: int, currency: str | None) -> list[str]:
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
    if flow.cost_spent is not None:
        unknown = f", without {counted(flow.tokens_unknown, 'attempt')} of unknown cost" if flow.tokens_unknown else ""
        found.append(f"{flow.flow}: all attempts together cost {flow.cost_spent:.4g} {currency or ''}{unknown}")
    elif currency is not None:
        why = f"there is no price of {flow.model or flow.flow}" if flow.tokens else "its tokens are unknown"
        found.append(f"{flow.flow}: the cost is unknown: {why}")
    if flow.flaky:
        more = f" and {len(flow.flaky) - SHOWN_MISSIONS} more" if len(flow.flaky) > SHOWN_MISSIONS else ""
        found.append(f"{flow.flow}: flaky: {', '.join(flow.flaky[:SHOWN_MISSIONS])}{more}")
    return found


def sentence(each: Comparison, comparisons: int) -> str:
    """Return the verdict of a comparison in words. It is one of several, over which p-values are corrected."""
    needed = [
        counted(number, thing)
        for number, thing in ((each.missions_needed, "mission"), (each.replicates_needed, "replicate"))
        if number is not None
    ]
    more = f"; needed to decide within the margin{_over(comparisons)}: {_needed(each, needed)}" if needed else ""
    verdict = {
        ComparisonVerdict.BETTER: f"{each.first} is better than {each.second}",
        ComparisonVerdict.WORSE: f"{each.first} is worse than {each.second}",
        ComparisonVerdict.EQUIVALENT: f"{each.first} and {each.second} are equivalent",
        ComparisonVerdict.UNDERPOWERED: f"{each.first} and {each.second}: no verdict",
    }[each.verdict]
    return f"{verdict}: {each.reason}{more}"


def _over(comparisons: int) -> str:
    return f", over {comparisons} comparisons" if comparisons > 1 else ""


def _needed(each: Comparison, ways: Sequence[str]) -> str:
    if each.missions > 1:
        return " or ".join(ways)
    few = "one mission says nothing about how much they vary" if each.missions else "no mission has scores of both"
    return f"up to {' or '.join(ways)} ({few})"


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


def _spread(found: Distribution | None, digits: str) -> str:
    """Return a median with its interval, or the part of them that is known."""
    if found is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{found.median:{digits}}"
    return f"{found.median:{digits}} ({found.low:{digits}} to {found.high:{digits}})"
