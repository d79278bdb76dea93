"""Checks the evidence of attempts and returns their metrics: what `proofbox validate` and `proofbox report` print."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from proofbox.core.plurals import counted
from proofbox.core.results import Document, ErrorBody
from proofbox.errors import BundleCorrupt, BundleError, EvidenceIncomplete
from proofbox.evidence.bundle.listing import notes_on_latest
from proofbox.evidence.bundle.reader import Bundle, load_bundle
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.documents import AttemptReport
from proofbox.lab.campaign.registration import refuse_campaign
from proofbox.lab.reports.finding import EvidenceFinding
from proofbox.lab.reports.validation import attempts_in, notes_on
from proofbox.lab.reports.validation import validate as validate_bundle

_Path = str | os.PathLike[str]


class Validation(Document, frozen=True, kw_only=True):
    """Whether the evidence of attempts is complete and consistent. `ok`: there are no findings."""

    schema: str = "proofbox.validate/1"
    run_id: str
    attempts: int
    findings: tuple[EvidenceFinding, ...]
    notes: tuple[str, ...]
    """Remarks that are not findings: newer incomplete runs, and attempts that were replaced."""
    error: ErrorBody | None = None


class MetricsReport(Document, frozen=True, kw_only=True):
    """The metrics of attempts. `ok`: there are no findings."""

    schema: str = "proofbox.report/1"
    run_id: str
    reports: tuple[dict[str, Any], ...]
    """The `proofbox.attempt_report/1` of each attempt that has one and whose bundle did not fail."""
    findings: tuple[EvidenceFinding, ...]
    notes: tuple[str, ...]
    """Remarks that are not findings: newer incomplete runs, and attempts that were replaced."""
    error: ErrorBody | None = None


def validate(path: _Path = "out", *, strict: bool = False) -> Validation:
    """Check that the evidence of attempts is complete and consistent.

    For example:

        for finding in proofbox.validate("out", strict=True).findings:
            print(finding.code, finding.path, finding.detail)

    `path` is a run's directory, an attempt's, or an output directory, for its LATEST run. With `strict`, attempts with
    infrastructure failures must be complete as well, unless another attempt replaced them. Raises `BundleCorrupt` if
    the bundle itself does not verify, and `RunUnknown` for a campaign: its flows have one run each.
    """
    bundle = _load_run(path, "proofbox validate")
    found = tuple(validate_bundle(bundle, strict=strict))
    return Validation(
        ok=not found,
        run_id=bundle.run_id,
        attempts=len(attempts_in(bundle)),
        findings=found,
        notes=_notes(path, bundle),
        error=_incomplete(found),
    )


def report(path: _Path = "out", *, strict: bool = False) -> MetricsReport:
    """Return the metrics of attempts (calls, failures, retries, durations, tokens), only from verified evidence.

    For example:

        for each in proofbox.report("out").reports:
            print(each["attempt_id"], each["verified"], each["tool_calls"], each["tokens"])

    `path` is that of `validate`. With `strict`, the findings of strict validation are included.
    """
    bundle = _load_run(path, "proofbox report")
    reports = tuple(
        _report_of(inner)
        for inner in attempts_in(bundle).values()
        if artifacts.REPORT in inner.artifacts and inner.index.status != "failed"
    )
    found = tuple(validate_bundle(bundle, strict=True)) if strict else ()
    return MetricsReport(
        ok=not found,
        run_id=bundle.run_id,
        reports=reports,
        findings=found,
        notes=_notes(path, bundle),
        error=_incomplete(found),
    )


def _load_run(path: _Path, command: str) -> Bundle:
    try:
        bundle = load_bundle(path)
    except BundleError:
        refuse_campaign(Path(path), command)  # one that is not committed yet
        raise
    refuse_campaign(Path(bundle.path), command)
    return bundle


def _report_of(bundle: Bundle) -> dict[str, Any]:
    found: dict[str, Any] = bundle.read_json(artifacts.REPORT, schema="proofbox.attempt_report/1")
    try:
        msgspec.convert(found, AttemptReport)
    except msgspec.ValidationError as error:
        message = f"{artifacts.REPORT} of {bundle.run_id} is malformed: {error}"
        raise BundleCorrupt(message, op="report") from None
    return found


def _notes(path: _Path, bundle: Bundle) -> tuple[str, ...]:
    named, *newer = notes_on_latest(path, bundle.path) or [""]
    return (*((named, *newer) if newer else ()), *notes_on(bundle))


def _incomplete(found: tuple[EvidenceFinding, ...]) -> ErrorBody | None:
    if not found:
        return None
    what = f"{counted(len(found), 'finding')}, the first: {found[0].code} in {found[0].path}"
    return ErrorBody.of(EvidenceIncomplete(what, op="validate"))
