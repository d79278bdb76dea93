"""Closes torn attempts, and decides which results of their bundles count.

A bundle counts as it is only if it is intact, its writer committed it as complete, and its documents agree. Any other
bundle is kept, and ends the attempt as an infrastructure failure: success is never inferred.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from proofbox.core.clock import Clock
from proofbox.core.digest import sha256_hex
from proofbox.core.files.atomic import sync_directory
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import (
    BundleError,
    BundleInProgress,
    BundleSchemaUnknown,
    EvidenceIncomplete,
    ProofboxError,
    WorkerLost,
    WorkspaceChanging,
)
from proofbox.evidence.bundle.identity import is_alive
from proofbox.evidence.bundle.index import parse_index
from proofbox.evidence.bundle.paths import INDEX, MAX_INDEX_BYTES, MAX_STATUS_BYTES, STATUS, read_bounded
from proofbox.evidence.bundle.reader import Bundle, load_bundle
from proofbox.evidence.bundle.status import parse_status
from proofbox.evidence.documents import outcome
from proofbox.evidence.documents.shape import ShapeError
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.result import AttemptResult
from proofbox.lab.run.failures import LOST
from proofbox.lab.run.ledger import Attempt, Ended

EXIT_TIMEOUT = 10.0
"""Seconds that a worker may take to die after its conductor."""
UNREADABLE = (ProofboxError, ShapeError, msgspec.MsgspecError, OSError)
"""Errors that a damaged bundle raises when it is read."""


class _ReportFields(AttemptResult, frozen=True, kw_only=True):
    """The parts of an attempt's report that the ledger stores."""

    attempt_id: str
    retry_after: float | None = None


class _TornError(msgspec.Struct, frozen=True):
    code: str


class _TornFields(msgspec.Struct, frozen=True):
    """The part of a torn attempt's document that decides its result."""

    error: _TornError


def close_torn(
    run_dir: Path,
    run_id: str,
    attempt: Attempt,
    redactor: Redactor,
    clock: Clock,
    cause: WorkerLost | None = None,
    *,
    stopped: bool = False,
) -> Ended:
    """End an attempt whose worker died, with the evidence it left. Raises `BundleInProgress` if it may be alive.

    `cause` is a known cause of the death. `stopped`: it died together with its run.
    """
    path = run_dir / attempt.path
    if not os.path.lexists(path / INDEX):
        try:
            _commit(run_dir, run_id, attempt, redactor, clock, cause, stopped=stopped)
        except BundleInProgress:
            raise
        except BundleError:  # it cannot be committed: it stays as it is, and the run's index lists what is missing
            return lost("", cause)
        return lost(_index(path)[0], cause)
    try:
        bundle = load_bundle(path)
        artifacts.require_known_versions(bundle.artifacts)
        return committed_result(bundle, run_id, attempt.id) or lost(bundle.index_sha256, cause)
    except BundleSchemaUnknown:  # a run that another version began, which must not continue here
        raise
    except UNREADABLE:
        return lost(_index(path)[0], cause)


def close_altered(run_dir: Path, run_id: str, attempt: Attempt, redactor: Redactor, clock: Clock) -> Ended:
    """End an attempt as an infrastructure failure because the template that it was mounted over has changed.

    The run is not committed yet, and no index pins the attempt's bundle. It is committed again, without its verdict.
    """
    path = run_dir / attempt.path
    (path / INDEX).unlink(missing_ok=True)
    sync_directory(path)
    _commit(
        run_dir,
        run_id,
        attempt,
        redactor,
        clock,
        WorkspaceChanging(
            "the files that all attempts at the mission share have changed",
            op="attempt",
            fix_hints=["stop the process that writes to the run's template, and run again"],
        ),
    )
    return torn_result(load_bundle(path))


def torn_result(bundle: Bundle) -> Ended:
    """Return the result of an attempt whose verdict does not count, with the reason that its bundle states.

    Raises `UNREADABLE` if the document with the reason is malformed.
    """
    code = msgspec.convert(bundle.read_json(artifacts.TORN), _TornFields).error.code
    ended = lost(bundle.index_sha256)
    if code in LOST:
        return msgspec.structs.replace(ended, infra=code)
    return msgspec.structs.replace(ended, infra=code, reason="infra_failed", retry_after=None)


