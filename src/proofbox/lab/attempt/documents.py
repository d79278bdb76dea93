"""The JSON documents of a run and its attempts. Other modules fill them in.

Values that a runtime reports about itself are marked `runtime_reported`; proofbox observed everything else. Members of
structs with `omit_defaults` are absent if they have their default value.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from proofbox.agents.environment import EnvironmentRecord
from proofbox.agents.events import TokenUsage
from proofbox.agents.steps import Step
from proofbox.agents.strategies import CandidateResult
from proofbox.core.documents import stored
from proofbox.lab.attempt.expectations import UnmetCondition
from proofbox.lab.attempt.result import AttemptResult, Verified
from proofbox.lab.attempt.states import StateEntered
from proofbox.lab.attempt.verifier import CommandRun, VerifierResult
from proofbox.lab.reports.totals import Totals
from proofbox.lab.suite.spec import BoxLimits, Isolation, Origin
from proofbox.workspace.model import Method, SkippedPath

SUMMARY_SCHEMA = "proofbox.run_summary/1"


class SuiteNamed(msgspec.Struct, frozen=True):
    id: str
    """The id in the suite file."""
    sha256: str
    """Digest of the parsed content, independent of formatting."""


class RequestedLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits that a mission sets, each in a fixed unit."""

    memory_mb: int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk_mb: int | None = None
    """Limit of the workspace. It is measured several times a second; it is not a quota."""

    @classmethod
    def of(cls, limits: BoxLimits) -> RequestedLimits:
        return cls(limits.memory_mb, limits.cpus, limits.pids, limits.disk_mb)


class Requested(RequestedLimits, frozen=True, kw_only=True):
    """The limits and settings that the mission requested for its box."""

    provider: str | None = None
    network: str | None = None
    image: str | None = None


class ForkedFrom(msgspec.Struct, frozen=True, kw_only=True):
    attempt_id: str
    bundle: str
    """The path of its bundle."""
    step: int
    """The number of the step in that attempt; 0 is its beginning."""
    snapshot: str
    exact: bool
    """The turn ended at that step and its thread was continued, so files and thread are from the same moment."""
    why: str
    """A description of the state that the fork begins with."""
    base_thread: str = ""
    """The thread that was forked; empty if the fork started a new thread."""
    base_turn: str = ""
    """The last turn that the fork contains; empty if the fork started a new thread."""


class AttemptEnvironment(EnvironmentRecord, frozen=True, kw_only=True, omit_defaults=True):
    """Names of the variables that the agent received, and of those withheld; no values."""

    allowed: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    granted: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    boxed: tuple[str, ...] = ()
    """Variables that the box and proofbox added, such as HOME, PATH and PROOFBOX_FUNNEL."""


class AttemptVerification(VerifierResult, frozen=True, kw_only=True, omit_defaults=True):
    """The verifier's commands with their results, the restored paths, and the conditions that were not met."""

    result: Verified
    """Result of commands and conditions together. `none`: the mission has neither, or the result is unknown."""
    unmet: tuple[UnmetCondition, ...] = ()
    """Conditions of `expect` that were not met."""


class FinalSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the content of the agent's final tree is stored, and what the agent changed."""

    store: str
    """The id of the workspace store that holds the content, on the machine that ran the attempt."""
    snapshot: str
    given: str
    """The snapshot that the agent started from."""
    method: Method
    """How the files were scanned; `sealed`: a full scan."""
    not_in_it: tuple[SkippedPath, ...] = ()
    """Paths that are missing from the snapshot, or that changed while it was taken, and why."""
    diff: str | UnsetType = UNSET
    """The redacted diff from the given tree; empty if nothing changed. Absent if it is a file."""
    diff_sha256: str | UnsetType = UNSET
    """Digest of the diff in diffs/, if it has more than 2048 bytes; otherwise absent."""


