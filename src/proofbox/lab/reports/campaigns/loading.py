"""Computes the results of a campaign from its manifest, the ledgers and the bundles of its runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from proofbox.agents.health.counters import read_health
from proofbox.core.canonical import MAX_INTEGER
from proofbox.core.digest import sha256_file
from proofbox.core.documents import stored
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.core.plurals import counted
from proofbox.core.results import ErrorBody
from proofbox.core.spec_files.text_files import Unreadable, read_text
from proofbox.errors import CampaignGatesFailed, CampaignIncomplete, EvidenceIncomplete, ProofboxError, RunUnknown
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.bundle.reader import Bundle
from proofbox.evidence.verify.check import check_bundle
from proofbox.evidence.verify.pinned_bundles import RUNS
from proofbox.lab.attempt_metrics import AttemptMetrics, read_metrics
from proofbox.lab.campaign.layout import FLOWS, MANIFEST, flow_out
from proofbox.lab.campaign.prices import Price, price_of
from proofbox.lab.campaign.registration import (
    SETTINGS,
    CampaignManifest,
    FlowRun,
    is_running,
    read_manifest,
    registered_digest,
    settings_digest,
)
from proofbox.lab.campaign.spec import CampaignDocument
from proofbox.lab.reports.campaigns.efforts import Efforts, efforts, has_repeated
from proofbox.lab.reports.campaigns.gates import judge
from proofbox.lab.reports.campaigns.parallel_reading import FlowResults, read_flows
from proofbox.lab.reports.campaigns.results import (
    CampaignReport,
    CampaignResults,
    FlowReport,
    Friction,
    MissionCell,
    MissionRow,
)
from proofbox.lab.reports.finding import EvidenceFinding
from proofbox.lab.reports.results import RunResults, read_run
from proofbox.lab.reports.totals import final_attempts
from proofbox.lab.run.ledger import Attempt, Ledger
from proofbox.lab.run.plan import ledger_path
from proofbox.lab.statistics import (
    Distribution,
    MissionScores,
    compare_all,
    describe,
    flaky,
    loss_bounds,
    pass_at_k,
    pass_hat_k,
    pass_rate,
)
from proofbox.lab.suite.reading import Suite

REPORT: Final = "report.json"

NOT_REGISTERED: Final = "campaign_not_registered"
_LARGEST: Final = 4 << 20
_Path = str | os.PathLike[str]


class CommittedRun(msgspec.Struct, frozen=True):
    """A committed run, by the digest of its index, which covers everything in it."""

    flow: str
    """The flow's id."""
    path: str
    """The run's bundle, relative to the campaign's directory."""
    index_sha256: str
    """The digest of the bundle's index."""


@stored("proofbox.campaign_runs/1", at="BUNDLE/runs.json of a campaign")
class CommittedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that the results of a campaign were computed from."""

    schema_version: str = "proofbox.campaign_runs/1"
    runs: tuple[CommittedRun, ...]
    """The run of each flow."""

    @classmethod
    def of(cls, manifest: CampaignManifest, out: Path) -> CommittedRuns:
        return cls(runs=tuple(CommittedRun(each.flow, run_path(each), _index(out, each)) for each in manifest.runs))


def run_path(run: FlowRun) -> str:
    """Return the path of a flow's run, relative to the campaign's directory."""
    return f"{FLOWS}/{run.flow}/{run.run_id}"


def _index(out: Path, run: FlowRun) -> str:
    return sha256_file(out / run_path(run) / INDEX)[0]


def load_campaign(out: _Path = "out") -> CampaignReport:
    """Return the results of a campaign, or its progress so far.

    For example:

        report = proofbox.load_campaign("out")
        for flow in report.flows:
            print(flow.flow, flow.rate.rate, flow.rate.low, flow.rate.high)

    The results of committed runs are read from their evidence, which is checked completely. Nothing is read from an
    earlier report: if a stored report differs from the evidence, that is a finding.
    """
    return load_with_efforts(Path(out))[0]


def load_with_efforts(place: Path) -> tuple[CampaignReport, Mapping[str, Efforts]]:
    """Return what `load_campaign` does, and by flow the means of its efforts."""
    manifest = read_manifest(place)
    document = manifest.document
    findings: list[EvidenceFinding] = []
    if registered_digest(document, manifest.canary, manifest.runs) != manifest.sha256:
        findings.append(EvidenceFinding(NOT_REGISTERED, MANIFEST, "it does not match its registered digest"))
    findings += _misdescribed(manifest, document)
    planned = len(manifest.runs) * len(manifest.missions) * document.campaign.replicates
    flows = read_flows(place, manifest, planned, lambda flow: read_flow(place, manifest, flow))
    findings += [finding for each in flows for finding in each.findings]
    scores = {each.report.flow: each.scores for each in flows}
    results = _results(manifest, document, [each.report for each in flows], scores)
    bundle = place / manifest.run_id
    committed = (bundle / INDEX).exists()
    if committed:
        findings += _contradictions(place, manifest, results)
    error = _error(results, findings)
    report = CampaignReport(
        ok=error is None,
        out=str(place),
        committed=committed,
        running=not committed and is_running(place),
        bundle=str(bundle),
        results=results,
        findings=tuple(findings),
        error=None if error is None else ErrorBody.of(error),
    )
    return report, {each.report.flow: each.efforts for each in flows}


def campaign_status(out: _Path = "out") -> CampaignReport:
    """Return what `load_campaign` does, and the health of the flows' strategies on this machine.

    For example:

        for each in proofbox.campaign_status("out").health:
            print(each.strategy, each.attempts, each.reliability)
    """
    report = load_campaign(out)
    strategies = dict.fromkeys(flow.strategy for flow in report.flows)
    return replace(report, health=tuple(map(read_health, strategies)))


def stored_report(report: CampaignReport) -> dict[str, Any]:
    """Return the results as the campaign's bundle stores them."""
    stored_results: dict[str, Any] = msgspec.to_builtins(report.results)
    return stored_results


