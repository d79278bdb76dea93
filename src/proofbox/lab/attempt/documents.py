"""The JSON documents of a run and of its attempts, and what their members are. Others fill them.

What a runtime says of itself is marked `runtime_reported`; everything else proofbox saw.
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
from proofbox.lab.attempt.claims import Claim
from proofbox.lab.attempt.expectations import UnmetCondition
from proofbox.lab.attempt.states import StateEntered
from proofbox.lab.attempt.verifier import VerifierResult
from proofbox.lab.reports.totals import Totals
from proofbox.lab.suite.spec import BoxLimits, Isolation, Origin
from proofbox.workspace.model import Method, SkippedPath

Verified = Literal["passed", "failed", "none"]
SUMMARY_SCHEMA = "proofbox.run_summary/1"


class SuiteNamed(msgspec.Struct, frozen=True):
    id: str
    """As its file says."""
    sha256: str
    """Of what it says, not of how it is spelled."""


class RequestedLimits(msgspec.Struct, frozen=True):
    """The limits that a mission names, in one unit each."""

    memory_mb: int | None
    cpus: float | None
    pids: int | None
    disk_mb: int | None
    """Of the workspace. It is measured several times a second and is not a quota."""

    @classmethod
    def of(cls, limits: BoxLimits) -> RequestedLimits:
        return cls(limits.memory_mb, limits.cpus, limits.pids, limits.disk_mb)


class Requested(RequestedLimits, frozen=True, kw_only=True):
    """What the mission asked of the box."""

    provider: str | None
    network: str | None
    image: str | None


@stored("proofbox.attempt/1", at="BUNDLE/attempt.json of an attempt")
class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt was: its place in the run, the strategies that were considered, its states, why it ended."""

    schema_version: str = "proofbox.attempt/1"
    attempt_id: str
    run_id: str
    suite: SuiteNamed
    mission_id: str
    tags: tuple[str, ...]
    replicate: int
    parent: str | None
    """The attempt that this one tries again."""
    epoch: int
    """Counts the processes that have conducted the run; the attempt's path ends with it."""
    isolation: Isolation
    comparable: bool
    """Its result may be set beside those of the system that the mission was written for."""
    not_comparable: tuple[str, ...]
    origin: Origin | None
    """Where the mission comes from, if it was written for another system; else null."""
    chain: str
    considered: tuple[CandidateResult, ...]
    reason: str
    detail: str
    error: dict[str, Any] | None
    """What the machinery failed with."""
    states: tuple[StateEntered, ...]
    """Those it came through, with the times."""
    timeout: float
    requested: Requested
    """By the mission; what was enforced is in the report."""
    written_at: str


@stored("proofbox.torn_attempt/1", at="BUNDLE/attempt.torn.json of an attempt")
class TornAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """Said in the place of a worker that died, beside what it had written itself."""

    schema_version: str = "proofbox.torn_attempt/1"
    attempt_id: str
    run_id: str
    mission_id: str
    replicate: int
    parent: str | None
    epoch: int
    last_state: str
    """The last one that its worker told the ledger."""
    error: dict[str, Any]


@stored("proofbox.runner_ref/1", at="BUNDLE/runner.ref.json of an attempt")
class RunnerRef(msgspec.Struct, frozen=True, kw_only=True):
    """Which runtime worked, and in which session, thread and turn. Members are there as far as it came."""

    schema_version: str = "proofbox.runner_ref/1"
    runtime: str | UnsetType = UNSET
    """The strategy's id."""
    version: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    thread_id: str | UnsetType = UNSET
    turn_id: str | UnsetType = UNSET
    facts: dict[str, Any] | UnsetType = UNSET
    """What the session knows of itself: provider, isolation, the policy in force, what was observed."""
    shared: bool | UnsetType = UNSET
    """Other attempts had the same session."""


