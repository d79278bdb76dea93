"""Measures a node of a cluster, and decides whether it gets attempts. Bundles include the measurements."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from proofbox.core.clock import SystemClock, isoformat
from proofbox.evidence.bundle.identity import world
from proofbox.lab.attempt.documents import NodeRecord
from proofbox.lab.run import resources
from proofbox.lab.run.plan import Plan
from proofbox.sandbox.images.catalogue import list_images

MAX_SKEW = 30.0
"""Seconds that the clock of a node may differ. Evidence contains times of both machines."""


def measure_node(
    name: str, provider: str | None, keys: Sequence[str], images: Mapping[str, str], place: Path
) -> NodeRecord:
    """Measure this node. Failures are part of the record. `images` are those of `required_images`."""
    from proofbox.errors import ProofboxError
    from proofbox.lab.doctor import QUICK
    from proofbox.sandbox.conformance import run_conformance
    from proofbox.sandbox.contract import Policy
    from proofbox.sandbox.selection import choose

    tool = world()["tool"]
    problem = resources.reason(place)
    checks: dict[str, str] = {}
    try:
        provider = provider or choose("auto", Policy()).provider.name
        report = run_conformance(provider, only=QUICK)
        checks = {each.check: each.outcome for each in report.results}
        failed = [each for each, outcome in checks.items() if outcome == "failed"]
        problem = problem or (f"{provider} fails {', '.join(failed)}" if failed else absent_image(images))
    except (ProofboxError, OSError) as error:
        problem = problem or str(error)
    found = os.statvfs(place)
    return NodeRecord(
        name=name,
        kernel=platform.release(),
        machine=platform.machine(),
        python=platform.python_version(),
        proofbox=tool["version"],
        provider=provider or "",
        checks=checks,
        problem=problem,
        disk_free=found.f_bavail * found.f_frsize,
        keys=tuple(each for each in keys if os.environ.get(each)),
        measured_at=isoformat(SystemClock().now()),
    )


def required_images(plan: Plan) -> dict[str, str]:
    """Return the digest of each image that a run uses, by name, except images of a container engine."""
    named = {each.image or plan.box_settings.image for each in plan.suite().missions}
    return {each.name: each.sha256 for each in list_images() if each.sha256 and named & {each.name, each.reference}}


def absent_image(images: Mapping[str, str]) -> str:
    """Return which of these images this machine lacks, or has with another digest; empty if it has all of them."""
    here = {each.name: each for each in list_images()}
    for name, digest in images.items():
        found = here.get(name)
        if found is None or not found.archive.exists():
            return f"the image {name!r} is not there; pull, build or import it on the node"
        if found.sha256 != digest:
            return f"its image {name!r} has another digest: {found.sha256[:12]}, not {digest[:12]}"
    return ""


def refusals(node: NodeRecord, keys: Sequence[str], skew: float) -> Iterator[str]:
    """Yield why a node gets no attempts. `keys` are the variables that are set on this machine and needed there."""
    tool, machine = world()["tool"], platform.machine()
    if node.proofbox != tool["version"]:
        yield f"it has proofbox {node.proofbox}, and this machine {tool['version']}"
    if node.machine != machine:
        yield f"its architecture is {node.machine}, and that of this machine {machine}"
    if missing := [each for each in keys if each not in node.keys]:
        yield f"{', '.join(missing)} is not set there; keys are never sent to nodes"
    if abs(skew) > MAX_SKEW:
        yield f"its clock differs by {skew:.0f} s"
    if node.problem:
        yield node.problem
