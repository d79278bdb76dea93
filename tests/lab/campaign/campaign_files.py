"""Helpers for tests of campaigns: campaign files, and processes that are killed while they run one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from suites import HEAD, mission, say, toml, write

import proofbox
from proofbox.errors import RunInterrupted
from proofbox.lab.reports.campaigns.results import CampaignReport, CampaignResults
from proofbox.lab.run.events import RunStarted, SuiteEvent

ANSWER = {"commands": ["grep -qx 42 answer.txt"], "files": "hidden"}
WORKS = mission("works", write("answer.txt", "42\n"), say("done"), verify=ANSWER, solution="solve.sh")
LIES = mission("lies", say("done"), verify=ANSWER, solution="solve.sh")
CAMPAIGN = """
[campaign]
id = "first"
replicates = 2
retries = 0
concurrency = 1
[[missions]]
suite = "suite.toml"
[[flow]]
id = "agent"
runner = { type = "scripted" }
[[flow]]
id = "solver"
runner = { type = "oracle" }
"""
ONE_FLOW = CAMPAIGN.partition('[[flow]]\nid = "solver"')[0]
# A command line as an agent: it does what the fake model would tell another agent to do.
OBEYS = """case "$(cat)" in *"echo 42"*) echo 42 > answer.txt ;; esac; echo done"""


def write_files(missions: str = WORKS + LIES, more: str = "", *, campaign: str = CAMPAIGN) -> str:
    """Write a suite, its oracle and a campaign into the current directory; return the campaign's file."""
    Path("hidden").mkdir(exist_ok=True)
    Path("hidden/test.txt").write_text("not seen by the agent")
    Path("solve.sh").write_text("echo 42 > answer.txt\n")
    Path("suite.toml").write_text(HEAD + missions)
    Path("campaign.toml").write_text(campaign + more)
    return "campaign.toml"


def write_three_flows(model: str, *, missions: int, replicates: int, concurrency: int) -> str:
    """Write a campaign of Codex on a fake model, a command line and the scripted agent. They fail every third mission,
    and the scripted agent also the first."""
    suite = ""
    for number in range(missions):
        works = number % 3 != 2
        prompt = "[[run echo 42 > answer.txt]] [[say done]]" if works else "[[say done]]"
        steps = [write("answer.txt", "42\n")] if works and number else []
        suite += mission(f"m{number}", *steps, say("done"), verify=ANSWER).replace('"do it"', json.dumps(prompt))
    flows = {
        "codex": {"type": "codex_app_server", "model": "fake-model", "base_url": model},
        "process": {"type": "process", "settings": {"command": ["/bin/sh", "-c", OBEYS]}},
        "scripted": {"type": "scripted"},
    }
    text = f'[campaign]\nid = "three"\nreplicates = {replicates}\nconcurrency = {concurrency}\n'
    text += '[[missions]]\nsuite = "suite.toml"\n'
    text += "".join(f'[[flow]]\nid = "{id}"\nrunner = {toml(runner)}\n' for id, runner in flows.items())
    return write_files(suite, campaign=text)


def scores(report: CampaignReport) -> dict[str, dict[str, tuple[int, int]]]:
    """Return passed and scored attempts, by mission and flow."""
    return {
        row.mission_id: {flow: (cell.passed, cell.scored) for flow, cell in row.flows.items()}
        for row in report.results.missions
    }


def comparable(results: CampaignResults) -> Any:
    """Return the results without what differs between two campaigns: run ids, durations, and retries of killed attempts
    with the tokens that these had used."""
    flows = [
        msgspec.structs.replace(
            each,
            run="",
            seconds=None,
            idle=None,
            cost_spent=None,
            tokens_spent=0,
            tokens_unknown=0,
            friction=msgspec.structs.replace(each.friction, attempt_retries=0),
        )
        for each in results.flows
    ]
    return msgspec.structs.replace(results, flows=tuple(flows))


def interrupted(spec: str, out: str, *, trust: bool = False) -> None:
    """Run a campaign and stop it after the first attempt that ends."""
    stop = threading.Event()

    def hear(event: RunStarted | SuiteEvent) -> None:
        if isinstance(event, SuiteEvent) and event.event == "ended":
            stop.set()

    with pytest.raises(RunInterrupted):
        proofbox.run_campaign(spec, out=out, trust=trust, on_event=hear, stop=stop)


def killed(words: Sequence[str], after: int) -> None:
    """Run a `campaign` command and kill it with all its processes after this many events."""
    with subprocess.Popen(
        [sys.executable, "-m", "proofbox.cli", "campaign", *words, "--jsonl"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(after):
            assert process.stdout.readline(), "it ended before it was killed"
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
