"""Checks whether the results of a campaign can be published, and writes the promotion packet if they can."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from proofbox.core.plurals import counted
from proofbox.core.results import Document, ErrorBody
from proofbox.errors import BundleError, CampaignChanged, CampaignNotPublishable
from proofbox.evidence.attest.keys import load_private_key
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.promotion.packet import SUFFIX
from proofbox.evidence.verify.verification import Verification
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.campaign.history import require_known
from proofbox.lab.campaign.registration import CampaignManifest, read_manifest
from proofbox.lab.reports.campaigns.loading import load_campaign, run_path
from proofbox.lab.reports.campaigns.results import CampaignReport
from proofbox.lab.reports.validation import validate

POLICY: Final = "campaign"
_Path = str | os.PathLike[str]


class PublishReason(msgspec.Struct, frozen=True):
    """A condition that is not met."""

    code: str
    detail: str


class PublishCheck(Document, frozen=True, kw_only=True):
    """Whether the results of a campaign can be published. `ok`: they can, and the packet is written."""

    schema: str = "proofbox.campaign_publish_check/1"
    campaign: str
    """The campaign's id."""
    sha256: str
    """The registered digest."""
    reasons: tuple[PublishReason, ...]
    """Every condition that is not met."""
    packet: str | None
    """The promotion packet; null: not written."""
    signed_by: str | None = None
    error: ErrorBody | None = None


def check_publishable(out: _Path = "out", *, sign: _Path | None = None) -> PublishCheck:
    """Check whether the results of a campaign can be published, and if so, write its promotion packet.

    For example:

        found = proofbox.check_publishable("out", sign="release")
        print(found.ok, [each.code for each in found.reasons], found.packet)

    This requires the whole campaign and not a canary, a score for every attempt, all gates passed, strict validation of
    every bundle, and that what was run is exactly what was registered. `sign` is the path of a private key. An existing
    packet is verified and never replaced: with `sign`, it must be signed with that key.
    """
    place = Path(out)
    manifest, report = read_manifest(place), load_campaign(place)
    reasons = tuple(_reasons(place, manifest, report))
    packet, signed_by = None, None
    if not reasons:
        path = f"{report.bundle}{SUFFIX}"
        if os.path.lexists(path):
            found = _verified(path, sign)
            reasons = tuple(_objections(found))
            packet, signed_by = (None, None) if reasons else (path, found.signed_by)
        else:
            made = emit_promotion(report.bundle, policy=POLICY, require_promotable=True, sign=sign)
            packet, signed_by = path, made.signed_by
    error = None
    if reasons:
        first = reasons[0]
        what = f"{counted(len(reasons), 'condition')} not met; first: {first.code}: {first.detail}"
        error = ErrorBody.of(CampaignNotPublishable(what, op="campaign publish-check"))
    return PublishCheck(
        ok=error is None,
        campaign=manifest.campaign,
        sha256=manifest.sha256,
        reasons=reasons,
        packet=packet,
        signed_by=signed_by,
        error=error,
    )


def _verified(packet: str, sign: _Path | None) -> Verification:
    """Verify an existing packet, with the public key that belongs to `sign`."""
    if sign is None:
        return verify(packet)
    with tempfile.NamedTemporaryFile("w", prefix="proofbox-", suffix=".pub") as public:
        public.write(load_private_key(sign).public.pem)
        public.flush()
        return verify(packet, key=public.name)


def _objections(found: Verification) -> Iterator[PublishReason]:
    """Yield why an existing packet is not the one that would be written."""
    for each in found.findings:
        yield PublishReason(each.code, f"{each.detail}; to write a new packet, remove {found.packet}")
    if not found.findings and (found.policy != POLICY or not found.promotable):
        detail = f"{found.packet} exists and was emitted with another policy, or states that it is not promotable"
        yield PublishReason("packet_other", f"{detail}; remove it to write a new one")


def _reasons(out: Path, manifest: CampaignManifest, report: CampaignReport) -> Iterator[PublishReason]:
    results = report.results
    try:
        require_known(manifest, out)
    except CampaignChanged as error:
        yield PublishReason(error.code, error.message)
    if manifest.canary is not None:
        yield PublishReason("canary", "the results of a canary can never be published")
    if not report.committed:
        yield PublishReason("not_committed", "the campaign's bundle is not committed")
    for flow in results.flows:
        if flow.rate.scored != flow.planned:
            without = counted(flow.planned - flow.rate.scored, "result")
            yield PublishReason("coverage_incomplete", f"flow {flow.flow}: {without} without a score")
    for gate in results.gates:
        if not gate.passed:
            yield PublishReason("gate_failed", f"{gate.type} of {gate.flow}: {gate.detail}")
    for each in report.findings:
        yield PublishReason(each.code, f"{each.path}: {each.detail}")
    for run in manifest.runs:
        try:
            findings = validate(load_bundle(out / run_path(run)), strict=True)
        except BundleError as error:
            yield PublishReason(error.code, f"{run_path(run)}: {error.message}")
            continue
        for finding in findings:
            yield PublishReason(finding.code, f"{run_path(run)}/{finding.path}: {finding.detail}")
