"""Compare what was measured with what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from proofbox.sandbox.probing.lanes import LaneResult, Observation
from proofbox.sandbox.probing.operations import ProbeDecision, decide, skipped
from proofbox.sandbox.probing.plan import Decision, Probe
from proofbox.sandbox.probing.results import ProbeResult, Reason


def judge(all_probes: Sequence[Probe], scenario: Iterable[LaneResult], outside: LaneResult) -> list[ProbeResult]:
    """Return the result of every probe in every profile; `outside` is the baseline."""
    probes = {probe.id: probe for probe in all_probes}
    baseline = {each.probe: rule_on(probes[each.probe], each) for each in outside.observations}
    results = []
    for lane in scenario:
        found = [(probes[each.probe], each, rule_on(probes[each.probe], each)) for each in lane.observations]
        wanted = {probe.id: _expected(probe, baseline) for probe, _, _ in found}
        controls_hold = all(
            _fits(probe, wanted[probe.id], each, ruling) is None for probe, each, ruling in found if probe.control
        )
        for probe, each, ruling in found:
            mismatch = _mismatch(lane, probe, wanted[probe.id], each, ruling, controls_hold)
            results.append(
                ProbeResult(
                    profile=lane.profile,
                    probe_id=probe.id,
                    operation=probe.operation,
                    args=each.args,
                    expected=wanted[probe.id],
                    decision=ruling.decision,
                    evidence_class=ruling.evidence,
                    detail=ruling.detail,
                    errno=each.answer.errno if each.answer else 0,
                    error=each.answer.error if each.answer else "",
                    duration_ns=each.answer.ns if each.answer else 0,
                    baseline=skipped(probe) or baseline[probe.id].decision,
                    matched=mismatch is None,
                    mismatch=mismatch,
                    explained=probe.gap if mismatch in ("unexpected_allow", "unexpected_deny") else "",
                )
            )
    return results


def rule_on(probe: Probe, each: Observation) -> ProbeDecision:
    return decide(probe, each.answer, each.oracle, secret=each.secret, problem=each.problem)


def _expected(probe: Probe, baseline: Mapping[str, ProbeDecision]) -> Decision:
    return probe.expect if probe.expect != "baseline" else baseline[probe.id].decision


def _mismatch(
    lane: LaneResult, probe: Probe, expected: Decision, each: Observation, ruling: ProbeDecision, controls_hold: bool
) -> Reason | None:
    if lane.problem:
        return "profile_not_applied"
    if not lane.driver_intact:
        return "driver_changed"
    wrong = _fits(probe, expected, each, ruling)
    if wrong is None and not controls_hold:
        return "control_failed"
    return wrong


def _fits(probe: Probe, expected: Decision, each: Observation, ruling: ProbeDecision) -> Reason | None:
    """Return how the result differs from what is expected; None if it does not."""
    if probe.effect == "box" and each.oracle is not None and each.oracle.happened:
        return "reached_the_host"
    if ruling.decision == "unknown" or ruling.evidence == "self_report":
        return "unknown"
    if ruling.decision != expected:
        return "unexpected_allow" if ruling.decision == "allow" else "unexpected_deny"
    return None
