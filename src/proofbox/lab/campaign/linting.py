"""Checks a campaign file, and whether its flows can run here, without running any of them."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote

import msgspec

from proofbox.config.consent import Widening
from proofbox.core.results import Document, ErrorBody
from proofbox.core.spec_files.problems import Problem
from proofbox.errors import CampaignInvalid, CampaignNotReady, ConsentRequired, ProofboxError
from proofbox.lab.campaign.preflight import PreflightFailure, preflight
from proofbox.lab.campaign.reading import read_campaign
from proofbox.lab.campaign.registration import describe, requests, require_consent


class CampaignLint(Document, frozen=True, kw_only=True):
    """The problems of a campaign file. `ok`: it is valid, and all its flows can run here."""

    schema: str = "proofbox.campaign_lint/1"
    campaign: str | None
    """The campaign's id; null: the file is invalid."""
    flows: tuple[str, ...] = ()
    """The ids of the flows."""
    missions: tuple[str, ...] = ()
    """The ids of the selected missions."""
    attempts: int = 0
    """Planned attempts, without retries."""
    sha256: str | None = None
    """The digest that would be registered now; null: the campaign cannot be run."""
    problems: tuple[Problem, ...] = ()
    failures: tuple[PreflightFailure, ...] = ()
    """What prevents flows from running here. Runtimes and sandboxes are checked only with your consent to `widenings`:
    without it, `error` is `SANDBOX_CONSENT_REQUIRED`."""
    widenings: tuple[Widening, ...] = ()
    """What the campaign asks for beyond your settings. `campaign run` needs your consent to it."""
    error: ErrorBody | None = None


def lint_campaign(spec: str | os.PathLike[str], *, trust: bool = False) -> CampaignLint:
    """Return every problem of a campaign file, and everything that prevents its flows from running here.

    For example:

        found = proofbox.lint_campaign("campaign.toml")
        for each in found.failures:
            print(each.flow, each.code, each.message, each.fix_hints)

    Runtimes, keys, sandboxes, disk space and budget are checked as before a run. Checking a runtime may run a program
    that the campaign names. So runtimes and sandboxes are checked only with the user's consent to everything that the
    campaign asks for; `trust` is that consent. A missing file raises `NotFoundError`.
    """
    try:
        campaign = read_campaign(Path(spec))
    except CampaignInvalid as invalid:
        problems = msgspec.convert(invalid.details.get("problems", []), tuple[Problem, ...])
        return CampaignLint(ok=False, campaign=None, problems=problems, error=ErrorBody.of(invalid))
    failures: tuple[PreflightFailure, ...] = ()
    error: ProofboxError | None = None
    try:
        require_consent(campaign, trust=trust, command=f"proofbox campaign lint {quote(os.fspath(spec))} --trust")
    except ConsentRequired as required:
        error = required
    consented = error is None
    try:
        preflight(campaign, Path(), consented=consented)
    except CampaignNotReady as unready:
        failures = msgspec.convert(unready.details["failures"], tuple[PreflightFailure, ...])
        error = error or unready
    return CampaignLint(
        ok=error is None,
        campaign=campaign.id,
        flows=tuple(campaign.suites),
        missions=campaign.missions,
        attempts=len(campaign.suites) * len(campaign.missions) * campaign.document.campaign.replicates,
        sha256=describe(campaign, Path("out")).sha256 if error is None else None,
        failures=failures,
        widenings=requests(campaign),
        error=None if error is None else ErrorBody.of(error),
    )
