"""Made-up results of a flow, for tests of plots and tables."""

from __future__ import annotations

from typing import Any

from proofbox.lab.reports.campaigns.results import FlowReport, Friction
from proofbox.lab.statistics import LossBounds, PassRate


def flow_report(**changes: Any) -> FlowReport:
    """Return the results of ten attempts: eight passed, one failed and one was lost."""
    values: dict[str, Any] = {
        "flow": "a",
        "strategy": "scripted",
        "model": None,
        "run": "",
        "committed": True,
        "planned": 10,
        "ended": 10,
        "rate": PassRate(8, 9, 9, 8 / 9, 0.56, 0.98, 1.0, 9.0),
        "bounds": LossBounds(1, 0.8, 0.9),
        "infra": {"RUNTIME_CRASH": 1},
        "unverified": 0,
        "pass_at_k": {},
        "pass_hat_k": {},
        "flaky": (),
        "seconds": None,
        "tokens": None,
        "tool_calls": None,
        "tokens_spent": 1000,
        "tokens_unknown": 0,
        "cost": None,
        "cost_spent": None,
        "idle": None,
        "friction": Friction(
            repeated_calls=0,
            dead_ends=0,
            tool_failures=3,
            declined=2,
            model_retries=0,
            attempt_retries=0,
            contradictions=1,
        ),
        "reasons": {},
        "contradicted_claims": 2,
        "cleanup_failures": {"ATTEMPT_CLEANUP_FAILED": 1, "ATTEMPT_CLEANUP_TIMEOUT": 2},
    }
    return FlowReport(**{**values, **changes})
