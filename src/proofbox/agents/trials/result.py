"""The request and the result of a trial: frozen structs with the same members in code, in JSON and in the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from proofbox.agents.contract import ApprovalRule
from proofbox.agents.environment import EnvironmentRecord
from proofbox.agents.events import TokenUsage
from proofbox.agents.steps import Step
from proofbox.agents.strategies import CandidateResult, Origin
from proofbox.agents.trials.record import ChainEnd, bounded
from proofbox.core.documents import stored
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import AgentError
from proofbox.sandbox.options import PolicyOptions

SCHEMA = "proofbox.trial_record/1"
Status = Literal["completed", "failed", "interrupted"]
RUNTIME_REPORTED = ("final_message", "tool_calls", "usage")


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a trial. Defaults come from the `config.toml` of the workspace and of the user."""

    prompt: str
    workspace: Path
    strategies: str | tuple[str, ...] | None = None
    """The chain of strategies, tried in order. None: from the settings."""
    required: tuple[str, ...] = ()
    """Capabilities that the strategy must have."""
    flags: dict[str, Any] = {}
    """Settings for this trial, passed to every runtime that has a setting of that name."""
    provider: str | None = None
    policy: PolicyOptions = {}
    env: tuple[str, ...] = ()
    """Variables for the agent: NAME or NAME=VALUE."""
    grants: tuple[str, ...] = ()
    """Names of blocked variables to pass to the agent anyway."""
    approvals: tuple[ApprovalRule, ...] = ()
    """Rules that answer the agent's approval requests; the first match decides."""
    sandboxed: bool = True
    """False: the agent runs on the host, with all of your permissions."""
    timeout: float | None = None
    stall_timeout: float | None = None
    """Seconds without any activity of the agent after which its turn is ended."""
    out: Path | None = None
    """A new directory for the record. None: no record is kept."""


class CallMade(msgspec.Struct, frozen=True):
    command: str
    exit_code: int | None
    duration_ms: float | None
    tool: str
    status: str
    """completed, failed, declined, or abandoned (its end was never reported)."""
    source: str
    started: bool | None
    """Whether an observed call ran. Null: not visible from outside the box."""


class TrialFailure(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str
    retryable: bool
    fix_hints: tuple[str, ...] = ()
    details: dict[str, Any] = {}

    @classmethod
    def of(cls, error: AgentError, redactor: Redactor) -> TrialFailure:
        return cls(
            code=error.code,
            message=redactor.preview(error.message, 4096)[0],
            retryable=error.retryable,
            fix_hints=error.fix_hints,
            details=bounded(error.details, redactor),
        )


class ForkedFrom(msgspec.Struct, frozen=True, kw_only=True):
    trial: str
    record: str
    step: int
    """The number of the step in that trial; 0 is its beginning."""
    snapshot: str
    exact: bool
    """The turn ended at that step, so the files and the thread are from the same moment."""
    why: str
    """A description of the state that the fork begins with."""
    base_thread: str = ""
    """The thread that was forked; empty if the fork started a new thread."""
    base_turn: str = ""
    """The last turn that the fork contains; empty if the fork started a new thread."""


@stored(SCHEMA, at="trial.json of `runtime try --out`")
class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a trial. Members listed in `runtime_reported` were stated by the agent and not checked."""

    trial: str
    strategy: str
    version: str
    chain: tuple[CandidateResult, ...]
    chain_origin: Origin
    status: Status
    """`completed`: the agent finished its turn and its files are sealed. `interrupted`: it was stopped from outside."""
    error: TrialFailure | None
    final_message: str
    tool_calls: tuple[CallMade, ...]
    steps: tuple[Step, ...]
    usage: TokenUsage | None
    """The sum over all threads, including sub-agents: the gateway's count, or the agent's report if no gateway was
    used. Null: unknown."""
    thread_id: str
    turn_id: str
    prompt: str
    workspace: str
    workspace_id: str
    snapshot_before: str
    snapshot_after: str
    """Sealed: a full scan after the agent's process tree was dead."""
    session: dict[str, Any]
    environment: EnvironmentRecord
    settings: dict[str, Any]
    provider: str | None
    """The requested provider. Null: chosen by the settings and `auto`."""
    policy: dict[str, Any]
    """The requested policy of the box; `session` contains the policy in force."""
    integrity: tuple[dict[str, Any], ...] = ()
    calls_complete: bool = True
    """False: calls may be missing from `tool_calls`; `integrity` states the reason."""
    rate_windows: tuple[dict[str, Any], ...] = ()
    started_at: str
    ended_at: str
    duration_ms: float
    record: str | None = None
    anchors: dict[str, ChainEnd] = {}
    """Where the record's chains `events` and `steps` end; empty without a record."""
    fork: ForkedFrom | None = None
    """Where the trial was forked from. Null: it is not a fork."""
    runtime_reported: tuple[str, ...] = RUNTIME_REPORTED
    """The members that the agent reported. `usage` is not listed if the gateway counted it."""
    responses_without_usage: int = 0
    """Number of model responses that did not state their usage; `usage` does not include them."""
    responses_broken_off: int = 0
    """Number of model responses that broke off; `usage` includes the usage stated before that."""
    schema_version: str = SCHEMA
