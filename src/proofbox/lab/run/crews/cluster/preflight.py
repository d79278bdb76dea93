"""Measures a node of a cluster, and decides whether it gets attempts. Bundles include the measurements."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

from proofbox.core.clock import SystemClock, isoformat
from proofbox.evidence.bundle.identity import world
from proofbox.lab.attempt.documents import NodeRecord
from proofbox.lab.run import resources

MAX_SKEW = 30.0
"""Seconds that the clock of a node may differ. Evidence contains times of both machines."""


def measure_node(name: str, provider: str | None, keys: Sequence[str], place: Path) -> NodeRecord:
    """Measure this node. Failures are part of the record."""
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
        problem = problem or (f"{provider} fails {', '.join(failed)}" if failed else "")
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
