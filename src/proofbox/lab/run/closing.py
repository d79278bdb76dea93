"""Attempts that nobody works on any more, and what of their bundles can be relied on.

A bundle counts as it is only when it is whole, its writer committed it as complete, and its documents tell one story.
Whatever else is found is kept, and ends the attempt as an infra failure: success is never inferred.
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
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import BundleError, BundleInProgress, EvidenceIncomplete, ProofboxError, WorkerLost
from proofbox.evidence.bundle.identity import is_alive
from proofbox.evidence.bundle.index import parse_index
from proofbox.evidence.bundle.paths import INDEX, MAX_INDEX_BYTES, MAX_STATUS_BYTES, STATUS, read_bounded
from proofbox.evidence.bundle.reader import Bundle, load_bundle
from proofbox.evidence.bundle.status import parse_status
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.evidence.documents import outcome
from proofbox.evidence.documents.shape import ShapeError
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.claims import Claim
from proofbox.lab.attempt.documents import Verified
from proofbox.lab.run.ledger import Attempt, Ended

DYING = 10.0
"""Seconds that a worker may take to die after its conductor."""
DAMAGED = (ProofboxError, ShapeError, msgspec.MsgspecError, OSError)
"""Errors that a damaged bundle raises when it is read."""


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    """Of an attempt's report what the ledger keeps."""

    attempt_id: str
    claimed: Claim
    verified: Verified
    infra: str | None
    reason: str
    strategy: str | None
    retry_after: float | None


def close_torn(run_dir: Path, run_id: str, attempt: Attempt, redactor: Redactor, clock: Clock) -> Ended:
    """End an attempt whose worker is gone, with what it had. Raises where that worker may still be writing."""
    path = run_dir / attempt.path
    if not os.path.lexists(path / INDEX):
        try:
            _commit(run_dir, run_id, attempt, redactor, clock)
        except BundleInProgress:
            raise
        except BundleError:  # nothing can be made of it: it stays as it is, and the run's index says what it lacks
            return lost("")
        return lost(_index(path)[0])
    try:
        return stated(load_bundle(path), run_id, attempt.id) or lost(_index(path)[0])
    except DAMAGED:
        return lost(_index(path)[0])


def as_committed(run_dir: Path, attempts: Iterable[Attempt]) -> list[Attempt]:
    """The attempts of a run under way, without the results of those whose bundle failed or is another one."""
    return [each if _borne_out(run_dir, each) else _without_result(each) for each in attempts]


def stated(bundle: Bundle, run_id: str, attempt_id: str) -> Ended | None:
    """The result that an attempt's committed bundle states; None: it states none, or contradicts itself."""
    complete = bundle.index.status in ("ok", "partial") and bundle.status.state == "complete"
    if not complete or bundle.run_id != f"{run_id}.{attempt_id}" or artifacts.TORN in bundle.artifacts:
        return None
    said = msgspec.convert(bundle.read_json(artifacts.REPORT, schema="proofbox.attempt_report/1"), _Said)
    found = outcome.parse_outcome(bundle.read_json(outcome.PATH))
    held = found.infra.result == "ok" if said.infra is None else found.infra.result == "failed"
    same = found.verified.result == {"none": "unknown"}.get(said.verified, said.verified)
    if not held or not same or said.attempt_id != attempt_id:
        return None
    return Ended(
        claimed=said.claimed,
        verified=said.verified,
        infra=said.infra,
        reason=said.reason,
        strategy=said.strategy or "",
        index_sha256=bundle.index_sha256,
        retry_after=said.retry_after,
    )


def _commit(run_dir: Path, run_id: str, attempt: Attempt, redactor: Redactor, clock: Clock) -> None:
    """Commit what a dead worker left. It may have died while it wrote its verdict, which then counts for nothing."""
    writer = BundleWriter.nested_in(
        run_dir, attempt.path, run_id=f"{run_id}.{attempt.id}", redactor=redactor, clock=clock
    )
    # With that document there, the rest was said in the worker's place already, by one who died as well.
    replaced = os.path.lexists(writer.path / artifacts.TORN)
    said = () if replaced else (artifacts.REPORT, outcome.PATH)
    released = attempt.given_up or _beyond_sight(writer.path)
    with writer.taking_over(aside=said, released=released) as bundle:
        how = "could not commit it" if attempt.given_up else "died"
        artifacts.write_torn(bundle, attempt, run_id, WorkerLost(f"the process that ran it {how}", op="attempt"))
        bundle.withhold_secrets()


def _beyond_sight(path: Path) -> bool:
    """Whether its worker was in another container or on another machine, where nobody can look for it from here.

    A worker dies with its conductor, and whoever closes this conducts the run alone: it can't be alive. One that is
    seen to be dying is waited for.
    """
    with contextlib.suppress(OSError, ShapeError):
        writer = parse_status(read_bounded(path / STATUS, MAX_STATUS_BYTES)).writer
        patience = time.monotonic() + DYING
        while (alive := is_alive(writer)) and time.monotonic() < patience:
            time.sleep(0.02)
        return alive is None
    return False


def lost(index_sha256: str) -> Ended:
    """The result of an attempt whose worker left none."""
    return Ended(
        claimed="none",
        verified="none",
        infra=WorkerLost.code,
        reason="worker_lost",
        strategy="",
        index_sha256=index_sha256,
        retry_after=0.0,
    )


def _index(path: Path) -> tuple[str, Literal["ok", "partial", "failed", ""]]:
    """The digest of a bundle's index, and the status it states; empty, where there is none."""
    digest = ""
    with contextlib.suppress(OSError, ShapeError):
        data = read_bounded(path / INDEX, MAX_INDEX_BYTES)
        digest = sha256_hex(data)
        return digest, parse_index(data).status  # type: ignore[return-value]
    return digest, ""


def _borne_out(run_dir: Path, attempt: Attempt) -> bool:
    if attempt.result is None or attempt.result.infra is not None:
        return True
    digest, status = _index(run_dir / attempt.path)
    return digest == attempt.result.index_sha256 and status in ("ok", "partial")


def _without_result(attempt: Attempt) -> Attempt:
    result = attempt.result and msgspec.structs.replace(
        attempt.result, claimed="none", verified="none", infra=EvidenceIncomplete.code
    )
    return msgspec.structs.replace(attempt, result=result)
