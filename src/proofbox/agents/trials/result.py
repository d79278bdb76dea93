"""What a trial is asked for, and what comes of it: frozen, and the same in code, in JSON and in the record."""

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
from proofbox.sandbox.box_handle import PolicyOptions

SCHEMA = "proofbox.trial_record/1"
Status = Literal["completed", "failed", "interrupted"]
RUNTIME_REPORTED = ("final_message", "tool_calls", "usage")


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be tried. What is left out comes from the workspace's and the user's `config.toml`."""

    prompt: str
    workspace: Path
    strategies: str | tuple[str, ...] | None = None
    """The chain of them, tried in order; None: what the settings say."""
    required: tuple[str, ...] = ()
    """Capabilities that the strategy must have."""
    flags: dict[str, Any] = {}
    """Settings of this call, for every runtime that has such a setting."""
    provider: str | None = None
    policy: PolicyOptions = {}
    env: tuple[str, ...] = ()
    """Variables that the agent gets: NAME, or NAME=VALUE."""
    grants: tuple[str, ...] = ()
    """Names of blocked variables that get in all the same."""
    approvals: tuple[ApprovalRule, ...] = ()
    """What is answered when the agent asks for leave; the first that matches."""
    sandboxed: bool = True
    """False: the agent runs on the host, with everything that you may do."""
    timeout: float | None = None
    stall_timeout: float | None = None
    """Seconds without a word from the agent, after which its turn is ended."""
    out: Path | None = None
    """A new directory for the record; None: none is kept."""


class CallMade(msgspec.Struct, frozen=True):
    command: str
    exit_code: int | None
    duration_ms: float | None
    tool: str
    status: str
    """completed, failed, declined, or abandoned: nobody will ever say how it ended."""
    source: str
    started: bool | None
    """Of an observed call, whether it ran; null: not seen from outside the box."""


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
    """The step's number in that trial; 0: its beginning."""
    snapshot: str
    exact: bool
    """The turn ended at that step, so that files and thread are of the same moment."""
    why: str
    """What the fork begins with, in words."""
    base_thread: str = ""
    """The thread that was forked; empty: it began anew."""
    base_turn: str = ""
    """The last turn of it that the fork has; empty: it began anew."""


@stored(SCHEMA, at="trial.json of `runtime try --out`")
class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `runtime_reported` members rest on the agent's word alone."""

    trial: str
    strategy: str
    version: str
    chain: tuple[CandidateResult, ...]
    chain_origin: Origin
    status: Status
    """`completed`: the agent gave the word back, and what it left is sealed. `interrupted`: somebody stopped it."""
    error: TrialFailure | None
    final_message: str
    tool_calls: tuple[CallMade, ...]
    steps: tuple[Step, ...]
    usage: TokenUsage | None
    """Summed over threads, sub-agents included: as the gateway counted, or by the agent's word where no model was
    reached through one. Null: unknown."""
    thread_id: str
    turn_id: str
    prompt: str
    workspace: str
    workspace_id: str
    snapshot_before: str
    snapshot_after: str
    """Sealed: a full scan after everything the agent had started was dead."""
    session: dict[str, Any]
    environment: EnvironmentRecord
    settings: dict[str, Any]
    provider: str | None
    """As it was asked for; null: it was left to the settings, and to `auto`."""
    policy: dict[str, Any]
    """What was asked of the box; what held is in `session`."""
    integrity: tuple[dict[str, Any], ...] = ()
    calls_complete: bool = True
    """False: calls may be missing from `tool_calls`; `integrity` says why."""
    rate_windows: tuple[dict[str, Any], ...] = ()
    started_at: str
    ended_at: str
    duration_ms: float
    record: str | None = None
    anchors: dict[str, ChainEnd] = {}
    """Where the record's chains `events` and `steps` end; empty without a record."""
    fork: ForkedFrom | None = None
    """Where it began in another trial; null: it is no fork."""
    runtime_reported: tuple[str, ...] = RUNTIME_REPORTED
    """Without `usage` where the gateway counted."""
    responses_without_usage: int = 0
    """Model responses that passed the gateway and did not state their usage: they are not in `usage`."""
    responses_broken_off: int = 0
    """Model responses that broke off: `usage` has as much of them as had been stated."""
    schema_version: str = SCHEMA
