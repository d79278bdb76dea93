"""Checks the evidence of attempts and returns their metrics: what `proofbox validate` and `proofbox report` print."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec

from proofbox.core.plurals import counted
from proofbox.core.results import Document, ErrorBody
from proofbox.errors import BundleCorrupt, BundleError, EvidenceIncomplete, RunUnknown
from proofbox.evidence.bundle.listing import notes_on_latest
from proofbox.evidence.bundle.reader import Bundle, as_bundle, load_visiting
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.verify.check import BundleCheck
from proofbox.evidence.verify.pinned_bundles import EXPLORATION, pinned_bundles
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.documents import AttemptReport
from proofbox.lab.campaign.layout import refuse_campaign
from proofbox.lab.reports.finding import EvidenceFinding
from proofbox.lab.reports.validation import RunExamination, attempts_in, notes_on

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
    """The `proofbox.attempt_report/2` of each attempt that has one and whose bundle did not fail."""
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
    the bundle itself does not verify, and `RunUnknown` for a campaign or an exploration, which consist of several.
    """
    examination = RunExamination(strict=strict)
    bundle = _load_run(path, "proofbox validate", examination.add)
    found = tuple(examination.findings(bundle))
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

    `path` is as in `validate`. With `strict`, the findings of strict validation are included.
    """
    reports: dict[str, dict[str, Any] | BundleError] = {}
    examination = RunExamination(strict=True) if strict else None

    def read(run: Bundle | BundleCheck, place: str, attempt: Bundle) -> None:
        if examination is not None:
            examination.add(run, place, attempt)
        if artifacts.REPORT in attempt.artifacts and attempt.index.status != "failed":
            reports[place] = _report_of(attempt)

    bundle = _load_run(path, "proofbox report", read)
    attempts = attempts_in(bundle)
    if "" in attempts:
        read(bundle, "", bundle)
    found = () if examination is None else tuple(examination.findings(bundle))
    return MetricsReport(
        ok=not found,
        run_id=bundle.run_id,
        reports=tuple(_readable(reports[place]) for place in attempts if place in reports),
        findings=found,
        notes=_notes(path, bundle),
        error=_incomplete(found),
    )


def _load_run(path: _Path, command: str, read: Callable[[BundleCheck, str, Bundle], None]) -> Bundle:
    """Load a run or an attempt. `read` is called with each bundle in it that verifies, as long as it is in memory."""

    def visit(run: BundleCheck, place: str, inner: BundleCheck) -> None:
        if inner.ok:
            read(run, place, as_bundle(inner))

    try:
        bundle = load_visiting(path, visit)
    except BundleError:
        refuse_campaign(Path(path), command)  # one that is not committed yet
        raise
    refuse_campaign(Path(bundle.path), command)
    if EXPLORATION in bundle.artifacts:
        branches: list[Path] = []
        with contextlib.suppress(ShapeError):
            branches = [Path(each.base) / each.path for each in pinned_bundles(bundle)]
        raise RunUnknown(
            f"{bundle.path} is an exploration, not a run; its branches are separate attempts",
            op="validate",
            fix_hints=[f"name a branch: {command} {quote(str(each))}" for each in branches[:3]]
            or ["see why no branch started in exploration.json"],
        )
    return bundle


def _report_of(bundle: Bundle) -> dict[str, Any] | BundleError:
    """Return the report of an attempt, or why it is unreadable, which matters only if the run verifies."""
    try:
        found: dict[str, Any] = artifacts.read_json(bundle, artifacts.REPORT)
        msgspec.convert(found, AttemptReport)
    except msgspec.ValidationError as error:
        message = f"{artifacts.REPORT} of {bundle.run_id} is malformed: {error}"
        return BundleCorrupt(message, op="report")
    except BundleError as error:
        return error
    return found


def _readable(report: dict[str, Any] | BundleError) -> dict[str, Any]:
    if isinstance(report, BundleError):
        raise report
    return report


def _notes(path: _Path, bundle: Bundle) -> tuple[str, ...]:
    named, *newer = notes_on_latest(path, bundle.path) or [""]
    return (*((named, *newer) if newer else ()), *notes_on(bundle))


def _incomplete(found: tuple[EvidenceFinding, ...]) -> ErrorBody | None:
    if not found:
        return None
    what = f"{counted(len(found), 'finding')}, the first: {found[0].code} in {found[0].path}"
    return ErrorBody.of(EvidenceIncomplete(what, op="validate"))
