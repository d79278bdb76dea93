"""Two attempts side by side, aligned by step, from their first divergence; and two flows, mission by mission."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import msgspec

from proofbox.core.digest import sha256_hex
from proofbox.errors import NotFoundError
from proofbox.lab.attempt.trace import STEPS
from proofbox.lab.reports.campaigns.results import CampaignReport, FlowReport, MissionCell, MissionRow
from proofbox.lab.statistics import Comparison, Distribution
from proofbox.viewer.reading import OpenedEvidence
from proofbox.viewer.rendering import spent

MAX_STEPS: Final = 2000
"""Maximum number of steps of each attempt that are compared."""
SHOWN: Final = 200
"""Maximum number of rows on the page."""
BEFORE: Final = 2
"""Equal steps that are shown before the first divergence."""


class ComparedStep(msgspec.Struct, frozen=True):
    """The compared part of a step: what was done, how it ended, and what it changed."""

    n: int
    kind: str
    tool: str = ""
    command: str = ""
    paths: tuple[str, ...] = ()
    status: str = ""
    exit_code: int | None = None
    changed: int = 0
    snapshot_before: str = ""
    snapshot_after: str = ""
    diff: str = ""
    """The digest of its diff; empty if it changed nothing, or the diff is not stored."""
    diff_omitted: str = ""
    unreadable: bool = False

    def is_same_as(self, other: ComparedStep) -> bool:
        """Return whether both did the same with the same effect.

        A diff does not show everything, so steps from the same files must lead to the same files. From different files
        the diffs are compared; a diff that is not stored is different.
        """
        names = ("kind", "tool", "command", "paths", "status", "exit_code", "changed")
        if self.unreadable or other.unreadable or any(getattr(self, name) != getattr(other, name) for name in names):
            return False
        if self.snapshot_before == other.snapshot_before:
            return (self.snapshot_after, self.diff) == (other.snapshot_after, other.diff)
        return self.diff == other.diff and not self.diff_omitted and not other.diff_omitted


@dataclass(frozen=True, slots=True)
class ComparedRow:
    first: ComparedStep | None
    second: ComparedStep | None
    same: bool


@dataclass(frozen=True, slots=True)
class AttemptComparison:
    rows: Sequence[ComparedRow]
    divergence: int | None
    """The number of the first step that differs; None: the steps are the same."""
    skipped: int
    """Equal steps before the first row."""
    total: int
    cut: bool
    """Whether more rows follow that are not shown."""
    partial: bool
    """Whether one of them has more steps than are compared."""


def compare_attempts(first: OpenedEvidence, second: OpenedEvidence) -> AttemptComparison:
    """Align the steps of two attempts by their number."""
    steps = [read_steps(each) for each in (first, second)]
    pairs = [
        ComparedRow(one, two, one is not None and two is not None and one.is_same_as(two))
        for one, two in zip_longest(*(each[:MAX_STEPS] for each in steps))
    ]
    divergence = next((number for number, row in enumerate(pairs) if not row.same), None)
    start = 0 if divergence is None else max(0, divergence - BEFORE)
    return AttemptComparison(
        rows=pairs[start : start + SHOWN],
        divergence=None if divergence is None else divergence + 1,
        skipped=start,
        total=len(pairs),
        cut=start + SHOWN < len(pairs),
        partial=any(len(each) > MAX_STEPS for each in steps),
    )


def read_steps(evidence: OpenedEvidence) -> list[ComparedStep]:
    """Return the first steps of an attempt, and one more if it has more than are compared."""
    found: list[ComparedStep] = []
    first = 0
    while len(found) <= MAX_STEPS and (lines := [*evidence.lines(STEPS, first, MAX_STEPS)]):
        found += [_step(line) for line in lines if "turn_end" not in line]
        first += len(lines)
    return found[: MAX_STEPS + 1]


def _step(line: Mapping[str, Any]) -> ComparedStep:
    step = line.get("step")
    text, digest = line.get("diff"), line.get("diff_sha256", "")
    digest = sha256_hex(text.encode("utf-8", "replace")) if isinstance(text, str) else digest
    diff = {"diff": digest, "diff_omitted": line.get("diff_omitted", "")}
    try:
        return msgspec.convert({**step, **diff} if isinstance(step, dict) else None, ComparedStep)
    except msgspec.ValidationError:
        return ComparedStep(n=0, kind="unreadable step", unreadable=True)


MISSIONS: Final = 50
"""Missions of one page."""
_ORDER: Final = ("first", "second", "same", "unknown")


@dataclass(frozen=True, slots=True)
class ComparedMission:
    """The scores of two flows at one mission."""

    id: str
    first: MissionCell
    second: MissionCell
    better: str
    """`first` or `second`, by the share of attempts that passed; `same`; `unknown` if one of them has no score."""
    attempts: tuple[str, str] | None = None
    """An attempt of each flow, relative to the campaign's directory."""


