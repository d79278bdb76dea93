"""The types of a plan: profiles, probes and what is expected of them."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from proofbox.core.documents import stored

SCHEMA: Final = "proofbox.plan/1"
Decision = Literal["allow", "deny", "unknown"]
Identifier = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,79}$")]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class PlanFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table `[plan]`."""

    id: Identifier
    """The plan's id."""
    description: str = ""
    """What the plan measures."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A box to measure: a provider and its policy."""

    id: Identifier
    """The profile's id."""
    provider: str | None = None
    """Absent: the plan's provider is given on the command line."""
    description: str = ""
    """The purpose of the profile."""
    network: Literal["none", "full"] = "none"
    access: Literal["rw", "ro", "overlay"] = "rw"
    memory: str | None = None
    """Such as `256m`."""
    pids: Annotated[int, msgspec.Meta(ge=1)] | None = None
    cpus: Annotated[float, msgspec.Meta(gt=0)] | None = None
    disk_mb: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """With access `overlay`."""
    mount: Literal["none", "ro", "rw"] = "none"
    """How the decoy directory `{mounted}` is mounted."""
    rules: bool = False
    """Whether rules like those of capabilities apply: the decoy `{hidden}` is hidden, and `{frozen}` is read-only."""
    image: str | None = None
    runtime: str | None = None
    """The container engine's runtime, such as `runsc`."""


class Probe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One operation, and what is expected of it."""

    id: Identifier
    """The probe's id."""
    operation: Text
    args: tuple[str, ...] = ()
    """The target and further arguments. `{outside}` and the like stand for decoys that the run creates."""
    expect: Literal["allow", "deny", "baseline"]
    """`baseline`: the same as without a sandbox."""
    reason: Text
    """Why this is expected: the promise that the probe checks."""
    profiles: tuple[Identifier, ...] = ()
    """The profiles that it runs in; absent: all."""
    effect: Literal["host", "box"] = "host"
    """Where an allowed change takes effect: on the host, or only in the box, as with access `overlay`."""
    baseline: Literal["run", "skip"] = "run"
    """`skip`: do not run it without a sandbox."""
    baseline_reason: str = ""
    """Why the baseline is skipped."""
    control: bool = False
    """A control shows that the profile was applied and the probes work. If one fails, nothing else counts."""
    gap: str = ""
    """A known gap: explains a mismatch, which then does not fail the run."""


@stored(SCHEMA, at="BUNDLE/plan.json, and a file for `plan run`")
class ProbePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A set of measurements of a sandbox."""

    plan: PlanFields
    """The plan's id and description."""
    profile: Annotated[tuple[Profile, ...], msgspec.Meta(min_length=1, max_length=50)]
    """The profiles that the probes run in."""
    probe: Annotated[tuple[Probe, ...], msgspec.Meta(min_length=1, max_length=2000)]
    """The probes."""
    schema_version: Literal["proofbox.plan/1"] = SCHEMA

    @property
    def id(self) -> str:
        return self.plan.id

    def probes_of(self, profile: str) -> list[Probe]:
        return [probe for probe in self.probe if not probe.profiles or profile in probe.profiles]