def read_flow(out: Path, manifest: CampaignManifest, flow: str) -> FlowResults:
    """Return the results of one flow: from its evidence once its run is committed, and from its ledger until then."""
    run = manifest.run(flow)
    checked, metrics = dict[str, AttemptMetrics](), dict[str, AttemptMetrics]()
    found = _read(out, run, checked)
    findings: list[EvidenceFinding] = []
    if found is not None:
        where, suite = run_path(run), found.plan.suite()
        findings += [EvidenceFinding(each.code, f"{where}/{each.path}", each.detail) for each in found.findings]
        findings += _unregistered(found, suite, run, manifest)
        cleaned = {each.id for each in suite.missions if each.cleanup}
        for each in found.attempts:
            if each.result is not None:
                figures = (
                    checked.get(each.path, AttemptMetrics())
                    if found.committed
                    else read_metrics(out / where / each.path)
                )
                metrics[each.id] = figures if each.mission in cleaned else replace(figures, cleanup=None)
    return _flow(run, found, metrics, manifest, tuple(findings))


def _read(out: Path, run: FlowRun, metrics: dict[str, AttemptMetrics]) -> RunResults | None:
    """Return the results of a flow's run. Once it is committed, add the figures of attempts with valid evidence."""

    def visit(path: str, bundle: Bundle) -> None:
        metrics[path] = read_metrics(bundle)

    try:
        with Ledger(ledger_path(flow_out(out, run.flow), run.run_id), read_only=True) as ledger:
            return read_run(out / run_path(run), ledger, visit)
    except RunUnknown:
        return None


def _results(
    manifest: CampaignManifest,
    document: CampaignDocument,
    flows: Sequence[FlowReport],
    scores: Mapping[str, MissionScores],
) -> CampaignResults:
    fields = document.campaign
    comparisons = (
        compare_all(scores, margin=fields.margin, alpha=fields.alpha, seed=fields.seed, against=fields.against)
        if len(scores) > 1
        else []
    )
    gates = judge(document.gate, flows, comparisons)
    rows = [
        MissionRow(id, {flow: MissionCell(*by_mission.get(id, (0, 0))) for flow, by_mission in scores.items()})
        for id in manifest.missions
    ]
    return CampaignResults(
        campaign=manifest.campaign,
        sha256=manifest.sha256,
        canary=manifest.canary,
        complete=all(flow.rate.scored == flow.planned for flow in flows),
        gates_passed=all(gate.passed for gate in gates) and all(flow.ended == flow.planned for flow in flows),
        replicates=fields.replicates,
        currency=fields.currency if document.price else None,
        flows=tuple(flows),
        comparisons=tuple(comparisons),
        missions=tuple(rows),
        gates=tuple(gates),
    )


