"""Evaluates the gates of a campaign on its results."""

from __future__ import annotations

from collections.abc import Sequence

from proofbox.core.plurals import counted
from proofbox.lab.campaign.spec import Gate
from proofbox.lab.reports.campaigns.results import FlowReport, GateResult
from proofbox.lab.statistics import Comparison, ComparisonVerdict

_OPPOSITE = {ComparisonVerdict.BETTER: ComparisonVerdict.WORSE, ComparisonVerdict.WORSE: ComparisonVerdict.BETTER}


def judge(gates: Sequence[Gate], flows: Sequence[FlowReport], comparisons: Sequence[Comparison]) -> list[GateResult]:
    """Evaluate each gate, for each flow that it applies to. An unknown value does not pass."""
    found = []
    for gate in gates:
        for flow in flows:
            if gate.flow in (None, flow.flow):
                passed, detail = _compared(gate, comparisons) if gate.type == "comparison" else _measured(gate, flow)
                found.append(GateResult(type=gate.type, flow=flow.flow, passed=passed, detail=detail))
    return found


def _measured(gate: Gate, flow: FlowReport) -> tuple[bool, str]:
    lost = sum(flow.infra.values())
    if gate.type == "coverage":
        return _at_least(flow.rate.scored / flow.planned, 1.0 if gate.min is None else gate.min)
    if gate.type == "pass_rate":
        return _at_least(flow.rate.low, gate.min or 0.0)
    if gate.type == "infra":
        return _at_most(lost / flow.planned, gate.max or 0.0)
    if gate.type == "trace":
        return _at_most(flow.friction.contradictions, gate.max or 0.0)
    if gate.type == "tool_policy":
        return _at_most(flow.friction.declined, gate.max or 0.0)
    if gate.type == "semantic":
        return _at_most(flow.contradicted_claims, gate.max or 0.0)
    if gate.type == "cleanup":
        return _at_most(sum(flow.cleanup_failures.values()), gate.max or 0.0)
    if flow.tokens_unknown:
        return False, f"the tokens of {counted(flow.tokens_unknown, 'attempt')} are unknown"
    return _at_most(flow.tokens_spent, gate.max or 0.0)


def _at_least(value: float, bound: float) -> tuple[bool, str]:
    return value >= bound, f"{value:.4g}, at least {bound:.4g} is required"


def _at_most(value: float, bound: float) -> tuple[bool, str]:
    return value <= bound, f"{value:.10g}, at most {bound:.10g} is allowed"


def _compared(gate: Gate, comparisons: Sequence[Comparison]) -> tuple[bool, str]:
    for each in comparisons:
        if {each.first, each.second} == {gate.flow, gate.against}:
            verdict = each.verdict if each.first == gate.flow else _OPPOSITE.get(each.verdict, each.verdict)
            required = " or ".join(gate.verdicts)
            return verdict in gate.verdicts, f"{verdict} against {gate.against}, {required} is required"
    return False, f"there is no comparison with {gate.against}"
