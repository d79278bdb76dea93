"""The documents of an attempt's bundle, the same for every runtime: what each is called, and from what it is filled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from proofbox.agents.contract import TurnResult
from proofbox.agents.environment import EnvironmentRecord
from proofbox.agents.strategies import CandidateResult
from proofbox.core.digest import sha256_file
from proofbox.core.files.modes import git_mode
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import ProofboxError
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.evidence.documents import outcome, tree
from proofbox.lab.attempt.claims import Feedback
from proofbox.lab.attempt.documents import (
    AttemptEnvironment,
    AttemptRecord,
    AttemptReport,
    AttemptVerification,
    FinalSnapshot,
    Requested,
    RequestedLimits,
    Resources,
    RunnerMetrics,
    RunnerRef,
    SuiteNamed,
    TornAttempt,
    Verified,
)
from proofbox.lab.attempt.expectations import UnmetCondition
from proofbox.lab.attempt.states import StateEntered
from proofbox.lab.attempt.trace import CALLS, EVENTS, STEPS
from proofbox.lab.attempt.verifier import VerifierResult
from proofbox.lab.run.ledger import Attempt
from proofbox.lab.suite.spec import Isolation, Mission, comparability
from proofbox.workspace.model import Snapshot
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.timeline.diff import differences
from proofbox.workspace.timeline.unified_diff import unified
from proofbox.workspace.tree import EMPTY_TREE
from proofbox.workspace.workspace import Workspace

ATTEMPT, PROMPT, RUNNER, METRICS = "attempt.json", "prompt.txt", "runner.ref.json", "runner.metrics.json"
ENVIRONMENT, FEEDBACK, REPORT = "attempt.runtime.env.json", "feedback.json", "attempt.report.json"
TORN = "attempt.torn.json"
VERIFICATION, FINAL_DIFF, FINAL_SNAPSHOT = "verification.json", "final.diff", "final_snapshot.json"

EXPECTED = (
    *(ATTEMPT, PROMPT, RUNNER, METRICS, ENVIRONMENT, FEEDBACK, REPORT, VERIFICATION, outcome.PATH),
    *(CALLS, STEPS, EVENTS, FINAL_DIFF, FINAL_SNAPSHOT, tree.PATH),
)
"""What a whole attempt has. One that the machinery failed lacks some, and is partial."""

DETAIL = 4000


class AttemptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of an attempt at its end."""

    attempt: Attempt
    run_id: str
    suite_id: str
    suite_sha256: str
    mission: Mission
    chain: str
    considered: tuple[CandidateResult, ...]
    isolation: Isolation
    reason: str
    detail: str
    infra: ProofboxError | None
    states: tuple[StateEntered, ...]
    runner: Mapping[str, Any]
    environment: EnvironmentRecord | None
    result: TurnResult | None
    feedback: Feedback
    verified: Verified
    checked: VerifierResult
    unmet: tuple[UnmetCondition, ...]
    report: Mapping[str, Any]
    tokens: Mapping[str, Any]
    retry_after: float | None
    written_at: str


def index_sha256(bundle: Path) -> str:
    return sha256_file(bundle / INDEX)[0]


def write_all(bundle: BundleWriter, story: AttemptFacts, redactor: Redactor) -> None:
    """Every document but those that were written on the way."""
    documents: dict[str, Any] = {
        ATTEMPT: _attempt(story),
        RUNNER: RunnerRef(**story.runner),
        METRICS: _metrics(story),
        FEEDBACK: story.feedback.document(),
        VERIFICATION: AttemptVerification(
            **msgspec.structs.asdict(story.checked), result=story.verified, unmet=story.unmet
        ),
        outcome.PATH: _outcome(story, redactor).as_json(),
        REPORT: _report(story),
    }
    if story.environment is not None:
        documents[ENVIRONMENT] = _environment(story.environment, story.runner.get("facts", {}).get("variables", ()))
    for name, document in documents.items():
        bundle.write_json(name, sayable(redactor.redact_json(msgspec.to_builtins(document))))
    if story.infra is not None:
        bundle.mark_partial(f"infra: {story.infra.code}")
    if story.isolation == "shared":
        bundle.mark_partial("shared isolation: other attempts could reach this one")


def _environment(record: EnvironmentRecord, had: Iterable[str]) -> AttemptEnvironment:
    """`had` are all that the agent's program had, by the word of whoever started it."""
    boxed = sorted(set(had) - {*record.allowed, *record.asked, *record.granted})
    return AttemptEnvironment(**msgspec.structs.asdict(record), boxed=tuple(boxed))


def sayable(value: Any) -> Any:
    """The JSON value without halves of characters, which no document can hold: names of files and agents' words may."""
    try:
        msgspec.json.encode(value)  # as fast as a look at it can be
    except (UnicodeEncodeError, OverflowError):  # of a number that is too large, whoever writes it will say so
        return _without_halves(value)
    return value


