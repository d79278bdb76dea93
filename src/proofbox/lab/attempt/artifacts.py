"""The documents of an attempt's bundle: their names and how they are filled. They are the same for every runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from proofbox.agents.contract import TurnResult
from proofbox.agents.environment import EnvironmentRecord
from proofbox.agents.strategies import CandidateResult
from proofbox.core.digest import sha256_file
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import BundleSchemaUnknown, CorruptError, ProofboxError, WorkerLost
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.documents import outcome, tree
from proofbox.lab.attempt.claims import Feedback
from proofbox.lab.attempt.cleaning import encodable
from proofbox.lab.attempt.documents import (
    AttemptEnvironment,
    AttemptRecord,
    AttemptReport,
    AttemptVerification,
    FinalSnapshot,
    ForkedFrom,
    NodeRecord,
    Requested,
    RequestedLimits,
    Resources,
    RunnerRef,
    SuiteNamed,
    TornAttempt,
)
from proofbox.lab.attempt.expectations import UnmetCondition
from proofbox.lab.attempt.result import AttemptResult
from proofbox.lab.attempt.states import StateEntered
from proofbox.lab.attempt.trace import CALLS, EVENTS, EXCHANGES, STEPS
from proofbox.lab.attempt.verifier import VerifierResult
from proofbox.lab.run.ledger import Attempt
from proofbox.lab.suite.spec import Isolation, Mission, comparability

if TYPE_CHECKING:
    from proofbox.evidence.bundle.index import Artifact
    from proofbox.evidence.bundle.reader import Bundle
    from proofbox.evidence.bundle.writer import BundleWriter
    from proofbox.lab.attempt.final_tree import SharedBase
    from proofbox.workspace.model import Snapshot
    from proofbox.workspace.store.objects import ObjectStore
    from proofbox.workspace.workspace import Workspace

T = TypeVar("T")
ATTEMPT, PROMPT, RUNNER = "attempt.json", "prompt.txt", "runner.ref.json"
FEEDBACK, REPORT = "feedback.json", "attempt.report.json"
TORN = "attempt.torn.json"
STOPPED = "the run was stopped, and its worker with it"
"""The message of the error in that document if an attempt was lost because its whole run was stopped or killed."""
NODE = "node.json"
"""Only of attempts on a cluster."""
CLEANUP = "cleanup.json"
"""Only of missions with cleanup commands."""

EXPECTED = (ATTEMPT, PROMPT, RUNNER, FEEDBACK, REPORT, outcome.PATH, CALLS, STEPS, EVENTS, tree.PATH)
"""The artifacts of a complete attempt. After an infrastructure failure some are missing, and the bundle is partial."""

VERSIONS = {
    ATTEMPT: "proofbox.attempt/2",
    RUNNER: "proofbox.runner_ref/1",
    FEEDBACK: "proofbox.feedback/1",
    REPORT: "proofbox.attempt_report/2",
    TORN: "proofbox.torn_attempt/1",
    NODE: "proofbox.node/1",
}
"""The versions of an attempt's documents that are read."""
LINE_VERSIONS = {
    CALLS: "proofbox.tool_call/2",
    STEPS: "proofbox.step/2",
    EXCHANGES: "proofbox.model_exchange/1",
}
"""The versions of the lines of its logs. The lines of `EVENTS` have that of `ATTEMPT`."""

DETAIL = 4000
_ELSEWHERE = ("policy", "observed", "variables")
"""Facts of a session that the report (`resources`) and the record (`environment`) contain."""


class FinishedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about an attempt when it ends."""

    attempt: Attempt
    run_id: str
    timeout: float | None
    policy: dict[str, Any]
    fork: ForkedFrom | None
    node: NodeRecord | None
    suite_id: str
    suite_sha256: str
    mission: Mission
    chain: str
    considered: tuple[CandidateResult, ...]
    isolation: Isolation
    detail: str
    infra: ProofboxError | None
    states: tuple[StateEntered, ...]
    runner: Mapping[str, Any]
    environment: EnvironmentRecord | None
    result: TurnResult | None
    feedback: Feedback
    outcome: AttemptResult
    checked: VerifierResult
    final: FinalSnapshot | None
    unmet: tuple[UnmetCondition, ...]
    report: Mapping[str, Any]
    tokens: Mapping[str, Any]
    retry_after: float | None
    written_at: str


def bundle_id(run_id: str, attempt_id: str) -> str:
    """Return the id of an attempt's bundle. An attempt outside a run has no run id in it."""
    return f"{run_id}.{attempt_id}" if run_id else attempt_id


