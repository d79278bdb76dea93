"""Two attempts side by side, aligned by step, from their first divergence; and two plan runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import msgspec

from proofbox.lab.attempt.trace import STEPS
from proofbox.viewer.reading import OpenedEvidence

MAX_STEPS: Final = 2000
"""Maximum number of steps of each attempt that are compared."""
SHOWN: Final = 200
"""Maximum number of rows on the page."""
BEFORE: Final = 2
"""Equal steps that are shown before the first divergence."""


class ComparedStep(msgspec.Struct, frozen=True):
    """A step as far as it is compared: what was done, how it ended, and what it changed."""

    n: int
    kind: str
    tool: str = ""
    command: str = ""
    paths: tuple[str, ...] = ()
    status: str = ""
    exit_code: int | None = None
    changed: int = 0
    diff: str = ""
    """The digest of its diff; empty if it changed nothing."""

    @property
    def outcome(self) -> tuple[object, ...]:
        return (self.kind, self.tool, self.command, self.paths, self.status, self.exit_code, self.diff)


@dataclass(frozen=True, slots=True)
class ComparedRow:
    first: ComparedStep | None
    second: ComparedStep | None
    same: bool


@dataclass(frozen=True, slots=True)
class AttemptComparison:
    rows: Sequence[ComparedRow]
    divergence: int | None
    """The number of the first step that differs; None: the steps are the same."""
    skipped: int
    """Equal steps before the first row."""
    total: int
    cut: bool
    """Whether more rows follow that are not shown."""


def compare_attempts(first: OpenedEvidence, second: OpenedEvidence) -> AttemptComparison:
    """Align the steps of two attempts by their number."""
    pairs = [
        ComparedRow(one, two, one is not None and two is not None and one.outcome == two.outcome)
        for one, two in zip_longest(read_steps(first), read_steps(second))
    ]
    divergence = next((number for number, row in enumerate(pairs) if not row.same), None)
    start = 0 if divergence is None else max(0, divergence - BEFORE)
    return AttemptComparison(
        rows=pairs[start : start + SHOWN],
        divergence=None if divergence is None else divergence + 1,
        skipped=start,
        total=len(pairs),
        cut=start + SHOWN < len(pairs),
    )


def read_steps(evidence: OpenedEvidence) -> list[ComparedStep]:
    """Return the first steps of an attempt."""
    found: list[ComparedStep] = []
    for line in evidence.lines(STEPS, 0, 2 * MAX_STEPS):
        step = line.get("step")
        if isinstance(step, dict) and len(found) < MAX_STEPS:
            try:
                found.append(msgspec.convert({**step, "diff": str(line.get("diff_sha256", ""))}, ComparedStep))
            except msgspec.ValidationError:
                continue
    return found
