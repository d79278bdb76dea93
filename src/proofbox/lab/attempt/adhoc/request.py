"""The options and the result of an attempt made by hand."""

from __future__ import annotations

import os
from typing import Any, Literal, TypedDict

import msgspec

from proofbox.agents.contract import ApprovalRule
from proofbox.agents.events import Listener, TokenUsage
from proofbox.agents.registry import Registry
from proofbox.agents.steps import Step
from proofbox.agents.strategies import CandidateResult
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.results import Document
from proofbox.errors import ProofboxError
from proofbox.lab.attempt.claims import Claim
from proofbox.lab.attempt.cleaning import cleaned
from proofbox.lab.attempt.documents import ForkedFrom, IntegrityFinding
from proofbox.lab.attempt.result import Verified
from proofbox.sandbox.options import PolicyOptions

Status = Literal["completed", "failed", "interrupted"]


class AttemptOptions(TypedDict, total=False):
    """Options of an attempt. Defaults come from the `config.toml` of the workspace and of the user."""

    strategies: str | tuple[str, ...] | None
    """The chain of strategies, tried in order. None: from the settings."""
    required: tuple[str, ...]
    """Capabilities that the strategy must have."""
    settings: dict[str, Any]
    """Settings for this attempt, passed to every runtime that has a setting of that name."""
    provider: str | None
    policy: PolicyOptions
    env: tuple[str, ...]
    """Variables for the agent: NAME or NAME=VALUE."""
    grants: tuple[str, ...]
    """Names of blocked variables to pass to the agent anyway."""
    approvals: tuple[ApprovalRule, ...]
    """Rules that answer the agent's approval requests; the first match decides."""
    sandboxed: bool
    """False: the agent runs on the host, with all of your permissions."""
    timeout: float | None
    stall_timeout: float | None
    """Seconds without any activity of the agent after which its turn is ended."""
    out: str | os.PathLike[str] | None
    """A new directory for the bundle. None: a directory in the user's state directory."""
    on_event: Listener | None
    """Receives the agent's events as they happen."""
    registry: Registry | None
    clock: Clock | None
    ids: IdSource | None


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


class AttemptFailure(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str
    retryable: bool
    fix_hints: tuple[str, ...] = ()
    details: dict[str, Any] = {}

    @classmethod
    def of(cls, error: ProofboxError, redactor: Redactor) -> AttemptFailure:
        return cls(
            code=error.code,
            message=redactor.preview(error.message, 4096)[0],
            retryable=error.retryable,
            fix_hints=error.fix_hints,
            details=cleaned(error.details, redactor),
        )


class AttemptRun(Document, frozen=True, kw_only=True):
    """An attempt made by hand; its bundle has more. The final message, calls with the source `runtime_reported`, and
    the usage unless a gateway counted it, are claims of the agent."""

    schema: str = "proofbox.runtime_try/1"
    strategy: str
    """The runtime that was used."""
    claimed: Claim
    verified: Verified
    infra: str | None
    """The code of the infrastructure failure; null if there was no failure."""
    reason: str
    attempt_id: str
    mission_id: str
    bundle: str
    """The directory of its evidence."""
    status: Status
    """`completed`: the agent finished its turn and its files are sealed. `interrupted`: it was stopped from outside."""
    error: AttemptFailure | None
    version: str
    chain: tuple[CandidateResult, ...]
    final_message: str
    tool_calls: tuple[CallMade, ...]
    steps: tuple[Step, ...]
    usage: TokenUsage | None
    """The sum over all threads, including sub-agents: the gateway's count, or the agent's report if no gateway was
    used. Null: unknown."""
    thread_id: str
    turn_id: str
    workspace: str
    snapshot_before: str
    snapshot_after: str
    """Sealed: a full scan after the agent's process tree was dead. Empty if that failed."""
    session: dict[str, Any]
    integrity: tuple[IntegrityFinding, ...]
    calls_complete: bool
    """False: calls may be missing from `tool_calls`; `integrity` states the reason."""
    duration_ms: float
    fork: ForkedFrom | None
    """The attempt and step that it was forked from. Null: it is not a fork."""


class AttemptFork(Document, frozen=True, kw_only=True):
    """A workspace with the files of a step, and the attempt that continued there."""

    schema: str = "proofbox.attempt_fork/1"
    fork: ForkedFrom
    """The attempt and step that the workspace was forked from."""
    workspace: str
    attempt: AttemptRun | None
    """Null if no prompt was given, so that only the workspace was created."""
