"""Measures a node of a cluster, and decides whether it gets attempts. Bundles include the measurements."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from proofbox.config.settings import Settings
from proofbox.core.clock import SystemClock, isoformat
from proofbox.core.redaction.key_files import with_key_files
from proofbox.errors import ProofboxError, SandboxError
from proofbox.evidence.bundle.identity import world
from proofbox.lab.attempt.documents import NodeRecord
from proofbox.lab.run import resources
from proofbox.lab.run.crews.cluster.images import RunImages
from proofbox.lab.run.crews.cluster.places import measuring_place
from proofbox.lab.run.plan import Plan

MAX_SKEW = 30.0
"""Seconds that the clock of a node may differ. Evidence contains times of both machines."""


class MeasuredBox(NamedTuple):
    """A kind of box that missions use."""

    provider: str | None
    """None: the one that a box without a named provider gets."""
    image: str | None
    """The reference to an image of the container engine; None: an archive, or the programs of the node."""


def boxes_of(plan: Plan, images: RunImages) -> list[MeasuredBox]:
    """Return the kinds of boxes that the missions of a run use: each provider, with the first image that it gets.

    What a provider enforces does not depend on the image, so one of its images is enough.
    """
    found: dict[tuple[str | None, bool], MeasuredBox] = {}
    for mission in plan.suite().missions:
        provider = plan.provider_of(mission)
        image = images.references.get(mission.id)
        box = MeasuredBox(provider, None if image in images.archives else image)
        found.setdefault((provider, box.image is None), box)
    return list(found.values())


def measure_node(
    name: str, boxes: Sequence[MeasuredBox], keys: Sequence[str], images: Sequence[str], place: Path
) -> NodeRecord:
    """Measure this node. Failures are part of the record. `images` are those that its container engine must have."""
    problem = resources.reason(place) or absent_image(images)
    checks: dict[str, dict[str, str]] = {}
    try:
        for box in boxes if not problem else ():  # a missing image would be built or pulled
            with measuring_place(place):
                provider, outcomes = _measure(box)
            checks[provider] = outcomes
            failed = [each for each, outcome in outcomes.items() if outcome == "failed"]
            problem = problem or (f"{provider} fails {', '.join(failed)}" if failed else "")
    except (ProofboxError, OSError) as error:
        problem = problem or str(error)
    tool = world()["tool"]
    disk = os.statvfs(place)
    return NodeRecord(
        name=name,
        kernel=platform.release(),
        machine=platform.machine(),
        python=platform.python_version(),
        proofbox=tool["version"],
        provider=", ".join(checks),
        checks=next(iter(checks.values()))
        if len(checks) == 1
        else {
            f"{provider}: {check}": outcome for provider, found in checks.items() for check, outcome in found.items()
        },
        problem=problem,
        disk_free=disk.f_bavail * disk.f_frsize,
        keys=tuple(filter(with_key_files(os.environ, keys).get, keys)),
        measured_at=isoformat(SystemClock().now()),
    )


def _measure(box: MeasuredBox) -> tuple[str, dict[str, str]]:
    """Return the name of the box's provider here, and the outcome of each check."""
    from proofbox.lab.doctor import QUICK
    from proofbox.sandbox.conformance import run_conformance
    from proofbox.sandbox.contract import Policy
    from proofbox.sandbox.selection import choose

    provider = choose(box.provider or "auto", Policy(image=box.image)).provider.name
    report = run_conformance(provider, only=QUICK, settings=Settings(image=box.image))
    return provider, {each.check: each.outcome for each in report.results}


def absent_image(images: Sequence[str]) -> str:
    """Return which of these images the container engine of this machine lacks; empty if it has all of them."""
    from proofbox.sandbox.containers.engine import ContainerEngine
    from proofbox.sandbox.containers.images import inspect_image

    for image in images:
        try:
            inspect_image(ContainerEngine.find(), image)
        except SandboxError as error:
            return f"{error.message}; pull {image!r} on the node"
    return ""


def refusals(node: NodeRecord, keys: Sequence[str], skew: float) -> Iterator[str]:
    """Yield why a node gets no attempts. `keys` are the variables that are needed there."""
    tool, machine = world()["tool"], platform.machine()
    if node.proofbox != tool["version"]:
        yield f"it has proofbox {node.proofbox}, but this machine has {tool['version']}"
    if node.machine != machine:
        yield f"its architecture is {node.machine}, but this machine has {machine}"
    if missing := [each for each in keys if each not in node.keys]:
        yield f"{', '.join(missing)} is not set there; keys are never sent to nodes"
    if abs(skew) > MAX_SKEW:
        yield f"its clock differs by {skew:.0f} s"
    if node.problem:
        yield node.problem
