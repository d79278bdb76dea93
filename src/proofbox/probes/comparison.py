"""What changed between two runs of a plan: versions, kernels, decisions."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from proofbox.evidence.bundle.reader import Bundle, load_bundle
from proofbox.probes.documents import RunManifest, RuntimeResults
from proofbox.sandbox.probing.results import ChangedDecision, ProbeResult

_FACTS = ("plan_id", "plan_digest", "channel", "provider", "proofbox", "kernel", "machine", "driver_sha256")


class ChangedFact(msgspec.Struct, frozen=True):
    """A fact about the runs that differs."""

    name: str
    first: str
    second: str


class PlanComparison(msgspec.Struct, frozen=True):
    """Two runs of a plan, compared."""

    first: str
    second: str
    facts: tuple[ChangedFact, ...]
    decisions: tuple[ChangedDecision, ...]
    same: int
    """Probes with the same decision in both."""


def compare_plan_runs(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> PlanComparison:
    """Compare two committed plan runs, both verified while they are read."""
    a, b = load_bundle(first), load_bundle(second)
    one, two = _read(a, "run_manifest.json", RunManifest), _read(b, "run_manifest.json", RunManifest)
    facts = tuple(
        ChangedFact(name, str(getattr(one, name)), str(getattr(two, name)))
        for name in _FACTS
        if getattr(one, name) != getattr(two, name)
    )
    left, right = results_of(a), results_of(b)
    keys = list(dict.fromkeys([*left, *right]))
    changed = [
        ChangedDecision(*key, _decision(left.get(key)), _decision(right.get(key)))
        for key in keys
        if _decision(left.get(key)) != _decision(right.get(key))
    ]
    return PlanComparison(one.run_id, two.run_id, facts, tuple(changed), len(keys) - len(changed))


def results_of(bundle: Bundle) -> dict[tuple[str, str], ProbeResult]:
    """Return the results of a plan run by profile and probe."""
    found = _read(bundle, "runtime_results.json", RuntimeResults)
    return {(each.profile, each.probe_id): each for each in found.results}


def _decision(result: ProbeResult | None) -> str | None:
    return None if result is None else result.decision


def _read(bundle: Bundle, name: str, kind: Any) -> Any:
    return msgspec.convert(bundle.read_json(name, schema=kind.__struct_defaults__[-1]), kind)