@stored("proofbox.attempt/2", at="BUNDLE/attempt.json of an attempt")
class AttemptRecord(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="schema_version",
    tag="proofbox.attempt/2",
):
    """An attempt: its place in the run, the strategies considered, its states, and why it ended."""

    attempt_id: str
    run_id: str
    """Empty if the attempt is not part of a run: it was made with `runtime try`."""
    suite: SuiteNamed
    mission_id: str
    tags: tuple[str, ...] = ()
    replicate: int
    parent: str | None = None
    """The attempt that this one retries."""
    epoch: int
    """Number of the conductor process that claimed the attempt, counted per run; the attempt's path ends with it."""
    isolation: Isolation
    comparable: bool
    """Whether its result can be compared with results of the system that the mission was written for."""
    not_comparable: tuple[str, ...] = ()
    origin: Origin | None = None
    """Where the mission comes from, if it was written for another system; otherwise null."""
    chain: str
    considered: tuple[CandidateResult, ...]
    reason: str
    detail: str = ""
    error: dict[str, Any] | None = None
    """The infrastructure failure."""
    states: tuple[StateEntered, ...]
    """The states that the attempt entered, with times."""
    timeout: float | None = None
    """Seconds for the agent's turn; null if it was not limited."""
    requested: Requested
    """As set by the mission; the report has what was enforced."""
    policy: dict[str, Any] = {}
    """The options of the agent's box that were set, by the names of the flags. A fork uses them again."""
    fork: ForkedFrom | None = None
    """The attempt and step that this one continues; null if it is not a fork."""
    environment: AttemptEnvironment | None = None
    """The variables of the agent; null if no agent was started."""
    verification: AttemptVerification
    """What the verifier did and found."""
    final: FinalSnapshot | None = None
    """The agent's final files; null if no final snapshot was taken."""
    written_at: str


@stored("proofbox.node/1", at="BUNDLE/node.json of an attempt on a cluster")
class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster node that ran an attempt, as measured before its first attempt of the run."""

    schema_version: str = "proofbox.node/1"
    name: str
    """The host name and the beginning of the node's id in the cluster."""
    kernel: str
    """The release of its kernel."""
    machine: str
    """The processor architecture."""
    python: str
    """The version of Python."""
    proofbox: str
    """The version of proofbox on the node."""
    provider: str
    """The provider that was measured; if missions use several, their names, separated by commas."""
    checks: dict[str, str]
    """The outcome of each check of `doctor --quick`, by its name, with several providers by `PROVIDER: NAME`; empty if
    none works there."""
    problem: str = ""
    """Why the provider does not work there, or why the node cannot run attempts; otherwise empty."""
    disk_free: int
    """Bytes for attempts."""
    keys: tuple[str, ...] = ()
    """The names of the run's key variables that are set on the node."""
    measured_at: str
    """When the node was measured, by its own clock."""


@stored("proofbox.torn_attempt/1", at="BUNDLE/attempt.torn.json of an attempt")
class TornAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """Written for a worker that died or whose verdict does not count, next to the documents that it had written."""

    schema_version: str = "proofbox.torn_attempt/1"
    attempt_id: str
    run_id: str
    mission_id: str
    replicate: int
    parent: str | None
    epoch: int
    last_state: str
    """The last state that the worker recorded in the ledger."""
    error: dict[str, Any]


