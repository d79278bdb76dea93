"""Bounds on what is under way at once: `[suite] most`, by provider and by strategy.

An attempt is in the lane of the provider that its box will be of, and in that of the strategy that will run it. Both
are found out when the run is planned, so that no worker has to try anything before it may claim. A provider that can't
be had has no lane: its attempts will say so, and take no box.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from proofbox.errors import ProofboxError
from proofbox.lab.attempt.mission_box import asked_of_a_box
from proofbox.lab.run.plan import Plan
from proofbox.lab.suite.reading import Suite
from proofbox.lab.suite.spec import Mission
from proofbox.sandbox.providers import ALIASES
from proofbox.sandbox.service_core import ServiceCore


def lanes_of(plan: Plan, suite: Suite, given: Callable[[Mission], Path]) -> dict[str, tuple[str, ...]]:
    """Of each mission the lanes of its attempts; none where nothing is bounded. `given` has its files."""
    if not suite.fields.most:
        return {}
    strategy = plan.strategy or plan.parsed_chain().candidates[0].strategy
    return {each.id: (*_provider(plan, each, given(each)), strategy) for each in suite.missions}


def bounds_of(suite: Suite) -> dict[str, int]:
    """By lane, how many may be under way. A provider may be named twice, by an alias: then both hold."""
    bounds: dict[str, int] = {}
    for name, most in suite.fields.most.items():
        lane = ALIASES.get(name, name)
        bounds[lane] = min(most, bounds.get(lane, most))
    return bounds


def _provider(plan: Plan, mission: Mission, given: Path) -> Iterator[str]:
    with contextlib.suppress(ProofboxError):
        yield ServiceCore(given, settings=plan.box_settings).chosen(
            plan.provider or mission.provider, asked_of_a_box(mission)
        )
