"""The result of one probe, the reasons for a mismatch, and a difference between two runs."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Reason = Literal[
    "unexpected_allow",
    "unexpected_deny",
    "unknown",
    "reached_the_host",
    "control_failed",
    "profile_not_applied",
    "driver_changed",
]
REASONS: Final[dict[str, str]] = {
    "unexpected_allow": "the sandbox allowed what it should deny",
    "unexpected_deny": "the sandbox denied what it should allow",
    "unknown": "the result is not clear: no answer, a timeout, or an error that says neither",
    "reached_the_host": "the change was meant to stay in the box, and took effect on the host",
    "control_failed": "a control failed, so the profile was not applied or the probes do not work",
    "profile_not_applied": "the box did not start",
    "driver_changed": "the driver's file changed during the run, so its answers prove nothing",
}


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """One probe in one profile."""

    profile: str
    """The profile's id."""
    probe_id: str
    """The probe's id."""
    operation: str
    args: tuple[str, ...]
    """The arguments, with the decoys filled in."""
    expected: Literal["allow", "deny", "unknown"]
    """The decision that the plan expects; `unknown`: the baseline is not clear."""
    decision: Literal["allow", "deny", "unknown"]
    """Whether the sandbox allowed the operation."""
    evidence_class: str
    """`host_fact`, `constrained_observation` or `self_report`."""
    detail: str
    errno: int
    """The kernel's error number; 0: no error."""
    error: str
    duration_ns: int
    """The time that the operation took, in nanoseconds."""
    baseline: str
    """The decision without a sandbox, or the reason why the baseline was skipped."""
    matched: bool
    """Whether the result is as expected."""
    mismatch: Reason | None
    """How the result differs from the plan; null: it does not."""
    explained: str
    """The plan's explanation of a mismatch; empty without one."""


class ChangedDecision(msgspec.Struct, frozen=True):
    """A probe whose decision differs, or that only one of the runs has."""

    profile: str
    """The profile's id."""
    probe_id: str
    """The probe's id."""
    first: str | None
    """The decision in the first run; null: it has no such probe."""
    second: str | None
    """The decision in the second run; null: it has no such probe."""


def unexplained(results: list[ProbeResult]) -> list[ProbeResult]:
    """Return the mismatches that the plan does not explain."""
    return [result for result in results if not result.matched and not result.explained]
