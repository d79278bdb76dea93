"""The documents that `runtime`, `attempt` and `suite` print with `--json`, except those that the SDK returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proofbox.agents.contract import RuntimeCapabilities
from proofbox.agents.events import TokenUsage
from proofbox.agents.runtimes.listing import RuntimeFacts
from proofbox.agents.steps import Step
from proofbox.agents.strategies import CandidateResult
from proofbox.cli.output import Document, ErrorBody
from proofbox.config.consent import Widening
from proofbox.core.spec_files.problems import Problem
from proofbox.lab.attempt.adhoc.request import AttemptFailure, AttemptRun, CallMade, Status
from proofbox.lab.attempt.claims import Claim
from proofbox.lab.attempt.documents import ForkedFrom, IntegrityFinding
from proofbox.lab.attempt.result import Verified
from proofbox.lab.reports.suite_run import AttemptFacts
from proofbox.sandbox.conformance.check import CheckResult


class RuntimesDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.runtimes/1"
    runtimes: tuple[RuntimeFacts, ...]
    """All installed runtimes, in alphabetical order."""
    chain: str
    """The strategies that are tried here without --strategies."""
    chain_origin: str


class RuntimeCheckDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.runtime_check/1"
    strategy: str
    version: str
    capabilities: RuntimeCapabilities
    passed: int
    failed: int
    results: tuple[CheckResult, ...]
    error: ErrorBody | None = None


class TryDocument(Document, frozen=True, kw_only=True):
    """The members of an `AttemptRun`."""

    schema: str = "proofbox.runtime_try/1"
    attempt_id: str
    mission_id: str
    strategy: str
    claimed: Claim
    verified: Verified
    infra: str | None
    reason: str
    bundle: str
    status: Status
    """`completed`: the agent finished its turn, and its files are sealed. `interrupted`: it was stopped."""
    error: AttemptFailure | None
    version: str
    chain: tuple[CandidateResult, ...]
    final_message: str
    tool_calls: tuple[CallMade, ...]
    steps: tuple[Step, ...]
    usage: TokenUsage | None
    thread_id: str
    turn_id: str
    workspace: str
    snapshot_before: str
    snapshot_after: str
    session: dict[str, Any]
    integrity: tuple[IntegrityFinding, ...]
    calls_complete: bool
    """False: calls may be missing from `tool_calls`; `integrity` states the reason."""
    duration_ms: float
    fork: ForkedFrom | None
    """The attempt and step that it was forked from; null: not a fork."""


class AttemptForkDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.attempt_fork/1"
    fork: ForkedFrom
    """The attempt and step that the workspace was forked from."""
    workspace: str
    attempt: AttemptRun | None
    """The attempt that continued there; null if no prompt was given."""


class AttemptsDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.attempts/1"
    run_id: str
    attempts: tuple[AttemptFacts, ...]


class AttemptDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.attempt_show/1"
    attempt: AttemptFacts
    doubt: str | None
    """Why its evidence is invalid, so that nothing here can be relied on; null: it is valid, or still being written."""
    documents: dict[str, Any]
    """The JSON artifacts of its bundle, by name."""


class AttemptDiffDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.attempt_diff/1"
    attempt_id: str
    step: int | None
    """The number of the step; null: the whole attempt."""
    diff: str
    """What changed, as a redacted unified diff; empty if nothing changed."""


class InterruptDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.attempt_interrupt/1"
    attempt: AttemptFacts
    conducted: bool
    """Whether a process conducts the run; if not, the interruption takes effect when the run is resumed."""


class LintDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.suite_lint/1"
    suite: str | None
    missions: int
    sha256: str | None
    """The digest of the suite's content, independent of its formatting; null: the suite is invalid."""
    problems: tuple[Problem, ...]
    notes: Mapping[str, tuple[str, ...]] = {}
    """For each mission written for another system, what is left out or done differently here."""
    warnings: Mapping[str, tuple[str, ...]] = {}
    """For each mission, how an agent could pass verification without doing the work."""
    widenings: tuple[Widening, ...] = ()
    """What the suite asks for beyond your settings. `suite run` needs your consent to it."""
    error: ErrorBody | None = None


class SchemaDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.suite_schema/1"
    json_schema: dict[str, Any]
    """The JSON Schema of suite files, in draft 2020-12."""
