"""The summary of a run, computed from its ledger: per mission and in total."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from proofbox.lab.attempt.documents import MissionSummary, RunSummary, SuiteNamed
from proofbox.lab.reports.totals import final_attempts, totals
from proofbox.lab.run.ledger import Attempt
from proofbox.lab.suite.reading import Suite
from proofbox.lab.suite.spec import Mission, comparability

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