@stored("proofbox.runner_metrics/1", at="BUNDLE/runner.metrics.json of an attempt")
class RunnerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """How the turn ended by the runtime's own word, and what it cost."""

    schema_version: str = "proofbox.runner_metrics/1"
    status: str | None
    """completed, failed or interrupted; null: no turn came to its end."""
    turn_ms: float | None
    """How long the turn took, in milliseconds; null: no turn came to its end."""
    tokens: dict[str, TokenUsage]
    """Summed over threads, by who counted them: `gateway`, which holds, or `runtime_reported`. The gateway is not there
    where no response stated its usage."""
    error: dict[str, Any] | None
    source: Literal["runtime_reported"] = "runtime_reported"


@stored("proofbox.attempt_env/1", at="BUNDLE/attempt.runtime.env.json of an attempt")
class AttemptEnvironment(EnvironmentRecord, frozen=True, kw_only=True):
    """Names of the variables that the agent had, and of those withheld. No values."""

    schema_version: str = "proofbox.attempt_env/1"
    boxed: tuple[str, ...] = ()
    """Those that its box and proofbox gave it besides, such as HOME, PATH and PROOFBOX_FUNNEL."""


@stored("proofbox.attempt_verification/1", at="BUNDLE/verification.json of an attempt")
class AttemptVerification(VerifierResult, frozen=True, kw_only=True):
    """Each command of the verifier and what came of it, what was put back, and which conditions were not met."""

    schema_version: str = "proofbox.attempt_verification/1"
    result: Verified
    """Of commands and conditions together. `none`: there are neither, or nothing could be found out."""
    unmet: tuple[UnmetCondition, ...]
    """Conditions of `expect` that do not hold."""


class Durations(msgspec.Struct, frozen=True):
    p50: float | None
    """The median, in milliseconds; null: none was measured."""
    p95: float | None
    """In milliseconds, by nearest rank: one that was measured."""


class NoProgress(msgspec.Struct, frozen=True):
    longest_run_of_identical_calls: int
    """Most calls in a row of one tool with the same arguments."""


class IntegrityFinding(msgspec.Struct, frozen=True):
    code: str
    message: str


class Resources(msgspec.Struct, frozen=True):
    requested: RequestedLimits
    """By the mission."""
    enforced: Any
    """The policy of the box."""
    observed: Any
    """Peaks and kills as the box's control groups counted them; null: there was no box."""


@stored("proofbox.attempt_report/1", at="BUNDLE/attempt.report.json of an attempt")
class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an attempt. Those of the trace are not there where no agent ever started."""

    schema_version: str = "proofbox.attempt_report/1"
    attempt_id: str
    mission_id: str
    strategy: str | None
    claimed: Claim
    verified: Verified
    infra: str | None
    """The code of what failed in the machinery."""
    reason: str
    comparable: bool
    not_comparable: tuple[str, ...]
    reward: float | None
    """The number that the verifier's commands left; null: none, or the mission asks for none."""
    turns: int | UnsetType = UNSET
    """How many began."""
    messages: int | UnsetType = UNSET
    """How many the agent sent."""
    tool_calls: int | UnsetType = UNSET
    tool_calls_observed: int | UnsetType = UNSET
    """Of them those that proofbox ran itself, and that were started."""
    tool_failures: dict[str, int] | UnsetType = UNSET
    """By code: `exit_1`, `failed`, `declined`, `abandoned`."""
    retries: dict[str, int] | UnsetType = UNSET
    """Requests to the model that were made again, by code."""
    steps: int | UnsetType = UNSET
    duration_ms: Durations | UnsetType = UNSET
    """Of tool calls."""
    output_bytes: int | UnsetType = UNSET
    """Of all tool calls together, redacted."""
    no_progress: NoProgress | UnsetType = UNSET
    """Signs that the agent went in circles."""
    integrity: tuple[IntegrityFinding, ...] | UnsetType = UNSET
    """Where what the runtime said contradicts itself or what was seen."""
    responses_without_usage: int | UnsetType = UNSET
    """Model responses that passed the gateway and did not state their usage: they are not in `tokens`."""
    responses_broken_off: int | UnsetType = UNSET
    """Model responses that broke off: `tokens` has as much of them as had been stated."""
    tokens: dict[str, TokenUsage]
    """As in runner.metrics.json."""
    resources: Resources
    """What the box could use, and did."""
    put_back: tuple[str, ...]
    """Protected paths that the agent had planted or changed."""
    retry_after: float | None
    """In how many seconds another try may go better."""


