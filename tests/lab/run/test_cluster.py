"""Attempts on a Ray cluster of two nodes: placement, secrets, authentication, lost nodes and lost heads."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import RayCluster, ray_cluster, worker_processes
from suites import HEAD, attempts, command, conduct, mission, plan, say, write

from proofbox import Sandboxes
from proofbox.config.engine import EngineSettings
from proofbox.errors import EngineLost, EngineUnavailable
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.reports.totals import final_attempts
from proofbox.lab.run.conductor import Conductor
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import ledger_path

pytestmark = [pytest.mark.needs("bubblewrap", "ray"), pytest.mark.xdist_group("ray")]

ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
WORKS = mission("answer", write("answer.txt", "42\n"), say("done"), verify=ANSWER, replicates=6)
WAITS = mission("waits", command("until test -e go; do sleep 0.1; done"), verify={"commands": ["test -e go"]})
SECRET = "sk-proof-4f9d1c7be2a84c55"


def on(cluster: RayCluster, **fields: Any) -> EngineSettings:
    return EngineSettings(name=f"ray:{cluster.address}", **fields)


def run_cli(tmp_path: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "proofbox", "suite", "run", "suite.toml", "--provider", "bubblewrap", *words]
    return subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **env}, check=False)


def test_run_on_two_nodes_records_the_node_of_each_attempt_and_leaks_no_key(
    tmp_path: Path, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is set where the run is started, but not on the nodes; neither it nor the token is in any file of Ray."""
    (tmp_path / "suite.toml").write_text(HEAD + WORKS)
    words = ("-n", "4", "--engine", f"ray:{cluster.address}", "--per-node", "2", "--resource", "box=1", "--json")
    done = run_cli(tmp_path, *words, MODEL_API_KEY=SECRET)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    nodes = Counter(each["node"] for each in found["attempts"])
    assert len(nodes) == 2, "both nodes were used"
    assert None not in nodes
    for each in found["attempts"]:
        record = json.loads((tmp_path / each["bundle"] / "node.json").read_bytes())
        assert record["name"] == each["node"]
        assert record["kernel"] == os.uname().release
        assert set(record["checks"].values()) == {"passed"}
    for value in (SECRET, cluster.token):
        searched = subprocess.run(["grep", "-rlaF", value, cluster.place, tmp_path], capture_output=True, text=True)
        assert searched.stdout == ""


def test_key_that_a_node_does_not_have_keeps_it_from_getting_attempts(
    tmp_path: Path, out: Path, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", SECRET)
    made = plan(HEAD + WORKS, out, tmp_path, engine=on(cluster), flags={"api_key_env": "MODEL_API_KEY"})
    with pytest.raises(EngineUnavailable, match="MODEL_API_KEY is not set there; keys are never sent") as refused:
        conduct(made, out)
    assert len(refused.value.details["nodes"]) == 2
    assert {each.state for each in attempts(made, out).values()} == {"planned"}


@pytest.mark.parametrize(
    ("resources", "token", "reason"),
    [
        ({"unicorn": 1}, None, "no node of the cluster has"),
        ({}, "0" * 64, "could not be joined"),
        ({}, "", "no token for the cluster"),
    ],
)
def test_engine_that_cannot_be_used_is_refused_before_any_attempt(
    tmp_path: Path,
    out: Path,
    cluster: RayCluster,
    monkeypatch: pytest.MonkeyPatch,
    resources: dict[str, float],
    token: str | None,
    reason: str,
) -> None:
    if token is not None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    made = plan(HEAD + WORKS, out, tmp_path, engine=on(cluster, resources=resources))
    with pytest.raises(EngineUnavailable, match=reason):
        conduct(made, out)
    assert {each.state for each in attempts(made, out).values()} == {"planned"}


def test_boxes_cannot_use_the_cluster_with_any_network_policy(tmp_path: Path, cluster: RayCluster) -> None:
    host, _, port = cluster.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=10):
        pass
    reach = f"exec 3<>/dev/tcp/{host}/{port}"
    with Sandboxes(tmp_path) as boxes:
        for network in ("none", "allow:example.org"):
            done = boxes.exec(["bash", "-c", reach], provider="bubblewrap", network=network)
            assert done.exit_code != 0, network
        # With the whole network, a box reaches the port, but has no token, and the cluster refuses it.
        probe = (
            "import os, sys; os.environ['RAY_AUTH_MODE'] = 'disabled'; import ray;"
            f"ray._raylet.GcsClient(address='{cluster.address}').get_all_node_info(timeout=10)"
        )
        done = boxes.exec([sys.executable, "-c", probe], provider="bubblewrap", network="full", timeout=60)
        assert done.exit_code != 0
        assert "InvalidAuthToken" in done.stderr.decode() if isinstance(done.stderr, bytes) else done.stderr
        environment = boxes.exec(["env"], provider="bubblewrap", network="full")
        assert cluster.token not in str(environment.stdout)


def test_cluster_without_authentication_is_refused_unless_allowed(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ray_cluster(1, 1, authenticated=False) as cluster:
        made = plan(HEAD + WORKS, out, tmp_path, engine=on(cluster))
        monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
        with pytest.raises(EngineUnavailable, match="requires no token"):
            conduct(made, out)


def test_lost_node_and_lost_head_end_in_types_and_the_run_resumes(tmp_path: Path, out: Path) -> None:
    """The attempts of a dead node are retried on another one. A dead head ends the run, which resumes elsewhere."""
    source = HEAD + WAITS.replace('"waits"', '"first"') + WAITS
    with ray_cluster(2, 1) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", cluster.token)
        made = plan(source, out, tmp_path, concurrency=2, engine=on(cluster))
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

        conductor = Conductor(out, made.run_id, on_event=interrupt, engine=on(another))
        assert verify(conductor.conduct()).ok
        conductor.close()
    ended = final_attempts(list(attempts(made, out).values()))
    assert {each.mission: each.result and each.result.reason for each in ended} == {
        "first": "interrupted",
        "waits": "interrupted",
    }


def test_interrupt_leaves_no_process_and_no_file_on_the_nodes(tmp_path: Path, cluster: RayCluster) -> None:
    (tmp_path / "suite.toml").write_text(HEAD + WAITS)
    argv = [sys.executable, "-m", "proofbox", "suite", "run", "suite.toml", "--jsonl", "--provider", "bubblewrap"]
    run = subprocess.Popen(
        [*argv, "--engine", f"ray:{cluster.address}"], cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True
    )
    assert run.stdout is not None
    for line in run.stdout:
        if json.loads(line)["event"] == "running":
            break
    place = Path(os.environ["TMPDIR"]) / f"proofbox-nodes-{os.getuid()}"
    assert list(place.iterdir())
    assert worker_processes(cluster.token)
    os.killpg(run.pid, signal.SIGINT)
    run.stdout.read()
    assert run.wait() == 130
    run.stdout.close()
    assert not worker_processes(cluster.token)
    assert not place.exists()