def _flow(
    run: FlowRun,
    found: RunResults | None,
    metrics: Mapping[str, AttemptMetrics],
    manifest: CampaignManifest,
    findings: tuple[EvidenceFinding, ...],
) -> FlowResults:
    """Return the results of a flow. `metrics` are the figures of the attempts that have a result, by id."""
    document = manifest.document
    replicates, price = document.campaign.replicates, price_of(run.model, run.flow, document.price)
    attempts = () if found is None else found.attempts
    final = [each for each in final_attempts(attempts) if each.result is not None]
    scored = [each for each in final if _is_scored(each)]
    passed = Counter(each.mission for each in scored if each.result is not None and each.result.verified == "passed")
    total = Counter(each.mission for each in scored)
    by_mission = {id: (passed[id], total[id]) for id in manifest.missions if total[id]}
    counts = list(by_mission.values())
    of_scored = [(each.mission, metrics[each.id]) for each in scored]
    costs = [cost for each in metrics.values() if (cost := _cost(price, each)) is not None]
    rate = pass_rate(counts)
    ks = [k for k in range(1, replicates + 1) if pass_at_k(counts, k) is not None]
    report = FlowReport(
        flow=run.flow,
        strategy=run.strategy,
        model=run.model,
        run=run_path(run),
        committed=found is not None and found.committed,
        planned=len(manifest.missions) * replicates,
        ended=len(final),
        rate=rate,
        bounds=loss_bounds(rate.passed, rate.scored, len(final) - len(scored)),
        infra=_counted(each.result.infra for each in final if each.result),
        unverified=sum(each.result is not None and not each.result.infra for each in final) - len(scored),
        pass_at_k={str(k): pass_at_k(counts, k) or 0.0 for k in ks},
        pass_hat_k={str(k): pass_hat_k(counts, k) or 0.0 for k in ks},
        flaky=tuple(list(by_mission)[i] for i in flaky(counts)),
        seconds=_spread(of_scored, lambda each: None if each.turn_ms is None else each.turn_ms / 1000),
        tokens=_spread(of_scored, lambda each: each.spent),
        tool_calls=_spread(of_scored, lambda each: each.tool_calls),
        cost=_spread(of_scored, lambda each: _cost(price, each)),
        idle=_spread(of_scored, lambda each: each.idle),
        tokens_spent=min(sum(each.spent or 0 for each in metrics.values()), MAX_INTEGER),
        tokens_unknown=sum(each.spent is None for each in metrics.values()),
        cost_spent=sum(costs) if costs else None,
        friction=_friction(
            list(metrics.values()),
            retries=sum(each.parent is not None for each in attempts),
            dead_ends=sum(bool(metrics[each.id].last_call_failed) for each in scored if _is_failed(each)),
        ),
        reasons=_counted(each.result.reason for each in final if each.result),
        contradicted_claims=sum(_contradicts(each) for each in scored),
        cleanup_failures=_counted(metrics[each.id].cleanup for each in attempts if each.id in metrics),
    )
    tried = [(each.mission, _is_failed(each), metrics[each.id]) for each in scored]
    return FlowResults(report=report, scores=by_mission, efforts=efforts(tried, price), findings=findings)


def _is_scored(attempt: Attempt) -> bool:
    result = attempt.result
    return result is not None and result.infra is None and result.verified in ("passed", "failed")


def _is_failed(attempt: Attempt) -> bool:
    return attempt.result is not None and attempt.result.verified == "failed"


def _contradicts(attempt: Attempt) -> bool:
    """Return whether the verifier contradicts the attempt's claim."""
    result = attempt.result
    return result is not None and (result.claimed, result.verified) in (("success", "failed"), ("failure", "passed"))


def _counted(codes: Iterable[str | None]) -> dict[str, int]:
    return dict(sorted(Counter(code for code in codes if code).items()))


def _spread(
    attempts: Iterable[tuple[str, AttemptMetrics]], measure: Callable[[AttemptMetrics], float | None]
) -> Distribution | None:
    """Return the distribution of the known values of a measure over attempts, given by mission."""
    known = [(mission, float(value)) for mission, each in attempts if (value := measure(each)) is not None]
    return describe([value for _, value in known], missions=[mission for mission, _ in known])


def _cost(price: Price | None, metrics: AttemptMetrics) -> float | None:
    """Return the cost of an attempt; None if its tokens or their price are unknown."""
    return None if price is None or metrics.usage is None else price.cost(metrics.usage)


def _friction(metrics: Sequence[AttemptMetrics], *, retries: int, dead_ends: int) -> Friction:
    return Friction(
        repeated_calls=sum(map(has_repeated, metrics)),
        dead_ends=dead_ends,
        tool_failures=sum(sum(each.tool_failures.values()) for each in metrics),
        declined=sum(each.tool_failures.get("declined", 0) for each in metrics),
        model_retries=sum(sum(each.retries.values()) for each in metrics),
        attempt_retries=retries,
        contradictions=sum(len(each.integrity) for each in metrics),
    )


# Checks


def _misdescribed(manifest: CampaignManifest, document: CampaignDocument) -> Iterator[EvidenceFinding]:
    """Yield a finding if the manifest does not match the campaign file that it contains."""
    flows = [(flow.id, flow.runner.type, flow.runner.model) for flow in document.flow]
    if manifest.campaign != document.campaign.id:
        yield EvidenceFinding(NOT_REGISTERED, MANIFEST, "it names a different campaign than the registered file")
    if [(run.flow, run.strategy, run.model) for run in manifest.runs] != flows:
        yield EvidenceFinding(NOT_REGISTERED, MANIFEST, "it names different flows than the registered file")


