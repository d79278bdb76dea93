"""Lost nodes and lost heads: typed ends, retries by the ledger, and a run that resumes elsewhere. Only in a soak."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import ray_cluster
from suites import HEAD, attempts, command, conduct, mission, plan

from proofbox.config.engine import EngineSettings
from proofbox.errors import EngineLost
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.reports.totals import final_attempts
from proofbox.lab.run.conductor import Conductor
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import ledger_path

pytestmark = [
    pytest.mark.needs("bubblewrap", "ray"),
    pytest.mark.xdist_group("ray"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        os.environ.get("PROOFBOX_SOAK", "") in ("", "0"), reason="starts several clusters: scripts/soak"
    ),
]

WAITS = mission("waits", command("until test -e go; do sleep 0.1; done"), verify={"commands": ["test -e go"]})


def test_lost_node_and_lost_head_end_in_types_and_the_run_resumes(tmp_path: Path, out: Path) -> None:
    """The attempts of a dead node are retried on another one. A dead head ends the run, which resumes elsewhere."""
    source = HEAD + WAITS.replace('"waits"', '"first"') + WAITS
    with ray_cluster(2, 1) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", cluster.token)
        made = plan(source, out, tmp_path, concurrency=2, engine=EngineSettings(name=f"ray:{cluster.address}"))
        running: list[str] = []

        def act(event: dict[str, Any]) -> None:
            if event["event"] == "running":
                running.append(event["attempt_id"])
                if len(running) == 2:
                    cluster.command("kill 0")
                elif len(running) == 3:
                    cluster.command("behead")

        with pytest.raises(EngineLost):
            conduct(made, out, act)
    found = attempts(made, out)
    lost = {id: each.result.infra for id, each in found.items() if each.result is not None}
    assert "ATTEMPT_NODE_LOST" in lost.values()
    assert set(lost.values()) <= {"ATTEMPT_NODE_LOST", "ATTEMPT_WORKER_LOST"}
    assert "claimed" not in {each.state for each in found.values()}

    with ray_cluster(1, 1) as another, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", another.token)

        def interrupt(event: dict[str, Any]) -> None:
            if event["event"] == "running":
                with Ledger(ledger_path(out, made.run_id)) as ledger:
                    ledger.interrupt(event["attempt_id"])

        conductor = Conductor(
            out, made.run_id, on_event=interrupt, engine=EngineSettings(name=f"ray:{another.address}")
        )
        assert verify(conductor.conduct()).ok
        conductor.close()
    ended = final_attempts(list(attempts(made, out).values()))
    assert {each.mission: each.result and each.result.reason for each in ended} == {
        "first": "interrupted",
        "waits": "interrupted",
    }
