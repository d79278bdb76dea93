"""Whatever fails during a campaign, its state stays consistent, and resuming it gives the results of a quiet run."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from campaign_files import ANSWER, CAMPAIGN, LIES, scores, write_files
from codex_lab import descendants
from suites import command, mission, patch_workers, say, serving, write

import proofbox
from proofbox.core.clock import SystemClock
from proofbox.errors import ProofboxError
from proofbox.lab.campaign.registration import read_manifest
from proofbox.lab.reports.campaign_results import CampaignReport
from proofbox.lab.run import conductor, ledger
from proofbox.lab.run.events import RunStarted, SuiteEvent

pytestmark = pytest.mark.needs("bubblewrap")

ONE_FLOW = CAMPAIGN.partition('[[flow]]\nid = "solver"')[0]
SLOW = mission("slow", command("sleep 0.3"), write("answer.txt", "42\n"), say("done"), verify=ANSWER)
EXPECTED = {"lies": {"agent": (0, 2)}, "slow": {"agent": (2, 2)}}

Event = RunStarted | SuiteEvent


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(LIES + SLOW, campaign=ONE_FLOW)


def disturbed(out: str, disturb: Callable[[int, SuiteEvent], object]) -> None:
    """Run the campaign while `disturb` gets every event with its number. It may end with any typed error."""
    lock, seen = threading.Lock(), 0

    def hear(event: Event) -> None:
        nonlocal seen
        if isinstance(event, SuiteEvent):
            with lock:
                seen += 1
                disturb(seen, event)

    try:
        proofbox.run_campaign("campaign.toml", out=out, on_event=hear)
    except ProofboxError as error:
        print(f"the campaign ended with {error.code}")


def require_recovery(out: str) -> CampaignReport:
    """Check that the state is consistent, and that resuming completes the campaign with the expected results."""
    assert proofbox.load_campaign(out).findings == ()
    report = proofbox.resume_campaign(out)
    assert report.ok, report.error
    assert scores(report) == EXPECTED
    assert proofbox.load_campaign(out) == report
    assert proofbox.check_publishable(out).ok
    return report


def moments(rounds: Callable[[int, int], int]) -> Iterator[tuple[str, int]]:
    """Yield an output directory and the number of the event to disturb at."""
    for number in range(rounds(1, 25)):
        yield f"out-{number}", random.randrange(1, 20)  # noqa: S311 -- when to disturb, not a secret


def test_worker_that_is_killed_loses_no_attempt(rounds: Callable[[int, int], int]) -> None:
    for out, when in moments(rounds):

        def kill(number: int, _: SuiteEvent, when: int = when) -> None:
            if number == when:
                for pid in descendants():
                    if b"proofbox.lab.run.worker" in cmdline(pid):
                        os.kill(pid, signal.SIGKILL)
                        return

        disturbed(out, kill)
        require_recovery(out)


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


BUSY = "from proofbox.lab.run import ledger\nledger.BUSY_SECONDS = 0.05"


def test_busy_ledger_never_loses_or_repeats_a_result(
    monkeypatch: pytest.MonkeyPatch, rounds: Callable[[int, int], int]
) -> None:
    """Another program holds the ledger for longer than proofbox waits for it."""
    for out, when in moments(rounds):

        def hold(number: int, _: SuiteEvent, when: int = when, out: str = out) -> None:
            if number == when:
                run = read_manifest(Path(out)).runs[0]
                with held(Path(out, "flows", run.flow, f"{run.run_id}.ledger")):
                    threading.Event().wait(0.5)  # no condition: the point is that it takes longer than BUSY_SECONDS

        with monkeypatch.context() as patch:
            patch.setattr(ledger, "BUSY_SECONDS", 0.05)
            patch_workers(patch, BUSY)
            disturbed(out, hold)
        require_recovery(out)


@contextmanager
def held(path: Path) -> Iterator[None]:
    other = sqlite3.connect(path, isolation_level=None, timeout=30)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


JUMPING = """
from datetime import timedelta
class Jumping(worker.SystemClock):
    def now(self):
        return super().now() + timedelta(seconds=float(open({path!r}).read() or 0))
worker.SystemClock = Jumping
"""


def test_clock_that_jumps_in_both_directions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: Callable[[int, int], int]
) -> None:
    offset = tmp_path / "offset"

    class Jumping(SystemClock):
        def now(self) -> Any:
            from datetime import timedelta

            return super().now() + timedelta(seconds=float(offset.read_text() or 0))

    for out, when in moments(rounds):
        offset.write_text("0")

        def jump(number: int, _: SuiteEvent, when: int = when) -> None:
            if number in (when, when + 3):
                replacement = tmp_path / "offset.new"
                replacement.write_text("86400" if number == when else "-86400")
                replacement.replace(offset)

        with monkeypatch.context() as patch:
            patch.setattr(conductor, "SystemClock", Jumping)
            patch_workers(patch, JUMPING.format(path=str(offset)))
            disturbed(out, jump)
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
    for _, when in moments(rounds):
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
def test_faults_of_the_model_are_retried_or_counted_as_lost(rounds: Callable[[int, int], int]) -> None:
    names = [*FAULTS][: rounds(2, len(FAULTS))]
    suite = "".join(
        mission(name, verify=ANSWER).replace('"do it"', f'"{FAULTS[name]} [[run echo 42 > answer.txt]] [[say done]]"')
        for name in names
    )
    dead = mission("dead", verify=ANSWER).replace('"do it"', '"[[http 503]] [[say done]]"')
    with serving("-m", "proofbox.agents.fakemodel") as url:
        write_files(suite + dead, campaign=CODEX.format(url=url))
        report = proofbox.run_campaign("campaign.toml", out="out", trust=True)
    assert report.findings == ()
    [flow] = report.flows
    assert (flow.rate.passed, flow.rate.scored, flow.planned) == (len(names), len(names), len(names) + 1)
    assert sum(flow.infra.values()) == 1, "a model that never answers is not the agent's failure"
    assert flow.friction.model_retries >= 2
    assert [each.code for each in proofbox.check_publishable("out").reasons] == ["coverage_incomplete"]