def _unregistered(
    found: RunResults, suite: Suite, run: FlowRun, manifest: CampaignManifest
) -> Iterator[EvidenceFinding]:
    """Yield a finding if a run used other missions, files or agents than were registered."""
    if suite.sha256 != run.suite_sha256 or found.plan.inputs != run.files:
        yield EvidenceFinding(NOT_REGISTERED, run_path(run), "its missions or files are not the registered ones")
    if {each.id for each in suite.missions} != set(manifest.missions):
        yield EvidenceFinding(NOT_REGISTERED, MANIFEST, f"its missions are not those of {run_path(run)}")
    plan, fields = found.plan, manifest.document.campaign
    flow = next((each for each in manifest.document.flow if each.id == run.flow), None)
    asked = (f"{run.strategy}!", fields.replicates, max(0, fields.retries), run.model)
    if (plan.chain, plan.replicates, plan.retries, plan.flags.get("model")) != asked:
        yield EvidenceFinding(NOT_REGISTERED, run_path(run), "its agent or retries are not the registered ones")
    used, settings = plan.runtimes.get(run.strategy, {}), {} if flow is None else flow.runner.settings
    if any(used.get(name) != value for name, value in settings.items() if name != "mounts"):  # they become absolute
        yield EvidenceFinding(NOT_REGISTERED, run_path(run), "the settings of its agent are not the registered ones")
    # Manifests of earlier versions do not name the settings: they can be read, but not resumed (`require_registered`).
    applied = "" if flow is None else settings_digest(plan.runtimes, plan.box_settings, flow.runner)
    if run.inputs.get(SETTINGS, applied) != applied:
        detail = "the user's settings that it was planned with are not the registered ones"
        yield EvidenceFinding(NOT_REGISTERED, run_path(run), detail)
    others = {each.result.strategy for each in found.attempts if each.result is not None} - {"", run.strategy}
    if others:
        yield EvidenceFinding(NOT_REGISTERED, run_path(run), f"attempts were made by {', '.join(sorted(others))}")


def _contradictions(out: Path, manifest: CampaignManifest, results: CampaignResults) -> Iterator[EvidenceFinding]:
    """Yield where the campaign's bundle is damaged, or differs from the manifest or from the runs."""
    bundle = out / manifest.run_id
    for each in check_bundle(str(bundle)).findings:
        yield EvidenceFinding(each.code, f"{manifest.run_id}/{each.path}", each.detail)
    expected = {
        RUNS: CommittedRuns.of(manifest, out) if all(flow.committed for flow in results.flows) else None,
        REPORT: results,
        MANIFEST: manifest,
    }
    for name, value in expected.items():
        try:
            stated = parse_json(read_text(bundle / name, _LARGEST * 16), dict[str, Any])
        except (Unreadable, msgspec.DecodeError):
            continue  # reported as damage
        if value is None or stated != msgspec.json.decode(msgspec.json.encode(value)):
            detail = "the campaign's bundle contradicts its runs"
            yield EvidenceFinding("campaign_disagrees", f"{manifest.run_id}/{name}", detail)


def _error(results: CampaignResults, findings: Sequence[EvidenceFinding]) -> ProofboxError | None:
    missing = sum(flow.planned - flow.ended for flow in results.flows)
    if findings:
        first = findings[0]
        what = f"{counted(len(findings), 'finding')}, the first: {first.code} in {first.path}"
        return EvidenceIncomplete(what, op="campaign")
    if missing:
        return CampaignIncomplete(f"{counted(missing, 'result')} of {results.campaign} missing", op="campaign")
    failed = [gate for gate in results.gates if not gate.passed]
    if failed:
        gate = failed[0]
        what = f"{len(failed)} of {counted(len(results.gates), 'gate')} failed; first: {gate.type} of {gate.flow}"
        return CampaignGatesFailed(f"{what} ({gate.detail})", op="campaign")
    if not results.complete:
        unscored = sum(flow.planned - flow.rate.scored for flow in results.flows)
        codes = sorted({code for flow in results.flows for code in flow.infra})
        why = f": lost to {', '.join(codes)}" if codes else ""
        return CampaignIncomplete(
            f"{counted(unscored, 'result')} of {results.campaign} without a score{why}",
            op="campaign",
            fix_hints=[
                "see what happened: proofbox attempt list OUT/flows/FLOW",
                "fix the cause, then start a new campaign: proofbox campaign run FILE --out NEW",
            ],
        )
    return None
