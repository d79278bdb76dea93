"""Lost nodes and heads, killed and suspended processes, partitions: nothing is lost or counted twice. Only in a soak.

`PROOFBOX_FAULTS=6 scripts/soak tests/lab/run/test_cluster_faults.py` injects fewer faults, and `PROOFBOX_FAULT_SEED=N`
repeats a sequence.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import process_children, ray_cluster, worker_processes
from ray_network import NetworkCluster, NetworkNode, network_cluster
from suites import HEAD, attempts, command, conduct, mission, plan, say, write

from proofbox.config.engine import EngineSettings
from proofbox.errors import EngineLost
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.reports.totals import final_attempts
from proofbox.lab.run.conductor import Conductor
from proofbox.lab.run.failures import LOST
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import ledger_path
from proofbox.lab.run.running import load_run

pytestmark = [
    pytest.mark.needs("bubblewrap", "ray"),
    pytest.mark.xdist_group("ray"),
    pytest.mark.timeout(7200),
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
        # Each node gets one of the two attempts and has a second slot, for the retry of the other.
        engine = EngineSettings(name=f"ray:{cluster.address}", per_node=2)
        made = plan(source, out, tmp_path, concurrency=4, engine=engine)
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

        conductor = Conductor(out, made.run_id, on_event=interrupt, engine=f"ray:{another.address}")
        assert verify(conductor.conduct()).ok
        conductor.close()
    ended = final_attempts(list(attempts(made, out).values()))
    assert {each.mission: each.result and each.result.reason for each in ended} == {
        "first": "interrupted",
        "waits": "interrupted",
    }


FAULTS = int(os.environ.get("PROOFBOX_FAULTS", "40"))
"""A quarter of them are partitions."""
SEED = int(os.environ.get("PROOFBOX_FAULT_SEED") or secrets.randbits(32))
PROGRESS = 4
"""How many attempts must end between two faults. An attempt that is lost too often is not retried."""
NODES = 3
REPLICATES = 40
"""Of each mission. When a run ends before all faults were injected, another one is started."""


def disturbed_suite() -> str:
    """A suite with a mission that passes and one that fails."""
    right = {"commands": ["grep -qx 42 answer.txt"]}
    return HEAD + "".join(
        mission(id, command("sleep 0.5"), write("answer.txt", answer), say("done"), verify=right, replicates=REPLICATES)
        for id, answer in {"passes": "42\n", "fails": "41\n"}.items()
    )


class DisturbedRun:
    """A run of the command line in the head's namespace, which is resumed whenever its process ends."""

    def __init__(self, cluster: NetworkCluster, place: Path) -> None:
        self.cluster = cluster
        self.place = place
        place.mkdir()
        (place / "suite.toml").write_text(disturbed_suite())
        self.faults = 0
        """How many faults were injected."""
        self._suspended: set[int] = set()
        self._partitioned: list[NetworkNode] = []
        engine = ("--engine", f"ray:{cluster.address}", "-n", str(2 * NODES), "--per-node", "2")
        self._start("run", "suite.toml", "--out", "out", "--provider", "bubblewrap", *engine)

    def _start(self, *words: str) -> None:
        argv = self.cluster.head.enter(sys.executable, "-m", "proofbox", "suite", *words, "--json")
        with open(self.place / "output", "ab") as output:
            self.process = subprocess.Popen(
                argv, cwd=self.place, env=self.cluster.env, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def is_committed(self) -> bool:
        return any((self.place / "out").glob(f"run-*/{INDEX}"))

    def ended(self) -> int:
        found = list((self.place / "out").glob("*.ledger"))
        if not found:
            return 0
        with Ledger(found[0]) as ledger:
            return ledger.counts()["ended"]

    def wait_for_progress(self, ended: int) -> None:
        """Wait until this many attempts have ended. Resume the run if it ended early."""
        while self.ended() < ended and not self.is_committed:
            self.resume_if_ended()

    def resume_if_ended(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5)
            if not self.is_committed:
                assert list((self.place / "out").glob("*.ledger")), (self.place / "output").read_text()
                self.repair()
                self._start("resume", "out")

    def finish(self) -> None:
        """Repair everything, and wait for the end of the run."""
        self.repair()
        while not self.is_committed:
            self.resume_if_ended()
        self.process.wait()

    def repair(self) -> None:
        """End partitions, continue suspended processes, and replace dead nodes."""
        for node in self._partitioned:
            node.connect(up=True)
        self._partitioned.clear()
        for pid in self._suspended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._suspended.clear()
        for node in self.cluster.nodes:
            node.ensure_running()
        self.cluster.wait_for_nodes()

    def disturb(self, kind: str, chance: random.Random) -> bool:
        """Inject one fault; return False if there is no such process now. A node whose raylet or network fails is
        repaired before the next fault."""
        self.repair()
        node = chance.choice(self.cluster.nodes)
        if kind == "partition":
            node.connect(up=False)
            self._partitioned.append(node)
        elif not self._signal(kind, node, chance):
            return False
        self.faults += 1
        return True

    def _signal(self, kind: str, node: NetworkNode, chance: random.Random) -> bool:
        what, _, how = kind.partition(" ")
        targets = {
            "worker": worker_processes(self.cluster.token),
            "raylet": node.raylets,
            "driver": [pid for pid, _ in process_children(self.process.pid)],
            "conductor": [self.process.pid] if self.process.poll() is None else [],
        }[what]
        chance.shuffle(targets)
        for pid in targets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
                if how == "stop" and what not in ("worker", "driver"):  # proofbox ends suspended workers and drivers
                    self._suspended.add(pid)
                return True
        return False


def test_run_that_is_disturbed_at_random_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    chance = random.Random(SEED)  # noqa: S311 (repeatable)
    print(f"PROOFBOX_FAULTS={FAULTS} PROOFBOX_FAULT_SEED={SEED}")
    kinds = [f"{what} {how}" for what in ("worker", "raylet", "driver", "conductor") for how in ("kill", "stop")]
    partitions = FAULTS // 4
    faults = ["partition"] * partitions + [chance.choice(kinds) for _ in range(FAULTS - partitions)]
    chance.shuffle(faults)
    with network_cluster(NODES) as cluster:
        runs = [DisturbedRun(cluster, tmp_path / "0")]
        while faults:
            if runs[-1].is_committed:
                runs[-1].finish()
                runs.append(DisturbedRun(cluster, tmp_path / str(len(runs))))
            run, kind = runs[-1], faults[-1]
            run.wait_for_progress(1)
            if not run.disturb(kind, chance):
                run.resume_if_ended()
                continue
            faults.pop()
            print(f"fault {FAULTS - len(faults)}: {kind}, {run.ended()} attempts ended", flush=True)
            if kind in ("partition", "raylet stop") and chance.random() < 0.5:  # otherwise it may stay unnoticed
                cluster.wait_for_loss()
            run.wait_for_progress(run.ended() + PROGRESS)
        runs[-1].finish()
        swept = subprocess.run(
            cluster.head.enter(sys.executable, "-m", "proofbox", "gc", "--engine", f"ray:{cluster.address}", "--json"),
            env=cluster.env,
            capture_output=True,
            check=False,
        )
        assert swept.returncode == 0, swept.stderr
        assert not (Path(os.environ["TMPDIR"]) / f"proofbox-nodes-{os.getuid()}").exists(), "nothing is left on a node"
    assert sum(run.faults for run in runs) == FAULTS
    for run in runs:
        check_as_undisturbed(run.place / "out", run.faults)


def check_as_undisturbed(out: Path, faults: int) -> None:
    [place] = out.glob("run-*.ledger")
    with Ledger(place) as ledger:
        found = ledger.attempts()
    assert verify(place.with_suffix("")).ok
    ended = final_attempts(found)
    results = Counter((each.mission, each.result and (each.result.verified, each.result.infra)) for each in ended)
    assert results == {("passes", ("passed", None)): REPLICATES, ("fails", ("failed", None)): REPLICATES}
    assert len({(each.mission, each.replicate) for each in ended}) == len(ended), "each counts once"
    failures = {each.id: each.result.infra for each in found if each.result is not None and each.result.infra}
    assert sorted(each.parent for each in found if each.parent) == sorted(failures), "each loss has one retry"
    assert set(failures.values()) <= LOST, "each loss is a failure of the infrastructure"
    assert len(failures) <= faults * 2 * NODES, "a fault loses at most the attempts that were running"
    reported = {each.attempt_id: each.infra for each in load_run(out).attempts if each.infra}
    assert reported == failures, "the report has the same share of them"
    print(json.dumps(Counter(failures.values())))
