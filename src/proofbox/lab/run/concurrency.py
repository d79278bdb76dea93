"""Limits on concurrent attempts by provider and by strategy: `[suite] max_concurrent`.

An attempt belongs to the lane of the provider that its box will use and to the lane of the strategy that will run it.
Both are determined when the run is planned, so workers need not try anything before they claim an attempt. An
unavailable provider has no lane: its attempts report the failure and use no box.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from proofbox.errors import ProofboxError
from proofbox.lab.attempt.mission_box import requested_options
from proofbox.lab.run.plan import Plan
from proofbox.lab.suite.reading import Suite
from proofbox.lab.suite.spec import Mission
from proofbox.sandbox.opening import BoxOpener
from proofbox.sandbox.providers import ALIASES


def lanes_of(plan: Plan, suite: Suite, given: Callable[[Mission], Path]) -> dict[str, tuple[str, ...]]:
    """Return the lanes of each mission's attempts; empty if the suite sets no limit. `given` returns its files."""
    if not suite.fields.max_concurrent:
        return {}
    strategy = plan.strategy or plan.parsed_chain().candidates[0].strategy
    return {each.id: (*_provider(plan, each, given(each)), strategy) for each in suite.missions}


def bounds_of(suite: Suite) -> dict[str, int]:
    """Return the maximum number of concurrent attempts by lane; the lower one if an alias names a provider twice."""
    bounds: dict[str, int] = {}
    for name, limit in suite.fields.max_concurrent.items():
        lane = ALIASES.get(name, name)
        bounds[lane] = min(limit, bounds.get(lane, limit))
    return bounds


def _provider(plan: Plan, mission: Mission, given: Path) -> Iterator[str]:
    with contextlib.suppress(ProofboxError):
        yield BoxOpener(given, settings=plan.box_settings).chosen(
            plan.provider or mission.provider, requested_options(mission)
        )