@stored("proofbox.runner_ref/1", at="BUNDLE/runner.ref.json of an attempt")
class RunnerRef(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime, session, thread and turn of an attempt. Members that were not reached are absent."""

    schema_version: str = "proofbox.runner_ref/1"
    runtime: str | UnsetType = UNSET
    """The strategy's id."""
    version: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    thread_id: str | UnsetType = UNSET
    turn_id: str | UnsetType = UNSET
    facts: dict[str, Any] | UnsetType = UNSET
    """What the session reports, such as provider and isolation; and as `fork`, how the attempt got its files:
    `overlay`, or `copy` with the reason. The report has the policy in force and the observed use of resources."""
    settings: dict[str, Any] | UnsetType = UNSET
    """The settings of the runtime, redacted. A fork uses them again."""
    shared: bool | UnsetType = UNSET
    """Whether other attempts used the same session."""


@stored("proofbox.attempt_cleanup/2", at="BUNDLE/cleanup.json of an attempt whose mission has cleanup commands")
class CleanupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the mission's cleanup commands did, after the result was decided."""

    schema_version: str = "proofbox.attempt_cleanup/2"
    ok: bool
    """Whether all commands passed."""
    code: str | None
    """The code of the failure: `ATTEMPT_CLEANUP_FAILED`, `ATTEMPT_CLEANUP_TIMEOUT`, or that of the sandbox."""
    message: str
    """What failed; empty if nothing did."""
    commands: tuple[CommandRun, ...]
    """In order, up to the first that did not pass."""
    provider: str
    """The sandbox that ran them; empty if no box started."""


class Durations(msgspec.Struct, frozen=True):
    p50: float | None
    """The median in milliseconds; null if nothing was measured."""
    p95: float | None
    """The 95th percentile in milliseconds, by nearest rank, so always a measured value."""


class NoProgress(msgspec.Struct, frozen=True):
    longest_run_of_identical_calls: int
    """The longest sequence of calls of one tool with the same arguments."""


class IntegrityFinding(msgspec.Struct, frozen=True):
    code: str
    message: str


class Resources(msgspec.Struct, frozen=True):
    requested: RequestedLimits
    """As set by the mission."""
    enforced: Any
    """The policy of the box: the options that are set; null if there was no box."""
    observed: Any
    """Peaks and kills as far as the box's control groups count them; null if there was no box."""


@stored("proofbox.attempt_report/2", at="BUNDLE/attempt.report.json of an attempt")
class AttemptReport(
    AttemptResult,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="schema_version",
    tag="proofbox.attempt_report/2",
):
    """The figures of an attempt. Figures of the trace are absent if no agent started."""

    attempt_id: str
    mission_id: str
    comparable: bool
    not_comparable: tuple[str, ...] = ()
    reward: float | None = None
    """The reward written by the verifier's commands; null if none was written or the mission does not use one."""
    turns: int | UnsetType = UNSET
    """Number of turns started."""
    messages: int | UnsetType = UNSET
    """Number of messages that the agent sent."""
    tool_calls: int | UnsetType = UNSET
    tool_calls_observed: int | UnsetType = UNSET
    """Calls that proofbox ran itself and that were started."""
    tool_failures: dict[str, int] | UnsetType = UNSET
    """By code: `exit_1`, `failed`, `declined`, `abandoned`."""
    retries: dict[str, int] = msgspec.field(default_factory=dict)
    """Retried model requests, by code."""
    steps: int | UnsetType = UNSET
    duration_ms: Durations | UnsetType = UNSET
    """Durations of tool calls."""
    output_bytes: int | UnsetType = UNSET
    """Size of the redacted output of all tool calls."""
    no_progress: NoProgress | UnsetType = UNSET
    """Signs that the agent made no progress."""
    integrity: tuple[IntegrityFinding, ...] = ()
    """Contradictions within the runtime's events, or between them and what proofbox observed."""
    responses_without_usage: int = 0
    """Model responses through the gateway that did not state their usage; they are not counted in `tokens`."""
    responses_broken_off: int = 0
    """Model responses that broke off; `tokens` includes the usage stated until then."""
    turn_status: str | None = None
    """How the last turn ended: completed, failed or interrupted, as reported by the runtime; null if no turn ended."""
    turn_ms: float | None = None
    """Duration of the last turn in milliseconds, as reported by the runtime; null if no turn ended."""
    turn_error: dict[str, Any] | None = None
    """The error of a failed turn, as reported by the runtime."""
    tokens: dict[str, TokenUsage]
    """Totals over all threads, by source: `gateway`, which is authoritative, or `runtime_reported`. `gateway` is absent
    if no response stated its usage."""
    resources: Resources
    """Limits and use of resources."""
    put_back: tuple[str, ...] = ()
    """Protected paths that the agent had created or changed, and that were restored."""
    retry_after: float | None = None
    """Seconds after which a retry may succeed; null if it is not worth retrying."""


@stored("proofbox.tool_call/2", at="BUNDLE/tool.calls.jsonl of an attempt, one per line")
class ToolCallEntry(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="schema_version",
    tag="proofbox.tool_call/2",
):
    """One tool call of an agent, with a bounded and redacted preview of its output."""

    attempt: str
    session: str
    thread: str
    turn: str
    call: str
    """The call's id, assigned by the runtime."""
    tool: str
    command: str
    cwd: str = ""
    status: str
    """completed, failed, declined, or abandoned: its end was never reported."""
    exit_code: int | None = None
    duration_ms: float | None = None
    late: bool = False
    """Whether the call ended after its turn."""
    source: str
    """`observed`: proofbox ran the call, or was asked to. Otherwise the runtime reported it."""
    started: bool | None = None
    """Whether an observed call ran: false if it was declined or refused, or if its program could not be started. Null
    if it was not observed from outside the box. Only calls with true count as observed."""
    output_preview: str
    """The first 2048 bytes, redacted."""
    output_bytes: int
    """Size of the whole output, redacted."""
    output_sha256: str | None = None
    """Digest of the whole output in outputs/; null if the preview is complete."""


class StoredBody(msgspec.Struct, frozen=True, kw_only=True):
    size: int
    """The number of bytes that passed through the gateway."""
    sha256: str | None
    """Digest of the redacted body in bodies/; null if it is empty or omitted."""
    omitted: str
    """Why the body is not stored; otherwise empty."""


@stored("proofbox.model_exchange/1", at="BUNDLE/model.exchanges.jsonl of an attempt that records bodies, one per line")
class ModelExchangeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One request to the model and its response, as they passed through the gateway."""

    schema_version: str = "proofbox.model_exchange/1"
    attempt: str
    session: str
    thread: str
    turn: str
    """The turn that the request belongs to; empty if it can't be attributed. The same applies to `thread`."""
    number: int
    """Counts the requests of the session, from 1."""
    method: str
    """The HTTP method."""
    path: str
    """The path and the query, below the endpoint's base URL."""
    status: int
    """The HTTP status; 0 if there was no response."""
    outcome: str
    """completed, failed, http_error, unreachable, redirected, cut, abandoned or refused."""
    duration_ms: float | None
    request: StoredBody
    """The body of the request."""
    response: StoredBody
    """The body of the response."""


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    turn: str
    thread: str
    status: str
    """completed, failed or interrupted."""
    code: str = ""
    """The code of the failure; empty if the turn did not fail."""
    last_step: int
    """The number of its last step, which recorded the final state of the turn."""
    snapshot: str


class StoredStep(Step, frozen=True, kw_only=True, omit_defaults=True):
    """A step in the evidence, where members with their default value are absent. Commands print all members."""


@stored("proofbox.step/2", at="BUNDLE/steps.jsonl of an attempt, one per line")
class StepEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A step with the snapshots before and after it, or the end of a turn."""

    schema_version: str = "proofbox.step/2"
    attempt: str
    step: StoredStep | UnsetType = UNSET
    """Absent on a line that ends a turn."""
    diff: str | UnsetType = UNSET
    """The step's redacted diff. Absent if nothing changed, or if the diff is a file or omitted."""
    diff_sha256: str | UnsetType = UNSET
    """Digest of the diff in diffs/, if it has more than 2048 bytes; otherwise absent."""
    diff_omitted: str | UnsetType = UNSET
    """Why the diff is not stored; otherwise absent."""
    turn_end: TurnEnd | UnsetType = UNSET
    """Absent on a line that records a step."""


class ChainDecided(msgspec.Struct, frozen=True):
    strategies: str
    """The chain in its written form: `codex_app_server!,process`."""
    origin: str
    """Where the chain was set: flag, spec, config, environment or default."""


@stored("proofbox.run_environment/1", at="RUN/environment.json")
class RunEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run's results may depend on."""

    schema_version: str = "proofbox.run_environment/1"
    world: dict[str, Any]
    """Host and proofbox version."""
    suite: SuiteNamed
    chain: ChainDecided
    isolation: Isolation
    concurrency: int
    provider: str | None
    epochs: int
    inputs: dict[str, str]
    """Digests of the files that the suite names (workspaces, prompts, tests, solutions), as of when it was planned."""


class MissionSummary(msgspec.Struct, frozen=True, kw_only=True):
    mission_id: str
    comparable: bool
    not_comparable: tuple[str, ...]
    results: int
    passed: int
    failed: int
    claimed_but_failed: int
    """Results where the agent claimed success but verification failed."""
    infra: int
    reasons: dict[str, int]
    """Number of results by the reason they ended."""


@stored(SUMMARY_SCHEMA, at="RUN/summary.json")
class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run. The status says whether the run is a complete measurement, not whether missions passed."""

    schema_version: str = SUMMARY_SCHEMA
    run_id: str
    suite: SuiteNamed
    status: Literal["ok", "partial"]
    """`partial`: an attempt has no result or had an infrastructure failure."""
    comparable: bool
    totals: Totals
    missions: tuple[MissionSummary, ...]
