"""The documents that `attempt` and `suite` print with `--json`, except those that the SDK returns."""

from __future__ import annotations

from typing import Any

from proofbox.cli.output import Document
from proofbox.lab.reports.suite_run import AttemptFacts


class AttemptsDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.attempts/1"
    run_id: str
    attempts: tuple[AttemptFacts, ...]


class AttemptDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.attempt_show/1"
    attempt: AttemptFacts
    evidence_problem: str | None
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


class SchemaDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.suite_schema/1"
    json_schema: dict[str, Any]
    """The JSON Schema of suite files, in draft 2020-12."""
