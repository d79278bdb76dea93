"""The artifacts of a plan run, as the evidence names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from proofbox.core.documents import stored
from proofbox.probes.channel import ChannelCheck, Confinement
from proofbox.sandbox.probing.results import ProbeResult

EXPECTED: Final = (
    *("run_manifest.json", "plan.json", "apply_preflight.json", "expected_matrix.json", "runtime_results.json"),
    *("runtime_events.normalized.json", "baseline_results.json", "oracle_results.json", "mismatch_summary.json"),
    *("mismatch_packets.jsonl", "path_witnesses.json", "summary.json", "summary.md"),
)


@stored("proofbox.plan_manifest/1", at="BUNDLE/run_manifest.json")
class RunManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, with what, and where."""

    run_id: str
    plan_id: str
    """The plan's id."""
    plan_digest: str
    """The SHA-256 of the plan's file; of a built-in plan, that of the digests of its file and the corpus."""
    channel: str
    """How the measuring process was started: `spawn_clean`, `launchd_clean` or `direct`."""
    provider: str
    adapter: str | None
    """The command line of a foreign sandbox; null: one of proofbox's providers was measured."""
    proofbox: str
    """The version of proofbox."""
    kernel: str
    """The kernel release, as in `uname -r`."""
    machine: str
    """The architecture, as in `uname -m`."""
    driver_sha256: str
    """The digest of the program that performed the operations."""
    started_at: str
    profiles: tuple[str, ...]
    """The ids of the profiles that were measured."""
    probes: int
    """The number of results."""
    selected: bool
    """Only some profiles or probes were run."""
    schema_version: str = "proofbox.plan_manifest/1"


class SelfCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What the measuring process reports about its own state."""

    sandboxed: bool
    """Whether there is any sign of a sandbox."""
    reasons: tuple[str, ...]
    confinement: Confinement
    """What its child, the driver, measured and inherits."""
    status: Mapping[str, str]
    """The kernel's status lines of the process, by name."""


class ProfileApplication(msgspec.Struct, frozen=True, kw_only=True):
    """How one profile was applied."""

    profile: str
    """The profile's id."""
    apply_ok: bool
    """The box started, the driver answered, and the controls passed."""
    provider: str
    isolation: str
    policy: Mapping[str, Any]
    confinement: Confinement
    """What the driver measured of its process in the box."""
    status: Mapping[str, str]
    """The kernel's status lines of that process, by name."""
    problem: str
    """Why the profile was not applied; empty if it was."""


@stored("proofbox.apply_preflight/1", at="BUNDLE/apply_preflight.json")
class ApplyPreflight(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the profiles were really applied, and whether the measuring process was free of a sandbox itself."""

    apply_ok: bool
    """Every profile was applied, and its controls passed."""
    channel: ChannelCheck
    """How the measuring process was started; it reports its own state."""
    sandbox_check_self: SelfCheck
    """Whether the measuring process was itself in a sandbox."""
    profiles: tuple[ProfileApplication, ...]
    """How each profile was applied."""
    schema_version: str = "proofbox.apply_preflight/1"


class ExpectedRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one probe should find in one profile."""

    profile: str
    """The profile's id."""
    probe_id: str
    """The probe's id."""
    operation: str
    args: tuple[str, ...]
    """The arguments, with the names of decoys in braces."""
    expected: Literal["allow", "deny", "baseline"]
    """`baseline`: the same as without a sandbox."""
    effect: str
    """Where an allowed change takes effect: `host` or `box`."""
    control: bool
    """Whether the other results depend on this one."""
    reason: str


@stored("proofbox.expected_matrix/1", at="BUNDLE/expected_matrix.json")
class ExpectedMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """What every probe should find in every profile."""

    rows: tuple[ExpectedRow, ...]
    """One row for each probe in each profile."""
    schema_version: str = "proofbox.expected_matrix/1"


@stored("proofbox.runtime_results/1", at="BUNDLE/runtime_results.json")
class RuntimeResults(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about every probe in every profile."""

    results: tuple[ProbeResult, ...]
    schema_version: str = "proofbox.runtime_results/1"


class RuntimeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the driver."""

    lane: Literal["scenario", "baseline"]
    """In the sandbox (`scenario`) or without one (`baseline`)."""
    profile: str
    """The profile's id; `baseline` without a sandbox."""
    probe_id: str
    """The probe's id."""
    result: int
    """The operation's result; -1: it failed."""
    errno: int
    """The kernel's error number; 0: no error."""
    error: str
    duration_ns: int
    """The time that the operation took, in nanoseconds."""
    timed_out: bool
    signal: int
    path: str


@stored("proofbox.runtime_events/1", at="BUNDLE/runtime_events.normalized.json")
class RuntimeEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of the driver in all lanes, in one form."""

    events: tuple[RuntimeEvent, ...]
    """The answers, in the order of the probes."""
    schema_version: str = "proofbox.runtime_events/1"


class BaselineResult(msgspec.Struct, frozen=True, kw_only=True):
    """One probe without a sandbox."""

    probe_id: str
    """The probe's id."""
    decision: str
    """`allow`, `deny`, `unknown` or `skipped`."""
    detail: str


@stored("proofbox.baseline_results/1", at="BUNDLE/baseline_results.json")
class BaselineResults(msgspec.Struct, frozen=True, kw_only=True):
    """The same probes without a sandbox; for skipped ones, the reason."""

    results: tuple[BaselineResult, ...]
    schema_version: str = "proofbox.baseline_results/1"


class OracleResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one probe from outside."""

    profile: str
    """The profile's id."""
    probe_id: str
    """The probe's id."""
    happened: bool
    """Whether the operation took effect on the host."""
    seen: str
    """The observation in words."""


@stored("proofbox.oracle_results/1", at="BUNDLE/oracle_results.json")
class OracleResults(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen from outside, for the probes whose effects are visible there."""

    results: tuple[OracleResult, ...]
    schema_version: str = "proofbox.oracle_results/1"


@stored("proofbox.mismatch_summary/1", at="BUNDLE/mismatch_summary.json")
class MismatchSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How many results differ from what was expected, by reason."""

    mismatches: int
    """Results that differ from the plan."""
    unexplained: int
    """Those that the plan does not explain."""
    by_reason: Mapping[str, int]
    """The number of mismatches, by reason."""
    reasons: Mapping[str, str]
    """What each reason means."""
    schema_version: str = "proofbox.mismatch_summary/1"


@stored("proofbox.plan_summary/1", at="BUNDLE/summary.json, of a plan run")
class PlanSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A plan run in numbers."""

    plan_id: str
    """The plan's id."""
    provider: str
    ok: bool
    """No mismatch is unexplained."""
    probes: int
    """The number of results."""
    allowed: int
    denied: int
    """The number of denied operations."""
    unknown: int
    """The number of results that are not clear."""
    mismatches: int
    """Results that differ from the plan."""
    unexplained: int
    """Mismatches that the plan does not explain."""
    by_evidence_class: Mapping[str, int]
    """The number of results, by evidence class."""
    schema_version: str = "proofbox.plan_summary/1"
