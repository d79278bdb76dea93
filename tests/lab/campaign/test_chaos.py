"""Whatever fails during a campaign, its state stays consistent, and resuming it gives the results of a quiet run."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from campaign_files import ANSWER, LIES, ONE_FLOW, scores, write_files
from codex_lab import descendants
from suites import command, mission, one_worker_process, patch_workers, say, serving_model, write

import proofbox
from proofbox.core.clock import SystemClock
from proofbox.errors import ProofboxError
from proofbox.lab.campaign.registration import read_manifest
from proofbox.lab.reports.campaigns.results import CampaignReport
from proofbox.lab.run import conductor, ledger
from proofbox.lab.run.events import RunStarted, SuiteEvent

pytestmark = pytest.mark.needs("bubblewrap")

SLOW = mission("slow", command("sleep 0.3"), write("answer.txt", "42\n"), say("done"), verify=ANSWER)
EXPECTED = {"lies": {"agent": (0, 2)}, "slow": {"agent": (2, 2)}}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(LIES + SLOW, campaign=ONE_FLOW)


def disturbed(out: str, due: Mapping[int, Callable[[str], None]]) -> list[str]:
    """Run the campaign, with a failure at some of its events. It may end with any typed error. Return what happened."""
    lock, seen = threading.Lock(), 0
    happened: list[str] = []

    def hear(event: RunStarted | SuiteEvent) -> None:
        nonlocal seen
        with lock:
            seen += 1
            if seen in due:
                due[seen](out)
                happened.append(due[seen].__name__)

    try:
        proofbox.run_campaign("campaign.toml", out=out, on_event=hear)
    except ProofboxError as error:
        happened.append(error.code)
    print(happened)
    return happened


def require_recovery(out: str) -> CampaignReport:
    """Check that the state is consistent, and that resuming completes the campaign with the expected results."""
    assert proofbox.load_campaign(out).findings == ()
    report = proofbox.resume_campaign(out)
    assert report.ok, report.error
    assert scores(report) == EXPECTED
    assert proofbox.load_campaign(out) == report
    assert proofbox.check_publishable(out).ok
    return report


def kill_a_worker(_out: str) -> None:
    for pid in descendants():
        if b"proofbox.lab.run.worker" in cmdline(pid):
            os.kill(pid, signal.SIGKILL)
            return


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def hold_the_ledger(out: str) -> None:
    """Hold the ledger for longer than the patched workers and conductor wait for it."""
    run = read_manifest(Path(out)).runs[0]
    other = sqlite3.connect(Path(out, "flows", run.flow, f"{run.run_id}.ledger"), isolation_level=None, timeout=30)
    other.execute("BEGIN IMMEDIATE")
    try:
        threading.Event().wait(10 * BUSY_SECONDS)
    finally:
        other.execute("ROLLBACK")
        other.close()


def move_the_clock(_out: str) -> None:
    """Move the wall clock by a day, in one direction or the other."""
    Path("offset.new").write_text(random.choice(["-86400", "86400"]))  # noqa: S311
    Path("offset.new").replace("offset")


class Jumping(SystemClock):
    """A clock that jumps when the file `offset` changes; the workers have the same."""

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=float(Path("offset").read_text()))


BUSY_SECONDS = 0.05
WORKER = """
from datetime import timedelta
from proofbox.lab.run import ledger
ledger.BUSY_SECONDS = {busy}
class Jumping(worker.SystemClock):
    def now(self):
        return super().now() + timedelta(seconds=float(open({offset!r}).read()))