@stored("proofbox.final_snapshot/1", at="BUNDLE/final_snapshot.json of an attempt")
class FinalSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Where the content of the tree that an agent left is."""

    schema_version: str = "proofbox.final_snapshot/1"
    store: str
    """The id of the workspace store that has the content, on the machine of the run."""
    snapshot: str
    given: str
    """The snapshot that the agent began with."""
    method: Method
    """How the files were looked at; `sealed`: all of them, anew."""
    not_in_it: tuple[SkippedPath, ...]
    """What it lacks, or has from some moment while it was changing, and why."""


@stored("proofbox.tool_call/1", at="BUNDLE/tool.calls.jsonl of an attempt, one a line")
class ToolCallEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One call that an agent made, with a bounded and redacted preview of what came of it."""

    schema_version: str = "proofbox.tool_call/1"
    attempt: str
    session: str
    thread: str
    turn: str
    call: str
    """The call's id, by the runtime."""
    tool: str
    command: str
    cwd: str
    status: str
    """completed, failed, declined, or abandoned: nobody will ever say how it ended."""
    exit_code: int | None
    duration_ms: float | None
    late: bool
    """It ended after its turn had."""
    source: str
    """`observed`: proofbox ran it, or was asked to. Otherwise it rests on the runtime's word."""
    started: bool | None
    """Of an observed call, whether it ran: false if it was declined or refused, or if its program could not be started.
    Null: not seen from outside the box. Only true counts as observed."""
    output_preview: str
    """The first 2048 bytes, redacted."""
    output_bytes: int
    """Of all of it, redacted."""
    output_sha256: str | None
    """Where the preview is cut: the whole is in outputs/."""


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
    turn: str
    thread: str
    status: str
    """completed, failed or interrupted."""
    code: str
    """Of the failure; empty where there was none."""
    last_step: int
    """The number of its last step, whose state the turn ended with."""
    snapshot: str


@stored("proofbox.step/1", at="BUNDLE/steps.jsonl of an attempt, one a line")
class StepEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A step with the snapshots before and after it, or the end of a turn."""

    schema_version: str = "proofbox.step/1"
    attempt: str
    step: Step | UnsetType = UNSET
    """Absent where the line is the end of a turn."""
    turn_end: TurnEnd | UnsetType = UNSET
    """Absent where the line is a step."""


class ChainDecided(msgspec.Struct, frozen=True):
    strategies: str
    """As a chain is written: `codex_app_server!,process`."""
    origin: str
    """Who decided it: flag, spec, config, environment or default."""


@stored("proofbox.run_environment/1", at="RUN/environment.json")
class RunEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's results may depend on."""

    schema_version: str = "proofbox.run_environment/1"
    world: dict[str, Any]
    """Host and tool."""
    suite: SuiteNamed
    chain: ChainDecided
    isolation: Isolation
    concurrency: int
    provider: str | None
    epochs: int
    inputs: dict[str, str]
    """Of what the suite names (workspaces, prompts, tests, solutions), the digest as of when the run was planned."""


class MissionSummary(msgspec.Struct, frozen=True, kw_only=True):
    mission_id: str
    comparable: bool
    not_comparable: tuple[str, ...]
    results: int
    passed: int
    failed: int
    claimed_but_failed: int
    """Results whose agent claimed success, and whose verifier found otherwise."""
    infra: int
    reasons: dict[str, int]
    """Why results ended, and how many for each reason."""


@stored(SUMMARY_SCHEMA, at="RUN/summary.json")
class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run. Its status says whether it can be relied on as a measurement, not what missions came to."""

    schema_version: str = SUMMARY_SCHEMA
    run_id: str
    suite: SuiteNamed
    status: Literal["ok", "partial"]
    """`partial`: some attempt has no result, or the machinery failed it."""
    comparable: bool
    totals: Totals
    missions: tuple[MissionSummary, ...]