@dataclass(frozen=True, slots=True)
class FlowsComparison:
    flows: tuple[FlowReport, FlowReport]
    registered: Comparison | None
    """The registered comparison of this pair, in the order of its registration, or None."""
    facts: Sequence[tuple[str, str, str]]
    counts: Mapping[str, int]
    """The number of missions at which each flow is better."""
    missions: Sequence[ComparedMission]
    """The missions of one page; those with a difference come first."""
    total: int
    page: int
    pages: int


def compare_flows(report: CampaignReport, first: str, second: str, *, show: str = "", page: int = 1) -> FlowsComparison:
    """Compare two flows of a campaign. `show` limits the missions to one value of `better`. Raises NotFoundError."""
    named = {each.flow: each for each in report.flows}
    if first not in named or second not in named or first == second:
        raise NotFoundError("choose two different flows of this campaign", op="view")
    every = [_mission(row, first, second) for row in report.results.missions]
    counts = {name: sum(each.better == name for each in every) for name in _ORDER}
    chosen = [each for each in every if show not in _ORDER or each.better == show]
    chosen.sort(key=lambda each: _ORDER.index(each.better))
    pages = max(1, -(-len(chosen) // MISSIONS))
    page = min(page, pages)
    flows = named[first], named[second]
    attempts = [_attempts(Path(report.out), each.run) for each in flows]
    return FlowsComparison(
        flows=flows,
        registered=next((each for each in report.comparisons if {each.first, each.second} == {first, second}), None),
        facts=_flow_facts(*flows),
        counts=counts,
        missions=[
            replace(each, attempts=(attempts[0][each.id], attempts[1][each.id]))
            if all(each.id in found for found in attempts)
            else each
            for each in chosen[(page - 1) * MISSIONS : page * MISSIONS]
        ],
        total=len(chosen),
        page=page,
        pages=pages,
    )


def _mission(row: MissionRow, first: str, second: str) -> ComparedMission:
    one, two = (row.flows.get(name) or MissionCell(0, 0) for name in (first, second))
    if not one.scored or not two.scored:
        return ComparedMission(row.mission_id, one, two, "unknown")
    difference = one.passed * two.scored - two.passed * one.scored
    return ComparedMission(row.mission_id, one, two, "first" if difference > 0 else "second" if difference else "same")


def _attempts(campaign: Path, run: str) -> dict[str, str]:
    """Return the first attempt of a run at each mission, relative to the campaign's directory."""
    try:
        names = sorted(os.listdir(campaign / run / "attempts"), reverse=True)
    except OSError:
        return {}
    return {name.rpartition(".e")[0].rpartition(".")[0]: f"{run}/attempts/{name}" for name in names}


def _flow_facts(first: FlowReport, second: FlowReport) -> list[tuple[str, str, str]]:
    """Return the figures in which flows are compared; those that neither has are left out."""

    def fact(name: str, figure: Callable[[FlowReport], str]) -> tuple[str, str, str]:
        return name, figure(first), figure(second)

    rows = [
        fact("Strategy", lambda flow: flow.strategy),
        fact("Model", lambda flow: flow.model or ""),
        fact("Lost to infrastructure", lambda flow: str(sum(flow.infra.values()))),
        fact("Not verified", lambda flow: str(flow.unverified)),
        fact("Claims that the verifier contradicts", lambda flow: str(flow.contradicted_claims)),
        fact("Seconds, median", lambda flow: _median(flow.seconds, ".1f")),
        fact("Tokens, median", lambda flow: _median(flow.tokens, ",.0f")),
        fact("Cost, median", lambda flow: _median(flow.cost, ".3g")),
        fact("Tool calls, median", lambda flow: _median(flow.tool_calls, ".0f")),
        fact("Failed tool calls", lambda flow: str(flow.friction.tool_failures)),
        fact("Declined tool calls", lambda flow: str(flow.friction.declined)),
        fact("Tokens spent", spent),
    ]
    return [row for row in rows if any(row[1:])]


def _median(values: Distribution | None, form: str) -> str:
    if values is None:
        return ""
    interval = "" if values.low is None or values.high is None else f" ({values.low:{form}} to {values.high:{form}})"
    return f"{values.median:{form}}{interval}"