worker.SystemClock = Jumping
"""
FAILURES = (kill_a_worker, hold_the_ledger, move_the_clock)


def test_killed_workers_a_busy_ledger_and_clock_jumps_change_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: Callable[[int, int], int]
) -> None:
    """A sample has each failure once; the soak has campaigns with one kind of failure, and with all of them."""
    for number in range(rounds(1, 60)):
        (tmp_path / "offset").write_text("0")
        kinds = FAILURES if number % 4 == 0 else (FAILURES[number % 4 - 1],)
        moments = random.sample(range(1, 20), len(kinds))
        out = f"out-{number}"
        with monkeypatch.context() as patch:
            patch.setattr(ledger, "BUSY_SECONDS", BUSY_SECONDS)
            patch.setattr(conductor, "SystemClock", Jumping)
            patch_workers(patch, WORKER.format(busy=BUSY_SECONDS, offset=str(tmp_path / "offset")))
            happened = disturbed(out, dict(zip(moments, kinds, strict=True)))
        assert happened, "the campaign ended before anything failed"
        require_recovery(out)


FULL = """
import os, sys, pathlib, threading
import proofbox
from proofbox.errors import ProofboxError

when, out = int(sys.argv[1]), "small/out"
seen, filler = 0, pathlib.Path("small/filler")
lock, full = threading.Lock(), threading.Event()

def fill(event):
    global seen
    with lock:
        seen += 1
        if seen == when:
            with open(filler, "wb") as file:
                try:
                    while True:
                        file.write(bytes(1 << 16))
                        file.flush()
                except OSError:
                    pass
            threading.Timer(1.0, stop.set).start()

stop = threading.Event()
try:
    proofbox.run_campaign("campaign.toml", out=out, on_event=fill, stop=stop)
except ProofboxError as error:
    print(error.code)
try:
    proofbox.load_campaign(out)
except ProofboxError as error:
    print("read:", error.code)
filler.unlink(missing_ok=True)
report = proofbox.resume_campaign(out)
assert report.ok, report.error
assert proofbox.check_publishable(out).ok
rows = {row.mission_id: row.flows["agent"].passed for row in report.results.missions}
assert rows == {"lies": 0, "slow": 2}, rows
"""


@pytest.mark.needs("root")
def test_full_disk_stops_the_campaign_until_there_is_space(rounds: Callable[[int, int], int]) -> None:
    Path("small").mkdir()
    write_files(LIES + SLOW, campaign=ONE_FLOW.replace("retries = 0", "retries = 2"))  # an attempt may fail as it fills
    for _ in range(rounds(1, 20)):
        when = random.randrange(1, 15)  # noqa: S311 -- when to fill it, not a secret
        script = 'mount -t tmpfs -o size=64m none small && "$@"; status=$?; umount -l small; exit $status'
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", FULL, str(when)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


CODEX = """
[campaign]
id = "faults"
retries = 0
concurrency = 2
[[missions]]
suite = "suite.toml"
[[flow]]
id = "codex"
runner = {{ type = "codex_app_server", model = "fake-model", base_url = "{url}", settings = {{ max_retries = 2 }} }}
"""
FAULTS = {
    "disconnect": "[[drop before times=1]]",
    "partial": "[[drop mid times=1]]",
    "delayed": "[[wait 1]]",
    "garbage": "[[garbage times=1]]",
    "overloaded": "[[http 500 times=1]]",
}


@pytest.mark.needs("codex")
def test_faults_of_the_model_are_retried_or_counted_as_lost(
    monkeypatch: pytest.MonkeyPatch, rounds: Callable[[int, int], int]
) -> None:
    one_worker_process(monkeypatch)
    names = [*FAULTS][: rounds(2, len(FAULTS))]
    suite = "".join(
        mission(name, verify=ANSWER).replace('"do it"', f'"{FAULTS[name]} [[run echo 42 > answer.txt]] [[say done]]"')
        for name in names
    )
    dead = mission("dead", verify=ANSWER).replace('"do it"', '"[[http 503]] [[say done]]"')
    with serving_model() as url:
        write_files(suite + dead, campaign=CODEX.format(url=url))
        report = proofbox.run_campaign("campaign.toml", out="out", trust=True)
    assert report.findings == ()
    [flow] = report.flows
    assert (flow.rate.passed, flow.rate.scored, flow.planned) == (len(names), len(names), len(names) + 1)
    assert sum(flow.infra.values()) == 1, "a model that never answers is not the agent's failure"
    assert flow.friction.model_retries >= 2
    assert [each.code for each in proofbox.check_publishable("out").reasons] == ["coverage_incomplete"]
