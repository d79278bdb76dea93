"""Attempts on a Ray cluster of two nodes: placement, secrets, authentication, lost nodes and lost heads."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from leftovers import wait_for_none
from ray_cluster import MAX_STARTS, RayCluster, processes_of, worker_processes
from suites import HEAD, attempts, command, conduct, mission, plan, say, write

from proofbox import Sandboxes
from proofbox.config.engine import EngineSettings
from proofbox.core.clock import parse_isoformat
from proofbox.core.dirs import config_dir
from proofbox.core.interpreter import ChildInterpreter, module_child
from proofbox.errors import EngineLost, EngineUnavailable
from proofbox.lab.run.crews import ray as ray_crew
from proofbox.lab.run.crews.cluster import connection
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.limiter import Limiter
from proofbox.lab.run.plan import credential_of, ledger_path
from proofbox.viewer.runs import RunReader

pytestmark = [pytest.mark.needs("bubblewrap", "ray"), pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]

ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
WORKS = mission("answer", write("answer.txt", "42\n"), say("done"), verify=ANSWER, replicates=6)
WAITS = mission("waits", command("until test -e go; do sleep 0.1; done"), verify={"commands": ["test -e go"]})
CAMPAIGN = """
[campaign]
id = "compared"
[[missions]]
suite = "suite.toml"
[[flow]]
id = "first"
runner = { type = "scripted" }
[[flow]]
id = "second"
runner = { type = "scripted" }
"""
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
    shown = RunReader().read(tmp_path / found["bundle"])
    assert Counter(row.node for row in shown.rows) == nodes
    for value in (SECRET, cluster.token):
        searched = subprocess.run(["grep", "-rlaF", value, cluster.place, tmp_path], capture_output=True, text=True)
        assert searched.stdout == ""


@contextlib.contextmanager
def private_run(tmp_path: Path, place: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a suite on a private cluster, whose temporary files are below `place`, and wait until an attempt runs."""
    argv = [sys.executable, "-m", "proofbox", "suite", "run", "suite.toml", "--provider", "bubblewrap", "-n", "2"]
    env = {**os.environ, "TMPDIR": str(place), "PRIVATE_CLUSTER": str(tmp_path)}
    for _ in range(MAX_STARTS):
        with subprocess.Popen(
            [*argv, "--engine", "ray", "--jsonl"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
        ) as run:
            assert run.stdout is not None
            if any('"running"' in line for line in run.stdout):
                yield run
                return
    raise AssertionError("the cluster did not start")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory for temporary files with a path that is short enough for Ray's sockets."""
    with TemporaryDirectory(prefix="pbt-", dir="/tmp") as found:
        yield Path(found)


def test_private_cluster_ends_with_its_run(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--engine ray` starts a cluster for one run, which other users cannot reach. Nothing of it is left afterwards."""
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    (tmp_path / "suite.toml").write_text(HEAD + WORKS)
    with private_run(tmp_path, place) as run:
        modes = {each.name[:12]: stat.S_IMODE(each.stat().st_mode) for each in place.iterdir()}
        assert modes == {"proofbox-ray": 0o700, "proofbox-nod": 0o700}
        output = run.communicate()[0]
    assert run.returncode == 0, output
    found = json.loads(output.splitlines()[-1])
    assert len({each["node"] for each in found["attempts"]} - {None}) == 1
    assert wait_for_none(lambda: private_processes(tmp_path), 120.0) == []
    assert list(place.iterdir()) == [], "neither Ray's files nor those of workers are left"


def test_termination_while_a_private_cluster_starts_leaves_nothing(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    (tmp_path / "suite.toml").write_text(HEAD + WAITS)
    argv = [sys.executable, "-m", "proofbox", "suite", "run", "suite.toml", "--engine", "ray"]
    env = {**os.environ, "TMPDIR": str(place), "PRIVATE_CLUSTER": str(tmp_path)}
    with subprocess.Popen(argv, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as run:
        while not list(place.glob("proofbox-ray-*/r/session_*/logs")):
            assert run.poll() is None
        run.terminate()
        assert "resume with: proofbox suite resume" in run.communicate()[1]
    assert run.returncode == 128 + signal.SIGTERM
    assert wait_for_none(lambda: private_processes(tmp_path), 120.0) == []
    assert list(place.iterdir()) == []


def private_processes(tmp_path: Path) -> list[str]:
    return [str(each) for each in processes_of(f"PRIVATE_CLUSTER={tmp_path}")]


def test_campaign_runs_on_the_engine_of_the_settings(
    tmp_path: Path, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    config_dir().joinpath("config.toml").write_text(f'[engine]\nname = "ray:{cluster.address}"\nper_node = 1\n')
    (tmp_path / "suite.toml").write_text(HEAD + mission("answer", write("answer.txt", "42\n"), verify=ANSWER))
    (tmp_path / "campaign.toml").write_text(CAMPAIGN)
    argv = [sys.executable, "-m", "proofbox", "campaign", "run", "campaign.toml", "--json"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(each.read_bytes()) for each in tmp_path.glob("out/**/node.json")]
    assert len(records) == 2, "the attempt of each flow ran on a node"
    assert {each["provider"] for each in records} == {"bubblewrap"}


@pytest.mark.parametrize("engine", ["ray:127.0.0.1:9", "slurm"])
def test_campaign_passes_its_engine_to_each_flow(tmp_path: Path, engine: str) -> None:
    (tmp_path / "suite.toml").write_text(HEAD + mission("answer", write("answer.txt", "42\n"), verify=ANSWER))
    (tmp_path / "campaign.toml").write_text(CAMPAIGN)
    argv = [sys.executable, "-m", "proofbox", "campaign", "run", "campaign.toml", "--engine", engine, "--json"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    expected = {"slurm": "PROOFBOX_USAGE"}.get(engine, "ENGINE_UNAVAILABLE")
    error = json.loads(done.stdout)["error"]
    assert error["code"] == expected
    assert (error["fix_hints"][-1] == "resume with: proofbox campaign resume out") == (engine != "slurm")


def test_run_whose_engine_is_not_available_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(HEAD + WORKS)
    argv = [sys.executable, "-m", "proofbox", "suite", "run", "suite.toml", "--json", "--engine", "ray:127.0.0.1:9"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    error = json.loads(done.stdout)["error"]
    [ledger] = (tmp_path / "out").glob("run-*.ledger")
    assert error["code"] == "ENGINE_UNAVAILABLE"
    assert error["fix_hints"][-1] == f"resume with: proofbox suite resume out/{ledger.stem}"


def test_key_that_a_node_does_not_have_keeps_it_from_getting_attempts(
    tmp_path: Path, out: Path, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", SECRET)
    made = plan(HEAD + WORKS, out, tmp_path, concurrency=2, engine=on(cluster), flags={"api_key_env": "MODEL_API_KEY"})
    with pytest.raises(EngineUnavailable, match="MODEL_API_KEY is not set there; keys are never sent") as refused:
        conduct(made, out)
    assert len(refused.value.details["nodes"]) == 2
    assert {each.state for each in attempts(made, out).values()} == {"planned"}


@pytest.mark.parametrize(
    ("resources", "token", "reason"),
    [
        ({"unicorn": 1.0}, None, "no node of the cluster has unicorn=1"),
        ({}, "0" * 64, "refused the token"),
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
        # With the whole network, a box reaches the port, but has no token.
        done = boxes.exec(["bash", "-c", f"{reach}; env; cat {cluster.place}/*"], provider="bubblewrap", network="full")
        assert cluster.token not in f"{done.stdout!r}{done.stderr!r}"
    child = module_child(connection.__name__, cluster.address, env={**os.environ, "RAY_AUTH_MODE": "disabled"})
    child.env.pop("RAY_AUTH_TOKEN")
    refused = subprocess.run(child.argv, env=child.env, cwd=child.cwd, capture_output=True, text=True, check=False)
    assert refused.returncode == connection.REFUSED, refused.stderr


def test_limits_of_a_credential_hold_for_both_nodes_together(
    tmp_path: Path, out: Path, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate limit that one attempt meets halves the number of concurrent attempts on all nodes, which was 4. A usage
    limit pauses all of them. The attempts that wait are ended by interrupts."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source = HEAD + "".join(WAITS.replace('"waits"', f'"{id}"') for id in ("first", "second", "third"))
    source += mission("limited", {"fault": "rate_limit"}) + mission("exhausted", {"fault": "usage_limit"})
    source += mission("answer", say("done"))
    # The scripted agent has no credential. That of the fallback, which is not used, applies to the whole run.
    options: dict[str, Any] = {
        "chain": "scripted,codex_app_server",
        "flags": {"api_key_env": "UNSET_KEY"},
        "retries": 0,
    }
    made = plan(source, out, tmp_path, concurrency=4, engine=on(cluster, per_node=2), **options)
    events: list[tuple[str, str]] = []
    interrupted: set[str] = set()
    nodes: set[str] = set()
    placed: dict[str, datetime] = {}
    concurrent: dict[str, int] = {}

    def act(event: dict[str, Any]) -> None:
        kind, id = event["event"], event["mission_id"]
        events.append((kind, id))
        if kind == "placed":
            nodes.add(event["node"])
            placed[id] = parse_isoformat(event["at"])
            concurrent[id] = sum(each == "placed" for each, _ in events) - sum(each == "ended" for each, _ in events)
        ready = {"first", "second"} if ("ended", "limited") in events else set()
        ready |= {"third"} if ("ended", "answer") in events else set()
        for each in ready - interrupted:
            if ("running", each) in events:
                interrupted.add(each)
                with Ledger(ledger_path(out, made.run_id)) as ledger:
                    ledger.interrupt(f"{each}.1")

    conduct(made, out, act)
    assert {id: each.result and each.result.infra for id, each in attempts(made, out).items()} == {
        **dict.fromkeys(("first.1", "second.1", "third.1", "answer.1")),
        "limited.1": "RUNTIME_RATE_LIMIT",
        "exhausted.1": "RUNTIME_USAGE_LIMIT",
    }
    assert len(nodes) == 2
    assert concurrent == {"first": 1, "second": 2, "third": 3, "limited": 4, "exhausted": 2, "answer": 2}
    limits = Limiter(credential_of(made) or "", 4).state()
    assert limits.why.startswith("usage limit")
    assert placed["answer"].timestamp() >= limits.closed_until > placed["exhausted"].timestamp()


@contextlib.contextmanager
def head_process(tmp_path: Path, mode: str) -> Iterator[str]:
    """Run the control server of a cluster, and yield its address. It is all that a head needs to answer clients."""
    import ray

    program = Path(ray.__file__).with_name("core") / "src/ray/gcs/gcs_server"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    argv = [str(program), f"--gcs_server_port={port}", "--node-ip-address=127.0.0.1", f"--log_dir={tmp_path}"]
    env = {**os.environ, "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": "0" * 64}
    with subprocess.Popen(
        [*argv, "--session-name=s", "--config_list=e30="], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as head:
        try:
            wait_for_port(port)
            yield f"127.0.0.1:{port}"
        finally:
            head.kill()


def wait_for_port(port: int) -> None:
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return


@pytest.mark.parametrize("mode", ["disabled", "token"])
def test_cluster_that_answers_without_a_token_is_refused(tmp_path: Path, mode: str) -> None:
    expected = pytest.raises(EngineUnavailable, match="requires no token")
    with head_process(tmp_path, mode) as address, expected if mode == "disabled" else contextlib.nullcontext():
        connection._refuse_open(address)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'WARNING: a line of Ray' >&2; echo 'RPC error: wrong service' >&2; exit 1", "RPC error: wrong service"),
        ("kill -9 $$", "the probe exited -9"),
        ("exec sleep 60", "it did not answer within 0.1 s"),
    ],
)
def test_cluster_that_does_not_clearly_refuse_a_client_without_a_token_is_not_joined(
    monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    child = ChildInterpreter(["sh", "-c", script], "/", dict(os.environ))
    monkeypatch.setattr(connection, "module_child", lambda *_, **__: child)
    monkeypatch.setattr(connection, "PROBE_TIMEOUT", 0.1 if "sleep" in script else 30.0)
    with pytest.raises(EngineUnavailable, match=f"could not be joined: {reason}"):
        connection._refuse_open("127.0.0.1:6379")


def test_cluster_that_stops_answering_while_it_is_joined_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray waits forever for a head that dies while a client connects to it."""
    given_up = threading.Event()
    reasons: list[EngineUnavailable] = []

    def give_up(error: EngineUnavailable) -> None:
        reasons.append(error)
        given_up.set()

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", 0.01)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=lambda **_: given_up.wait(), shutdown=lambda: None))
    monkeypatch.setattr(connection, "require_ray", lambda: None)
    with connection.connected(EngineSettings(name="ray"), tmp_path, give_up):
        pass
    assert "it did not answer within 0.01 s" in reasons[0].message


def test_private_cluster_has_a_new_token_and_no_dashboard_and_is_reached_only_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[str] = []

    def start(**options: Any) -> None:
        assert options["address"] == "local"
        assert options["_node_ip_address"] == "127.0.0.1"
        assert options["include_dashboard"] is False
        assert options["_temp_dir"] == str(tmp_path / "r"), "Ray gives all users access to it, but not to the one above"
        assert os.environ["RAY_AUTH_MODE"] == "token"
        tokens.append(os.environ["RAY_AUTH_TOKEN"])

    monkeypatch.setattr(os, "environ", {**os.environ, "RAY_AUTH_TOKEN": "of another cluster"})
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=start, shutdown=lambda: None))
    monkeypatch.setattr(connection, "require_ray", lambda: None)
    for _ in range(2):
        with connection.connected(EngineSettings(name="ray"), tmp_path, print):
            pass
    assert len({*tokens, "of another cluster"}) == 3


def test_cluster_that_cannot_be_joined_again_is_lost(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray aborts some drivers whose head was lost. The next driver can't join, and the run can be resumed."""
    events: list[dict[str, Any]] = [
        {"event": "placed", "attempt_id": "waits.1", "mission_id": "waits", "node": "n1"},
        {"event": "engine", **EngineUnavailable("the cluster could not be joined", op="engine").as_dict()},
    ]

    def next_driver(*_: str) -> ChildInterpreter:
        return ChildInterpreter(["sh", "-c", f"echo '{json.dumps(events.pop(0))}'; exit 1"], "/", dict(os.environ))

    monkeypatch.setattr(ray_crew, "module_child", next_driver)
    made = plan(HEAD + WAITS, out, tmp_path, engine=EngineSettings(name="ray:127.0.0.1:6379"))
    with pytest.raises(EngineLost, match="could not be joined") as found:
        conduct(made, out)
    assert found.value.fix_hints == EngineLost.hints
    assert events == []


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
    place = cluster.worker_places
    assert list(place.iterdir())
    assert worker_processes(cluster.token)
    os.killpg(run.pid, signal.SIGINT)
    run.stdout.read()
    assert run.wait() == 130
    run.stdout.close()
    assert not place.exists()
    assert wait_for_none(lambda: [str(each) for each in worker_processes(cluster.token)], 120.0) == []


def test_gc_removes_what_a_killed_worker_left_on_a_node(tmp_path: Path, cluster: RayCluster) -> None:
    left = cluster.worker_places / "run-1.worker-1"
    left.parent.mkdir(mode=0o700)
    left.mkdir()
    (left / "data").write_bytes(b"0" * 10_000)
    left.with_name(f"{left.name}.lock").touch()
    argv = [sys.executable, "-m", "proofbox", "gc", "--engine", f"ray:{cluster.address}", "--json"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [each for each in json.loads(done.stdout)["items"] if each["kind"] == "node"]
    assert [each["path"] for each in found] == [str(left)], "one of the nodes on this machine found it"
    assert found[0]["bytes"] >= 10_000
    assert not left.parent.exists()
