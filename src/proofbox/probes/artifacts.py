"""Build the artifacts of a plan run from what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from proofbox.evidence.documents.witnesses import PathWitness, witnesses_document
from proofbox.probes.channel import confinement, parse_status, sandbox_signs
from proofbox.probes.documents import (
    ApplyPreflight,
    ExpectedMatrix,
    ExpectedRow,
    MismatchSummary,
    OracleResult,
    OracleResults,
    PlanSummary,
    ProfileApplication,
    RuntimeEvent,
    RuntimeEvents,
    SelfCheck,
)
from proofbox.probes.measuring import MeasuredPlan
from proofbox.sandbox.probing.lanes import LaneResult
from proofbox.sandbox.probing.plan import ProbePlan
from proofbox.sandbox.probing.results import REASONS, ProbeResult, unexplained


def expected_matrix(plan: ProbePlan) -> ExpectedMatrix:
    return ExpectedMatrix(
        rows=tuple(
            ExpectedRow(
                profile=profile.id,
                probe_id=probe.id,
                operation=probe.operation,
                args=probe.args,
                expected=probe.expect,
                effect=probe.effect,
                control=probe.control,
                reason=probe.reason,
            )
            for profile in plan.profile
            for probe in plan.probes_of(profile.id)
        )
    )


def preflight(plan: ProbePlan, measured: MeasuredPlan, results: Sequence[ProbeResult]) -> ApplyPreflight:
    own = parse_status(measured.self_status)
    controls = {(p.id, probe.id) for p in plan.profile for probe in plan.probes_of(p.id) if probe.control}
    failed = {each.profile for each in results if (each.profile, each.probe_id) in controls and not each.matched}
    profiles = tuple(
        ProfileApplication(
            profile=lane.profile,
            apply_ok=not lane.problem and lane.driver_intact and bool(lane.status) and lane.profile not in failed,
            provider=lane.provider,
            isolation=lane.isolation,
            policy=lane.policy,
            confinement=confinement(parse_status(lane.status)),
            status=parse_status(lane.status),
            problem=lane.problem or ("a control failed" if lane.profile in failed else ""),
        )
        for lane in measured.scenario
    )
    confined = confinement(own)
    reasons = sandbox_signs(confined)
    return ApplyPreflight(
        apply_ok=all(each.apply_ok for each in profiles) and bool(profiles),
        channel=measured.channel,
        sandbox_check_self=SelfCheck(sandboxed=bool(reasons), reasons=tuple(reasons), confinement=confined, status=own),
        profiles=profiles,
    )


def runtime_events(measured: MeasuredPlan) -> RuntimeEvents:
    lanes: list[tuple[Literal["scenario", "baseline"], LaneResult]] = [("scenario", lane) for lane in measured.scenario]
    return RuntimeEvents(
        events=tuple(
            RuntimeEvent(
                lane=kind,
                profile=lane.profile,
                probe_id=each.probe,
                result=each.answer.result,
                errno=each.answer.errno,
                error=each.answer.error,
                duration_ns=each.answer.ns,
                timed_out=each.answer.timed_out,
                signal=each.answer.signal,
                path=each.answer.path,
            )
            for kind, lane in (*lanes, ("baseline", measured.baseline))
            for each in lane.observations
            if each.answer is not None
        )
    )


def oracle_results(measured: MeasuredPlan) -> OracleResults:
    return OracleResults(
        results=tuple(
            OracleResult(
                profile=lane.profile, probe_id=each.probe, happened=each.oracle.happened, seen=each.oracle.seen
            )
            for lane in measured.scenario
            for each in lane.observations
            if each.oracle is not None
        )
    )


def mismatch_summary(results: Sequence[ProbeResult]) -> MismatchSummary:
    wrong = [result for result in results if not result.matched]
    return MismatchSummary(
        mismatches=len(wrong),
        unexplained=len(unexplained(list(results))),
        by_reason=dict(sorted(Counter(str(result.mismatch) for result in wrong).items())),
        reasons=REASONS,
    )


def path_witnesses(measured: MeasuredPlan) -> dict[str, Any]:
    """Return the kernel's own names of the files that probes opened, as the driver read them from its descriptors."""
    found = []
    for lane in measured.scenario:
        for each in lane.observations:
            if each.answer is not None and each.answer.path:
                requested, observed = each.args[0], each.answer.path
                followed = {"none": False, "followed": True}.get(each.answer.links)
                found.append(PathWitness(requested, observed, None, observed, followed_links=followed))
    return witnesses_document(found)


def summary(plan: ProbePlan, provider: str, results: Sequence[ProbeResult]) -> PlanSummary:
    decisions = Counter(result.decision for result in results)
    left = len(unexplained(list(results)))
    return PlanSummary(
        plan_id=plan.id,
        provider=provider,
        ok=left == 0,
        probes=len(results),
        allowed=decisions["allow"],
        denied=decisions["deny"],
        unknown=decisions["unknown"],
        mismatches=sum(not result.matched for result in results),
        unexplained=left,
        by_evidence_class=dict(sorted(Counter(result.evidence_class for result in results).items())),
    )


def markdown(found: PlanSummary, results: Sequence[ProbeResult]) -> str:
    """Return the summary for people, as Markdown: the mismatches, and the matrix."""
    lines = [f"# Plan {found.plan_id} on {found.provider}", ""]
    lines.append(f"{found.probes} probes: {found.allowed} allowed, {found.denied} denied, {found.unknown} unknown.")
    lines.append(f"{found.mismatches} mismatches, {found.unexplained} of them unexplained.")
    wrong = [result for result in results if not result.matched]
    if wrong:
        lines += ["", "| profile | probe | expected | found | reason | detail |", "|---|---|---|---|---|---|"]
        lines += [
            f"| {each.profile} | {each.probe_id} | {each.expected} | {each.decision} | "
            f"{each.mismatch}{', explained' if each.explained else ''} | {_cell(each.explained or each.detail)} |"
            for each in wrong
        ]
    lines += ["", "| profile | probe | operation | expected | found | evidence |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {each.profile} | {each.probe_id} | {each.operation} | {each.expected} | {each.decision} "
        f"| {each.evidence_class} |"
        for each in results
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return "".join(c if c.isprintable() and c not in "|<>" else " " for c in text)[:200]
