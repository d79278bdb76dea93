"""Compares a campaign with an earlier one: has a flow become better, slower or more expensive on the same missions?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from proofbox.core.plurals import counted
from proofbox.core.results import Document, ErrorBody
from proofbox.errors import CampaignRegressed, UsageError
from proofbox.lab.campaign.registration import CampaignManifest, read_manifest
from proofbox.lab.reports.campaigns.efforts import COST, MEASURES, Efforts
from proofbox.lab.reports.campaigns.loading import load_with_efforts
from proofbox.lab.reports.campaigns.results import CampaignReport
from proofbox.lab.reports.finding import EvidenceFinding
from proofbox.lab.statistics import (
    Comparison,
    ComparisonVerdict,
    MeanComparison,
    MissionScores,
    compare_means,
    compare_pairs,
)

_Path = str | os.PathLike[str]
Change = Literal["more", "less", "unclear"]
_LATER: Final = " (later)"


class EffortComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt of a flow took in the later campaign, compared with the earlier one."""

    flow: str
    """The flow's id."""
    measure: str
    """What was measured for each attempt: `seconds`, `tokens` and `cost`; `tool_calls`, `failed_calls` and
    `model_retries`; whether it had `repeated_calls` or was one of the `dead_ends` (shares of attempts); `idle`, the
    share of its turn."""
    means: MeanComparison
    """The later mean (`first`) compared with the earlier one (`second`)."""
    change: Change
    """`more` or `less`: than in the earlier campaign, with a corrected p-value below alpha."""


class CampaignComparison(Document, frozen=True, kw_only=True):
    """Two campaigns compared. `ok`: no flow has become worse, and the evidence of both holds."""

    schema: str = "proofbox.campaign_comparison/1"
    first: str
    """The registered digest of the earlier campaign."""
    second: str
    """The registered digest of the later campaign."""
    comparisons: tuple[Comparison, ...]
    """For each flow of both, the later pass rates compared with the earlier ones."""
    efforts: tuple[EffortComparison, ...]
    """For each flow of both and each measure that is known in both, the later efforts compared with the earlier ones.
    They do not affect `ok`."""
    changed_inputs: tuple[str, ...]
    """Files of missions and oracles that differ, so that a difference may not be due to the flow."""
    only_first: tuple[str, ...]
    """Flows that only the earlier campaign has."""
    only_second: tuple[str, ...]
    """Flows that only the later campaign has."""
    notes: tuple[str, ...] = ()
    """Why the results of one of them are not final, or not those of the whole campaign."""
    findings: tuple[EvidenceFinding, ...] = ()
    error: ErrorBody | None = None

    @property
    def flows(self) -> tuple[str, ...]:
        """The flows that both campaigns have, in the order of `comparisons`."""
        return tuple(each.first.removesuffix(_LATER) for each in self.comparisons)


def compare_campaigns(first: _Path, second: _Path) -> CampaignComparison:
    """Compare the flows that two campaigns have in common, on the missions that both have scores for.

    For example:

        found = proofbox.compare_campaigns("earlier", "out")
        for each in found.comparisons:
            print(each.first, each.verdict, each.difference)

    `first` is the directory of the earlier campaign. Margin, alpha and seed come from the later one. Time, tokens, cost
    and friction are compared as well, in `efforts`: means by mission, over attempts that passed or failed. Costs are
    computed with each campaign's own prices. Raises `UsageError` if they have no flow in common.
    """
    before, now = Path(first), Path(second)
    (old, old_efforts), (new, new_efforts) = load_with_efforts(before), load_with_efforts(now)
    manifests = read_manifest(before), read_manifest(now)
    names = [tuple(flow.flow for flow in report.flows) for report in (old, new)]
    shared = [flow for flow in names[1] if flow in names[0]]
    if not shared:
        raise UsageError(f"{first} and {second} have no flow in common", op="campaign compare")
    fields = manifests[1].document.campaign
    pairs = [((flow + _LATER, _scores(new, flow)), (f"{flow} (earlier)", _scores(old, flow))) for flow in shared]
    comparisons = compare_pairs(pairs, margin=fields.margin, alpha=fields.alpha, seed=fields.seed)
    same_currency = old.results.currency == new.results.currency
    measures = [measure for measure in MEASURES if same_currency or measure != COST]
    efforts = _efforts(shared, measures, old_efforts, new_efforts, alpha=fields.alpha, seed=fields.seed)
    findings = (*old.findings, *new.findings)
    worse = [each.first for each in comparisons if each.verdict is ComparisonVerdict.WORSE]
    error = None
    if findings or worse:
        what = f"{', '.join(worse)}: worse than before" if worse else "the evidence has findings"
        error = ErrorBody.of(CampaignRegressed(what, op="campaign compare"))
    return CampaignComparison(
        ok=error is None,
        first=old.results.sha256,
        second=new.results.sha256,
        comparisons=tuple(comparisons),
        efforts=tuple(efforts),
        changed_inputs=tuple(sorted(_changed(*manifests, shared))),
        only_first=tuple(flow for flow in names[0] if flow not in names[1]),
        only_second=tuple(flow for flow in names[1] if flow not in names[0]),
        notes=(*_notes("earlier", old), *_notes("later", new)),
        findings=findings,
        error=error,
    )


def _notes(which: str, report: CampaignReport) -> Iterator[str]:
    results = report.results
    if results.canary is not None:
        yield f"the {which} campaign is a canary of {counted(len(results.missions), 'mission')}"
    if not report.committed:
        ended, planned = (sum(getattr(flow, name) for flow in report.flows) for name in ("ended", "planned"))
        yield f"the {which} campaign is not committed: {ended} of {counted(planned, 'result')} are known"


def _scores(report: CampaignReport, flow: str) -> MissionScores:
    return {row.mission_id: (row.flows[flow].passed, row.flows[flow].scored) for row in report.results.missions}


def _efforts(
    flows: Sequence[str],
    measures: Sequence[str],
    old: Mapping[str, Efforts],
    new: Mapping[str, Efforts],
    *,
    alpha: float,
    seed: int,
) -> Iterator[EffortComparison]:
    """Compare what both campaigns measured. A measure that is 0 in both says nothing."""
    named = [(flow, measure) for flow in flows for measure in measures]
    pairs = [(new[flow].get(measure, {}), old[flow].get(measure, {})) for flow, measure in named]
    told = [number for number, pair in enumerate(pairs) if any(any(means.values()) for means in pair)]
    for number, means in zip(told, compare_means([pairs[each] for each in told], seed=seed), strict=True):
        if means is not None:
            flow, measure = named[number]
            changed = means.corrected_p < alpha
            change: Change = "unclear" if not changed else "more" if means.difference > 0 else "less"
            yield EffortComparison(flow=flow, measure=measure, means=means, change=change)


def _changed(old: CampaignManifest, new: CampaignManifest, flows: list[str]) -> set[str]:
    found = set()
    for flow in flows:
        a, b = old.run(flow).inputs, new.run(flow).inputs
        found |= {path for path in a.keys() | b.keys() if a.get(path) != b.get(path)}
        if old.run(flow).suite_sha256 != new.run(flow).suite_sha256:
            found.add(f"the missions of {flow}")
    return found