def require_known_versions(listed: Mapping[str, Artifact]) -> None:
    """Raise BundleSchemaUnknown if an index lists a document of an attempt with another version than is read.

    Such an attempt must not count as damaged or as lost: a newer proofbox may have written it.
    """
    for name, known in VERSIONS.items():
        if name in listed and listed[name].schema_version != known:
            raise _unknown(name, listed[name].schema_version, known)


def read_json(bundle: Bundle, name: str) -> Any:
    """Read a document of a verified attempt. Raises BundleSchemaUnknown if it has another version than is read."""
    return bundle.read_json(name, schema=VERSIONS[name])


def read_log(bundle: Bundle, name: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of a log of a verified attempt. Raises BundleSchemaUnknown at a line with another version."""
    known = LINE_VERSIONS[name]
    for entry in bundle.read_log(name):
        if entry.get("schema_version") != known:
            raise _unknown(f"line {entry['seq'] + 1} of {name}", entry.get("schema_version"), known)
        yield entry


def _unknown(what: str, stated: object, known: str) -> BundleSchemaUnknown:
    return BundleSchemaUnknown(f"{what} has schema_version {str(stated)[:100]!r}; expected {known!r}", op="attempt")


def read_document(bundle: Bundle, name: str, kind: type[T]) -> T:
    """Read a document like `read_json`. Raises CorruptError if it is malformed."""
    try:
        return msgspec.convert(read_json(bundle, name), kind)
    except msgspec.ValidationError as error:
        raise CorruptError(f"{name} of {bundle.path} is malformed: {error}", op="attempt") from None


def index_sha256(bundle: Path) -> str:
    return sha256_file(bundle / INDEX)[0]


def write_all(bundle: BundleWriter, facts: FinishedAttempt, redactor: Redactor) -> None:
    """Write every document except those that were written during the attempt."""
    documents: dict[str, Any] = {
        ATTEMPT: _attempt(facts),
        RUNNER: RunnerRef(**{**facts.runner, **_facts(facts.runner)}),
        FEEDBACK: facts.feedback.document(),
        outcome.PATH: _outcome(facts, redactor).as_json(),
        REPORT: _report(facts),
    }
    if facts.node is not None:
        documents[NODE] = facts.node
    for name, document in documents.items():
        bundle.write_json(name, encodable(redactor.redact_json(msgspec.to_builtins(document))))
    if facts.infra is not None:
        bundle.mark_partial(f"infra: {facts.infra.code}")
    if facts.isolation == "shared":
        bundle.mark_partial("shared isolation: other attempts could reach this one")


def _facts(runner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of the session that are in no other document."""
    if "facts" not in runner:
        return {}
    return {"facts": {name: value for name, value in runner["facts"].items() if name not in _ELSEWHERE}}


def _environment(record: EnvironmentRecord | None, received: Iterable[str]) -> AttemptEnvironment | None:
    """`received` lists all variables of the agent's process, as reported by the runtime that started it."""
    if record is None:
        return None
    boxed = sorted(set(received) - {*record.allowed, *record.asked, *record.granted})
    return AttemptEnvironment(**msgspec.structs.asdict(record), boxed=tuple(boxed))


def write_torn(bundle: BundleWriter, attempt: Attempt, run_id: str, lost: ProofboxError) -> None:
    """Write the documents for a worker that died or whose verdict does not count, next to those that it had written."""
    torn = TornAttempt(
        attempt_id=attempt.id,
        run_id=run_id,
        mission_id=attempt.mission,
        replicate=attempt.replicate,
        parent=attempt.parent,
        epoch=attempt.epoch,
        last_state=attempt.phase,
        error=lost.as_dict(),
    )
    if not (bundle.path / TORN).exists():  # an earlier process may have written it and died
        bundle.write_json(TORN, msgspec.to_builtins(torn))
    unknown = outcome.Verdict("unknown")
    died = "its run was interrupted" if lost.message == STOPPED else "its worker died"
    how = died if isinstance(lost, WorkerLost) else "its files were checked before the run's commit"
    infra = outcome.Verdict("failed", "proofbox", how, lost.message)
    if not (bundle.path / outcome.PATH).exists():
        bundle.write_json(outcome.PATH, outcome.Outcome(unknown, unknown, infra).as_json())
    bundle.mark_partial(f"infra: {lost.code}")


def _attempt(facts: FinishedAttempt) -> AttemptRecord:
    mission = facts.mission
    return AttemptRecord(
        attempt_id=facts.attempt.id,
        run_id=facts.run_id,
        suite=SuiteNamed(facts.suite_id, facts.suite_sha256),
        mission_id=mission.id,
        tags=mission.tags,
        replicate=facts.attempt.replicate,
        parent=facts.attempt.parent,
        epoch=facts.attempt.epoch,
        isolation=facts.isolation,
        **comparability(mission),
        origin=mission.origin,
        chain=facts.chain,
        considered=facts.considered,
        reason=facts.outcome.reason,
        detail=facts.detail,
        error=None if facts.infra is None else facts.infra.as_dict(),
        states=facts.states,
        timeout=facts.timeout,
        requested=Requested(
            **msgspec.structs.asdict(RequestedLimits.of(mission.limits)),
            provider=mission.provider,
            network=mission.network,
            image=mission.image,
        ),
        policy=facts.policy,
        fork=facts.fork,
        environment=_environment(facts.environment, facts.runner.get("facts", {}).get("variables", ())),
        verification=AttemptVerification(
            **msgspec.structs.asdict(facts.checked), result=facts.outcome.verified, unmet=facts.unmet
        ),
        final=facts.final,
        written_at=facts.written_at,
    )


def _outcome(facts: FinishedAttempt, redactor: Redactor) -> outcome.Outcome:
    claimed = {"success": "passed", "failure": "failed"}.get(facts.outcome.claimed)
    verified = facts.outcome.verified if facts.outcome.verified != "none" else None
    runtime = facts.outcome.strategy or "none"
    detail = redactor.preview(facts.detail if facts.infra is None else facts.infra.message, DETAIL)[0]
    return outcome.Outcome(
        claimed=outcome.Verdict(claimed, "runtime_reported", "its final message")
        if claimed
        else outcome.Verdict("unknown"),
        verified=outcome.Verdict(verified, "proofbox verifier", "commands in a fresh box, and the mission's conditions")
        if verified
        else outcome.Verdict("unknown"),
        infra=outcome.Verdict("ok" if facts.infra is None else "failed", "proofbox", f"supervised {runtime}", detail),
    )


def _report(facts: FinishedAttempt) -> AttemptReport:
    session_facts, result = facts.runner.get("facts", {}), facts.result
    return AttemptReport(
        attempt_id=facts.attempt.id,
        mission_id=facts.mission.id,
        **facts.outcome.members,
        **comparability(facts.mission),
        reward=None if facts.checked.reward is None else facts.checked.reward.value,
        **facts.report,
        turn_status=None if result is None else result.status,
        turn_ms=None if result is None else result.duration_ms,
        turn_error=None if result is None or result.error is None else result.error.as_dict(),
        tokens=dict(facts.tokens),
        resources=Resources(
            RequestedLimits.of(facts.mission.limits),
            _stated(session_facts.get("policy")),
            _stated(session_facts.get("observed")),
        ),
        put_back=facts.checked.put_back,
        retry_after=facts.retry_after,
    )


def _stated(members: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the members with a value."""
    return None if members is None else {name: value for name, value in members.items() if value not in (None, [], ())}


def write_final(
    bundle: BundleWriter,
    workspace: Workspace,
    given: str,
    final: Snapshot,
    keep_diff: Callable[[str], dict[str, str]],
    base: SharedBase | None = None,
) -> FinalSnapshot:
    """Write the agent's final tree. Return where it is stored, and how it differs from the tree that it was given."""
    from proofbox.lab.attempt.final_tree import manifest_of  # readers of attempts need only the names of documents
    from proofbox.workspace.timeline.unified_diff import unified

    def write(store: ObjectStore, old: bytes, new: bytes) -> dict[str, str]:
        bundle.write_json(tree.PATH, manifest_of(store, new, base))
        return keep_diff("".join(f"{line.text}\n" for line in unified(store, old, new)))

    diff = workspace.compare(given, final.id, write)
    return FinalSnapshot(
        store=workspace.store_id,
        snapshot=final.id,
        given=given,
        method=final.method,
        not_in_it=(*final.skipped, *final.unstable),
        **diff,
    )