def _without_halves(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {_without_halves(name): _without_halves(each) for name, each in value.items()}
    return [_without_halves(each) for each in value] if isinstance(value, list | tuple) else value


def write_torn(bundle: BundleWriter, attempt: Attempt, run_id: str, lost: ProofboxError) -> None:
    """What is said in the place of one who died, beside what it had written itself."""
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
    if not (bundle.path / TORN).exists():  # whoever began to say so may have died as well
        bundle.write_json(TORN, msgspec.to_builtins(torn))
    unknown = outcome.Verdict("unknown")
    infra = outcome.Verdict("failed", "proofbox", "its worker was found dead", lost.message)
    if not (bundle.path / outcome.PATH).exists():
        bundle.write_json(outcome.PATH, outcome.Outcome(unknown, unknown, infra).as_json())
    bundle.mark_partial(f"infra: {lost.code}")


def _attempt(story: AttemptFacts) -> AttemptRecord:
    mission = story.mission
    return AttemptRecord(
        attempt_id=story.attempt.id,
        run_id=story.run_id,
        suite=SuiteNamed(story.suite_id, story.suite_sha256),
        mission_id=mission.id,
        tags=mission.tags,
        replicate=story.attempt.replicate,
        parent=story.attempt.parent,
        epoch=story.attempt.epoch,
        isolation=story.isolation,
        **comparability(mission),
        origin=mission.origin,
        chain=story.chain,
        considered=story.considered,
        reason=story.reason,
        detail=story.detail,
        error=None if story.infra is None else story.infra.as_dict(),
        states=story.states,
        timeout=mission.timeout,
        requested=Requested(
            **msgspec.structs.asdict(RequestedLimits.of(mission.limits)),
            provider=mission.provider,
            network=mission.network,
            image=mission.image,
        ),
        written_at=story.written_at,
    )


def _metrics(story: AttemptFacts) -> RunnerMetrics:
    result = story.result
    return RunnerMetrics(
        status=None if result is None else result.status,
        turn_ms=None if result is None else result.duration_ms,
        tokens=dict(story.tokens),
        error=None if result is None or result.error is None else result.error.as_dict(),
    )


def _outcome(story: AttemptFacts, redactor: Redactor) -> outcome.Outcome:
    claimed = {"success": "passed", "failure": "failed"}.get(story.feedback.claimed)
    verified = story.verified if story.verified != "none" else None
    runtime = str(story.runner.get("runtime", "") or "none")
    detail = redactor.preview(story.detail if story.infra is None else story.infra.message, DETAIL)[0]
    return outcome.Outcome(
        claimed=outcome.Verdict(claimed, "runtime_reported", "its final message")
        if claimed
        else outcome.Verdict("unknown"),
        verified=outcome.Verdict(verified, "proofbox verifier", "commands in a fresh box, and the mission's conditions")
        if verified
        else outcome.Verdict("unknown"),
        infra=outcome.Verdict("ok" if story.infra is None else "failed", "proofbox", f"supervised {runtime}", detail),
    )


def _report(story: AttemptFacts) -> AttemptReport:
    facts = story.runner.get("facts", {})
    return AttemptReport(
        attempt_id=story.attempt.id,
        mission_id=story.mission.id,
        strategy=story.runner.get("runtime"),
        claimed=story.feedback.claimed,
        verified=story.verified,
        infra=None if story.infra is None else story.infra.code,
        reason=story.reason,
        **comparability(story.mission),
        reward=None if story.checked.reward is None else story.checked.reward.value,
        **story.report,
        tokens=dict(story.tokens),
        resources=Resources(RequestedLimits.of(story.mission.limits), facts.get("policy"), facts.get("observed")),
        put_back=story.checked.put_back,
        retry_after=story.retry_after,
    )


def write_final(bundle: BundleWriter, workspace: Workspace, given: str, final: Snapshot, redactor: Redactor) -> None:
    """What the agent left, and how it differs from what it was given."""

    def write(store: ObjectStore, old: bytes, new: bytes) -> None:
        entries = {
            each.path: each.new
            for each in differences(store, EMPTY_TREE, new)
            if each.new is not None and each.new.kind != "directory"
        }
        manifest = tree.tree_manifest(
            tree.TreeEntry(
                path.encode("utf-8", "surrogateescape"),
                git_mode(entry.mode),
                store.size(entry.digest),
                entry.digest.hex(),
            )
            for path, entry in entries.items()
        )
        bundle.write_json(tree.PATH, manifest)
        text = "".join(f"{line.text}\n" for line in unified(store, old, new))
        bundle.write_bytes(FINAL_DIFF, redactor.redact(text).encode("utf-8", "replace"))

    workspace.compare(given, final.id, write)
    document = FinalSnapshot(
        store=workspace.store_id,
        snapshot=final.id,
        given=given,
        method=final.method,
        not_in_it=(*final.skipped, *final.unstable),
    )
    bundle.write_json(FINAL_SNAPSHOT, msgspec.to_builtins(document))