def as_committed(run_dir: Path, attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return the attempts of a run in progress, without results whose bundle failed or does not match the ledger.

    Raises BundleSchemaUnknown if another version of proofbox wrote the bundle of a result.
    """
    return [each if _is_confirmed(run_dir, each) else _without_result(each) for each in attempts]


def committed_result(
    bundle: Bundle, run_id: str, attempt_id: str, stated: outcome.Outcome | None = None
) -> Ended | None:
    """Return the result stated by an attempt's committed bundle; None if it is missing or inconsistent.

    `stated` is its outcome, if that was read already.
    """
    complete = bundle.index.status in ("ok", "partial") and bundle.status.state == "complete"
    if not complete or bundle.run_id != artifacts.bundle_id(run_id, attempt_id) or artifacts.TORN in bundle.artifacts:
        return None
    report = msgspec.convert(artifacts.read_json(bundle, artifacts.REPORT), _ReportFields)
    found = stated or bundle.read_as(outcome.PATH, outcome.parse_outcome)
    held = found.infra.result == "ok" if report.infra is None else found.infra.result == "failed"
    same = found.verified.result == {"none": "unknown"}.get(report.verified, report.verified)
    if not held or not same or report.attempt_id != attempt_id:
        return None
    return Ended(**report.members, index_sha256=bundle.index_sha256, retry_after=report.retry_after)


def _commit(
    run_dir: Path,
    run_id: str,
    attempt: Attempt,
    redactor: Redactor,
    clock: Clock,
    cause: ProofboxError | None = None,
    *,
    stopped: bool = False,
) -> None:
    """Commit what a worker left, without its verdict. Without a `cause`, the worker died, maybe while writing it."""
    from proofbox.evidence.bundle.writer import BundleWriter  # readers of results write no bundle

    path = run_dir / attempt.path
    # If that document exists, an earlier conductor wrote the rest for the worker, and died as well.
    replaced = os.path.lexists(path / artifacts.TORN)
    set_aside = () if replaced else (artifacts.REPORT, outcome.PATH)
    with BundleWriter.take_over_nested(
        run_dir,
        attempt.path,
        run_id=artifacts.bundle_id(run_id, attempt.id),
        aside=set_aside,
        released=cause is not None or attempt.given_up or _is_unreachable(path),
        redactor=redactor,
        clock=clock,
    ) as bundle:
        how = "the worker process could not commit it" if attempt.given_up else "the worker process died"
        lost_to = cause or WorkerLost(artifacts.STOPPED if stopped else how, op="attempt")
        artifacts.write_torn(bundle, attempt, run_id, lost_to)
        bundle.withhold_secrets()


def _is_unreachable(path: Path) -> bool:
    """Return whether its worker was in another container or on another machine, where its process cannot be checked.

    A worker dies with its conductor, and this process is the run's only conductor, so such a worker cannot be alive. A
    local worker that is still dying is waited for.
    """
    with contextlib.suppress(OSError, ShapeError):
        writer = parse_status(read_bounded(path / STATUS, MAX_STATUS_BYTES)).writer
        deadline = time.monotonic() + EXIT_TIMEOUT
        while (alive := is_alive(writer)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return alive is None
    return False


def lost(index_sha256: str, cause: WorkerLost | None = None) -> Ended:
    """Return the result of an attempt whose worker left none."""
    return Ended(
        claimed="none",
        verified="none",
        infra=WorkerLost.code if cause is None else cause.code,
        reason="worker_lost",
        strategy="",
        index_sha256=index_sha256,
        retry_after=0.0,
    )


def _index(path: Path) -> tuple[str, Literal["ok", "partial", "failed", ""]]:
    """Return the digest of a bundle's index and the status it states; empty strings if there is no index.

    Raises BundleSchemaUnknown if the index lists a document of an attempt with another version than is read.
    """
    digest = ""
    with contextlib.suppress(OSError, ShapeError):
        data = read_bounded(path / INDEX, MAX_INDEX_BYTES)
        digest = sha256_hex(data)
        index = parse_index(data)
        artifacts.require_known_versions(index.artifacts)
        return digest, index.status  # type: ignore[return-value]
    return digest, ""


def _is_confirmed(run_dir: Path, attempt: Attempt) -> bool:
    if attempt.result is None or attempt.result.infra is not None:
        return True
    digest, status = _index(run_dir / attempt.path)
    return digest == attempt.result.index_sha256 and status in ("ok", "partial")


def _without_result(attempt: Attempt) -> Attempt:
    result = attempt.result and msgspec.structs.replace(
        attempt.result, claimed="none", verified="none", infra=EvidenceIncomplete.code
    )
    return msgspec.structs.replace(attempt, result=result)
