"""What came of a run, counted from its ledger: per mission, and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from proofbox.lab.documents import MissionSummary, RunSummary, SuiteNamed, Totals
from proofbox.lab.ledger import Attempt
from proofbox.lab.reading import Suite
from proofbox.lab.spec import Mission, comparability

SUMMARY = "summary.json"


def summarize(run_id: str, suite: Suite, attempts: Sequence[Attempt]) -> RunSummary:
    final = final_attempts(attempts)
    return RunSummary(
        run_id=run_id,
        suite=SuiteNamed(suite.id, suite.sha256),
        status=run_status(attempts),
        comparable=not suite.not_comparable,
        totals=totals(attempts),
        missions=tuple(
            _mission(mission, [each for each in final if each.mission == mission.id]) for mission in suite.missions
        ),
    )


def run_status(attempts: Sequence[Attempt]) -> Literal["ok", "partial"]:
    whole = all(each.result is not None and each.result.infra is None for each in attempts)
    return "ok" if whole else "partial"


def final_attempts(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Of each replicate of each mission the last try: what its result is."""
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


def _mission(mission: Mission, final: Sequence[Attempt]) -> MissionSummary:
    results = [each.result for each in final if each.result is not None]
    return MissionSummary(
        mission_id=mission.id,
        **comparability(mission),
        results=len(final),
        passed=sum(result.verified == "passed" for result in results),
        failed=sum(result.verified == "failed" for result in results),
        claimed_but_failed=sum(result.claimed == "success" and result.verified == "failed" for result in results),
        infra=sum(result.infra is not None for result in results),
        reasons=dict(sorted(Counter(result.reason for result in results).items())),
    )
