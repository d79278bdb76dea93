"""The results of a run, read from its evidence once it is committed.

The ledger directs a run in progress. Once the run is committed its bundle is the record: results are read from the
attempts' bundles, which the run's index covers, and a ledger that differs is a finding.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from proofbox.errors import BundleError, EvidenceIncomplete
from proofbox.evidence.bundle.paths import INDEX, MAX_JSON_BYTES
from proofbox.evidence.bundle.reader import Bundle, as_bundle
from proofbox.evidence.documents.outcome import Outcome
from proofbox.evidence.documents.schedule import PATH as SCHEDULE
from proofbox.evidence.documents.schedule import ScheduledAttempt, read_schedule
from proofbox.evidence.verify.check import BundleCheck, check_bundle
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt_metrics import node_in
from proofbox.lab.reports.finding import EvidenceFinding
from proofbox.lab.run.closing import UNREADABLE, as_committed, committed_result, lost, torn_result
from proofbox.lab.run.ledger import Attempt, Ended, Ledger

if TYPE_CHECKING:
    from proofbox.lab.run.plan import Plan

DISAGREES = "ledger_disagrees"
UNWARRANTED = "retry_unwarranted"
_ENVIRONMENT = "environment.json"
_EPOCH = re.compile(r"\.e([0-9]{1,9})\Z")


@dataclass(frozen=True, slots=True)
class RunResults:
    """The plan, the attempts and the results of a run."""

    attempts: tuple[Attempt, ...]
    """Of a committed run: from the evidence, in the order of the schedule; an attempt with invalid evidence has no
    result. Before the commit: from the ledger."""
    committed: bool
    plan: Plan
    """With the suite and isolation that the evidence states."""
    findings: tuple[EvidenceFinding, ...]
    """Of a committed run: problems with its evidence, and differences between ledger and evidence."""
    nodes: Mapping[str, str | None] = field(default_factory=dict)
    """Of a committed run: the nodes of a cluster that ran attempts with valid evidence, by the attempt's path."""


def read_run(run_dir: Path, ledger: Ledger, visit: Callable[[str, Bundle], None] | None = None) -> RunResults:
    """Read the results of a run: from its evidence once it is committed, and from its ledger until then.

    `visit` is called with the path and the bundle of each attempt of a committed run whose evidence is valid.
    """
    from proofbox.lab.run.plan import read_plan  # readers without a ledger do not need it

    plan, recorded = read_plan(ledger), ledger.attempts()
    if ledger.get_value("committed") == "yes" or os.path.lexists(run_dir / INDEX):
        return _committed(run_dir, recorded, plan, visit)
    return RunResults(tuple(as_committed(run_dir, recorded)), False, plan, ())


class StatedAttempt(NamedTuple):
    """What a verified bundle states about its attempt."""

    attempt_id: str
    """The id in the bundle's own id."""
    mission: str | None
    replicate: int | None
    result: Ended | None
    """None if it is missing or inconsistent."""
    torn: Ended | None
    """The result of a torn attempt; None if its document is missing or malformed."""
    node: str | None

    @classmethod
    def read(cls, bundle: Bundle, run_id: str, stated: Outcome | None = None) -> StatedAttempt:
        """`run_id` is the id of the run that contains the bundle; empty without a run. `stated` is the bundle's
        outcome, if that was read already. Raises BundleSchemaUnknown if another version wrote the bundle."""
        attempt_id = bundle.run_id.removeprefix(f"{run_id}." if run_id else "")
        artifacts.require_known_versions(bundle.artifacts)
        named = _named(bundle)
        result = torn = None
        with contextlib.suppress(*UNREADABLE):
            result = committed_result(bundle, run_id, attempt_id, stated)
        if result is None and artifacts.TORN in bundle.artifacts:
            with contextlib.suppress(*UNREADABLE):
                torn = torn_result(bundle)
        return cls(
            attempt_id,
            str(named["mission_id"]) if "mission_id" in named else None,
            named.get("replicate"),
            result,
            torn,
            node_in(bundle),
        )


def _committed(
    run_dir: Path, recorded: Sequence[Attempt], plan: Plan, visit: Callable[[str, Bundle], None] | None
) -> RunResults:
    stated: dict[str, StatedAttempt] = {}

    def read(_: BundleCheck, path: str, inner: BundleCheck) -> None:
        if inner.ok:
            bundle = as_bundle(inner)
            stated[path] = StatedAttempt.read(bundle, plan.run_id)
            if visit is not None:
                visit(path, bundle)

    checked = check_bundle(str(run_dir), visit=read)
    findings = [EvidenceFinding(each.code, each.path, each.detail) for each in checked.findings]
    rows = {each.id: each for each in recorded}
    planned = checked.schedule
    if planned is None:  # reported as a finding already
        planned = {each.id: ScheduledAttempt(each.id, each.path, each.parent) for each in recorded}
    attempts = []
    for number, each in enumerate(planned.values(), 1):
        row = rows.pop(each.attempt, None)
        attempt, complete = _attempt(number, each, stated.get(each.path), row)
        attempts.append(attempt)
        findings += _disagreements(attempt, row, complete=complete)
    for row in rows.values():
        findings.append(
            EvidenceFinding(DISAGREES, row.path, f"the run's ledger has attempt {row.id}, which was never planned")
        )
    findings += _unwarranted(attempts)
    stated_plan = _stated_plan(checked, plan)
    in_plan = (("suite_source", plan.source_name), ("isolation", _ENVIRONMENT), ("chain", _ENVIRONMENT))
    for name, path in in_plan:
        if getattr(stated_plan, name) != getattr(plan, name):
            findings.append(EvidenceFinding(DISAGREES, path, "the run's ledger has a different value"))
    nodes = {path: each.node for path, each in stated.items()}
    return RunResults(tuple(attempts), True, stated_plan, tuple(findings), nodes)


