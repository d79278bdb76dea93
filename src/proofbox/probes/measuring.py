"""Measure a plan: each of its profiles in a sandbox, and its probes once without one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from proofbox.config.settings import Settings
from proofbox.errors import ProofboxError
from proofbox.probes.adapters import adapted
from proofbox.probes.channel import ChannelCheck
from proofbox.sandbox.contract import Mount
from proofbox.sandbox.options import PolicyOptions
from proofbox.sandbox.probing.decoys import FROZEN, HIDDEN, Decoys, driver_digest, new_decoys
from proofbox.sandbox.probing.lanes import (
    BoxedDriver,
    LaneResult,
    Observation,
    baseline,
    driver_command,
    observe,
    run_on_host,
)
from proofbox.sandbox.probing.plan import ProbePlan, Profile
from proofbox.sandbox.service import Sandboxes

Progress = Callable[[str, int, int], None]
"""Receives the name of a lane, its number and how many there are."""


class MeasuredPlan(msgspec.Struct, frozen=True):
    """All lanes of a run."""

    driver_sha256: str
    channel: ChannelCheck
    """How the measuring process was started."""
    self_status: str
    """What the driver measured of its process outside any sandbox."""
    scenario: tuple[LaneResult, ...]
    baseline: LaneResult


def measure(
    plan: ProbePlan,
    *,
    provider: str | None,
    adapter: str | None,
    settings: Settings,
    channel: ChannelCheck,
    progress: Progress,
) -> MeasuredPlan:
    """Run every probe of the plan in its profiles, and once without a sandbox."""
    lanes = []
    for number, profile in enumerate(plan.profile):
        progress(profile.id, number, len(plan.profile) + 1)
        with new_decoys() as decoys:
            lanes.append(_scenario(plan, profile, decoys, provider or profile.provider, adapter, settings))
    progress("baseline", len(plan.profile), len(plan.profile) + 1)
    outside = baseline(plan.probe)
    return MeasuredPlan(driver_digest(), channel, outside.status, tuple(lanes), outside)


def _scenario(
    plan: ProbePlan, profile: Profile, decoys: Decoys, provider: str | None, adapter: str | None, settings: Settings
) -> LaneResult:
    probes = plan.probes_of(profile.id)
    if adapter is not None:
        argv = adapted(adapter, driver_command(decoys), project=decoys.project, mounted=decoys.mounted)
        found = observe(probes, decoys, partial(run_on_host, argv, decoys), profile.id)
        return msgspec.structs.replace(found, provider=adapter, isolation="foreign")
    shared = Mount(decoys.mounted, str(decoys.mounted), writable=profile.mount == "rw")
    policy: PolicyOptions = {
        "network": profile.network,
        "access": profile.access,
        "memory": profile.memory,
        "pids": profile.pids,
        "cpus": profile.cpus,
        "disk": profile.disk_mb,
        "mounts": [] if profile.mount == "none" else [shared],
        "hidden": [HIDDEN] if profile.rules else [],
        "frozen": [FROZEN] if profile.rules else [],
        "image": profile.image,
        "runtime": profile.runtime,
    }
    with Sandboxes(decoys.project, settings=settings) as boxes:
        box = BoxedDriver(lambda: boxes.start_session(provider=provider, **policy))
        try:
            lane = observe(probes, decoys, box.run, profile.id)
        except ProofboxError as error:
            nothing = tuple(Observation(p.id, p.args, None, None, problem=error.message) for p in probes)
            return LaneResult(profile.id, nothing, problem=f"{error.code}: {error.message}")
        return msgspec.structs.replace(lane, provider=box.provider, isolation=box.isolation, policy=box.policy)
