"""Totals over the attempts of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from proofbox.lab.run.ledger import Attempt


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Counts over all attempts, and over the results: one per replicate."""

    attempts: int
    results: int
    passed: int
    failed: int
    unverified: int
    claimed_success: int
    infra: dict[str, int]
    not_run: int


def final_attempts(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the last attempt at each replicate of each mission, which determines its result."""
    parents = {each.parent for each in attempts}
    return [each for each in attempts if each.id not in parents]


def totals(attempts: Sequence[Attempt]) -> Totals:
    final = final_attempts(attempts)
    verified = Counter(each.result.verified for each in final if each.result is not None)
    claimed = Counter(each.result.claimed for each in final if each.result is not None)
    infra = Counter(each.result.infra for each in attempts if each.result and each.result.infra)
    return Totals(
        attempts=len(attempts),
        results=len(final),
        passed=verified["passed"],
        failed=verified["failed"],
        unverified=verified["none"],
        claimed_success=claimed["success"],
        infra=dict(sorted(infra.items())),
        not_run=sum(each.result is None for each in final),
    )