def attempts_by_evidence(run: Bundle) -> tuple[list[Attempt], bool]:
    """Return the attempts of a verified run with the results stated in their bundles, and whether all state one."""
    stated = {path: StatedAttempt.read(inner, run.run_id) for path, inner in run.nested.items()}
    return stated_attempts(read_schedule(run.read_log(SCHEDULE)), stated)


def stated_attempts(
    planned: Mapping[str, ScheduledAttempt], stated: Mapping[str, StatedAttempt]
) -> tuple[list[Attempt], bool]:
    """Return the planned attempts of a run with the results that their bundles state, and whether all state one."""
    found = [_attempt(number, each, stated.get(each.path), None) for number, each in enumerate(planned.values(), 1)]
    return [attempt for attempt, _ in found], all(complete for _, complete in found)


def attempt_by_evidence(bundle: Bundle) -> Attempt:
    """Return the attempt of a verified bundle with the result that the bundle states."""
    named = _named(bundle)
    attempt_id = str(named.get("attempt_id", bundle.run_id))
    planned = ScheduledAttempt(attempt_id, "", named.get("parent"), index_sha256=bundle.index_sha256)
    return _attempt(1, planned, StatedAttempt.read(bundle, str(named.get("run_id", ""))), None)[0]


def _attempt(
    number: int, planned: ScheduledAttempt, stated: StatedAttempt | None, row: Attempt | None
) -> tuple[Attempt, bool]:
    """Return an attempt as its bundle records it, and whether the bundle states a result."""
    result, mission, replicate = None, None, None
    if stated is not None:
        mission, replicate = stated.mission, stated.replicate
        result = stated.result if stated.attempt_id == planned.attempt else None
    complete = result is not None
    if result is None and stated is not None:
        result = stated.torn
    if result is None:
        result = lost(planned.index_sha256 or "")
        if planned.index_sha256 is not None:
            result = msgspec.structs.replace(result, infra=EvidenceIncomplete.code, reason="evidence_incomplete")
    epoch = _EPOCH.search(planned.path)
    found = Attempt(
        number=number,
        id=planned.attempt,
        mission=("" if row is None else row.mission) if mission is None else mission,
        replicate=(0 if row is None else row.replicate) if replicate is None else replicate,
        parent=planned.parent,
        state="ended",
        epoch=int(epoch[1]) if epoch else 0,
        phase="ended",
        result=result,
    )
    return found, complete


def _named(bundle: Bundle) -> Mapping[str, Any]:
    """Return the document that names the mission of an attempt."""
    for name in (artifacts.ATTEMPT, artifacts.TORN):
        if name in bundle.artifacts:
            try:
                document = bundle.read_json(name)
            except BundleError:
                continue
            if isinstance(document, dict) and type(document.get("replicate")) is int:
                return document
    return {}


def _disagreements(attempt: Attempt, row: Attempt | None, *, complete: bool) -> Iterator[EvidenceFinding]:
    if row is None:
        yield EvidenceFinding(DISAGREES, attempt.path, f"the run's ledger has no attempt {attempt.id}")
        return
    ours, theirs = _facts(attempt, complete=complete), _facts(row, complete=complete)
    for name in ours:
        if ours[name] != theirs[name]:
            detail = f"{name}: {str(theirs[name])[:100]} in the run's ledger, {str(ours[name])[:100]} in the evidence"
            yield EvidenceFinding(DISAGREES, attempt.path, detail)


def _unwarranted(attempts: Sequence[Attempt]) -> Iterator[EvidenceFinding]:
    """Yield the retries of attempts that did not fail because of the infrastructure: they would replace a result."""
    by_id = {each.id: each for each in attempts}
    for each in attempts:
        parent = by_id.get(each.parent or "")
        if parent is not None and parent.result is not None and parent.result.infra is None:
            yield EvidenceFinding(UNWARRANTED, each.path, f"it retries {parent.id}, which has a result")


def _facts(attempt: Attempt, *, complete: bool) -> dict[str, Any]:
    """Return the facts on which ledger and evidence must agree."""
    facts: dict[str, Any] = {
        "mission": attempt.mission,
        "replicate": attempt.replicate,
        "parent": attempt.parent,
        "path": attempt.path,
    }
    result = attempt.result
    if result is None:
        return facts | dict.fromkeys(("claimed", "verified", "infra", "reason", "index"))
    facts |= {"claimed": result.claimed, "verified": result.verified}
    if not complete:
        return facts | {"infra": result.infra is not None}
    return facts | {"infra": result.infra, "reason": result.reason, "index": result.index_sha256}


def _stated_plan(checked: BundleCheck, plan: Plan) -> Plan:
    """Return the plan as stated by the evidence; unreadable parts are reported as findings already."""
    try:
        bundle = as_bundle(checked)
        source = bundle.read_bytes(plan.source_name, limit=MAX_JSON_BYTES).decode()
        environment = bundle.read_json(_ENVIRONMENT)
        isolation, chain = environment["isolation"], environment["chain"]["strategies"]
    except (BundleError, UnicodeDecodeError, KeyError, TypeError):
        return plan
    return msgspec.structs.replace(plan, suite_source=source, isolation=isolation, chain=chain)
