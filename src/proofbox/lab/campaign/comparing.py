"""Compares a campaign with an earlier one: has a flow become better or worse on the same missions?"""

from __future__ import annotations

import os
from pathlib import Path

from proofbox.core.results import Document, ErrorBody
from proofbox.errors import CampaignRegressed, UsageError
from proofbox.lab.campaign.registration import CampaignManifest, read_manifest
from proofbox.lab.reports.campaigns.loading import load_campaign
from proofbox.lab.reports.campaigns.results import CampaignReport
from proofbox.lab.reports.finding import EvidenceFinding
from proofbox.lab.statistics import Comparison, MissionScores, Verdict, compare_pairs

_Path = str | os.PathLike[str]


class CampaignComparison(Document, frozen=True, kw_only=True):
    """Two campaigns compared. `ok`: no flow has become worse, and the evidence of both holds."""

    schema: str = "proofbox.campaign_comparison/1"
    first: str
    """The registered digest of the earlier campaign."""
    second: str
    """The registered digest of the later campaign."""
    comparisons: tuple[Comparison, ...]
    """For each flow of both, the later results compared with the earlier ones."""
    changed_inputs: tuple[str, ...]
    """Files of missions and oracles that differ, so that a difference may not be due to the flow."""
    only_first: tuple[str, ...]
    """Flows that only the earlier campaign has."""
    only_second: tuple[str, ...]
    """Flows that only the later campaign has."""
    findings: tuple[EvidenceFinding, ...] = ()
    error: ErrorBody | None = None


def compare_campaigns(first: _Path, second: _Path) -> CampaignComparison:
    """Compare the flows that two campaigns have in common, on the missions that both have scores for.

    For example:

        found = proofbox.compare_campaigns("earlier", "out")
        for each in found.comparisons:
            print(each.first, each.verdict, each.difference)

    `first` is the directory of the earlier campaign. Margin, alpha and seed are those of the later one. Raises
    `UsageError` if they have no flow in common.
    """
    before, now = Path(first), Path(second)
    old, new = load_campaign(before), load_campaign(now)
    manifests = read_manifest(before), read_manifest(now)
    names = [tuple(flow.flow for flow in report.flows) for report in (old, new)]
    shared = [flow for flow in names[1] if flow in names[0]]
    if not shared:
        raise UsageError(f"{first} and {second} have no flow in common", op="campaign compare")
    fields = manifests[1].document.campaign
    pairs = [((f"{flow} (later)", _scores(new, flow)), (f"{flow} (earlier)", _scores(old, flow))) for flow in shared]
    comparisons = compare_pairs(pairs, margin=fields.margin, alpha=fields.alpha, seed=fields.seed)
    findings = (*old.findings, *new.findings)
    worse = [each.first for each in comparisons if each.verdict is Verdict.WORSE]
    error = None
    if findings or worse:
        what = f"{', '.join(worse)}: worse than before" if worse else "the evidence has findings"
        error = ErrorBody.of(CampaignRegressed(what, op="campaign compare"))
    return CampaignComparison(
        ok=error is None,
        first=old.results.sha256,
        second=new.results.sha256,
        comparisons=tuple(comparisons),
        changed_inputs=tuple(sorted(_changed(*manifests, shared))),
        only_first=tuple(flow for flow in names[0] if flow not in names[1]),
        only_second=tuple(flow for flow in names[1] if flow not in names[0]),
        findings=findings,
        error=error,
    )


def _scores(report: CampaignReport, flow: str) -> MissionScores:
    return {row.mission_id: (row.flows[flow].passed, row.flows[flow].scored) for row in report.results.missions}


def _changed(old: CampaignManifest, new: CampaignManifest, flows: list[str]) -> set[str]:
    found = set()
    for flow in flows:
        a, b = old.run(flow).inputs, new.run(flow).inputs
        found |= {path for path in a.keys() & b if a[path] != b[path]}
    return found
