"""A campaign is run, killed, resumed and reported, from Python and with the command."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from suites import HEAD, command, mission, say, write

import proofbox
from proofbox.cli import main
from proofbox.errors import (
    CampaignChanged,
    CampaignExists,
    CampaignNotReady,
    CampaignUnknown,
    ConsentRequired,
    RunBusy,
    RunInterrupted,
)
from proofbox.lab.campaign.comparing import compare_campaigns
from proofbox.lab.campaign.publishing import check_publishable
from proofbox.lab.campaign.registration import exclusive
from proofbox.lab.campaign.regrading import regrade_campaign
from proofbox.lab.campaign.running import resume_campaign, run_canary
from proofbox.lab.reports.campaign import load_campaign
from proofbox.lab.reports.campaign_results import CampaignReport, CampaignResults
from proofbox.lab.run.events import RunStarted, SuiteEvent

pytestmark = pytest.mark.needs("bubblewrap")

ANSWER = {"commands": ["grep -qx 42 answer.txt"], "files": "hidden"}
WORKS = mission("works", write("answer.txt", "42\n"), say("done"), verify=ANSWER, solution="solve.sh")
LIES = mission("lies", say("done"), verify=ANSWER, solution="solve.sh")
CAMPAIGN = """
[campaign]
id = "first"
replicates = 2
retries = 0
[[missions]]
suite = "suite.toml"
[[flow]]
id = "agent"
runner = { type = "scripted" }
[[flow]]
id = "solver"
runner = { type = "oracle" }
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that writes a suite and a campaign into the current directory."""
    monkeypatch.chdir(tmp_path)
    Path("hidden").mkdir()
    Path("hidden/test.txt").write_text("not seen by the agent")
    Path("solve.sh").write_text("echo 42 > answer.txt\n")

    def write_files(missions: str = WORKS + LIES, more: str = "") -> str:
        Path("suite.toml").write_text(HEAD + missions)
        Path("campaign.toml").write_text(CAMPAIGN + more)
        return "campaign.toml"

    return write_files


def scores(report: CampaignReport) -> dict[str, dict[str, tuple[int, int]]]:
    return {
        row.mission_id: {flow: (cell.passed, cell.scored) for flow, cell in row.flows.items()}
        for row in report.results.missions
    }


def comparable(results: CampaignResults) -> Any:
    """Return the results without what differs between two campaigns: run ids, durations, retries of killed attempts."""
    flows = [
        msgspec.structs.replace(
            each,
            run="",
            seconds=None,
            idle=None,
            friction=msgspec.structs.replace(each.friction, attempt_retries=0),
        )
        for each in results.flows
    ]
    return msgspec.structs.replace(results, flows=tuple(flows))


def interrupted(spec_path: str, out: str) -> None:
    """Run a campaign and stop it after the first attempt that ends."""
    stop = threading.Event()

    def hear(event: RunStarted | SuiteEvent) -> None:
        if isinstance(event, SuiteEvent) and event.event == "ended":
            stop.set()

    with pytest.raises(RunInterrupted):
        proofbox.run_campaign(spec_path, out=out, on_event=hear, stop=stop)


def test_campaign_compares_flows_and_commits_the_results(
    spec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    report = proofbox.run_campaign(spec(), out="out")
    assert report.ok, report.error
    assert scores(report) == {
        "works": {"agent": (2, 2), "solver": (2, 2)},
        "lies": {"agent": (0, 2), "solver": (2, 2)},
    }
    agent, solver = report.flows
    assert (agent.rate.rate, solver.rate.rate) == (0.5, 1.0)
    assert (agent.rate.effective_n, agent.pass_at_k, agent.flaky) == (2.0, {"1": 0.5, "2": 0.5}, ())
    assert [(each.verdict, each.missions) for each in report.comparisons] == [("underpowered", 2)]
    assert load_campaign("out") == report
    assert resume_campaign("out") == report
    assert proofbox.verify("out").ok
    assert main(["campaign", "report", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(msgspec.json.encode(report))
    assert main(["campaign", "report", "out", "--format", "markdown"]) == 0
    assert "| agent | 2/4 | 50.0 % |" in capsys.readouterr().out
    assert main(["campaign", "status", "out"]) == 0
    assert "4/4" in capsys.readouterr().out
    with pytest.raises(CampaignExists):
        proofbox.run_campaign("campaign.toml", out="out")
    published = check_publishable("out")
    assert (published.ok, published.reasons) == (True, ())
    assert published.packet is not None
    assert proofbox.verify(published.packet).ok
    assert check_publishable("out").ok, "a packet that exists is verified"
    same = compare_campaigns("out", "out")
    assert [(each.first, each.difference) for each in same.comparisons] == [("agent (later)", 0), ("solver (later)", 0)]
    assert main(["campaign", "compare", "out", "out"]) == 0
    assert "agent (later) - agent (earlier)" in capsys.readouterr().out
    assert main(["campaign", "publish-check", "out"]) == 0
    assert "first can be published" in capsys.readouterr().out
    Path("hidden/answer.txt").write_text("42\n")  # a new oracle that overwrites the agent's answer
    regraded = regrade_campaign("out", "campaign.toml", out="regraded")
    assert (regraded.changed, regraded.regrade.rates["agent"].rate) == (2, 1.0)
    assert regraded.regrade.parent == Path(report.bundle).name
    assert regraded.regrade.sha256 != report.results.sha256
    assert proofbox.verify("regraded").ok
    assert load_campaign("out") == report, "the campaign stays as it is"
    manifest = Path("out/campaign.json")
    manifest.write_text(manifest.read_text().replace("replicates = 2", "replicates = 1"))
    refused = check_publishable("out")
    assert {"not_registered", "campaign_disagrees"} <= {each.code for each in refused.reasons}


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("campaign.toml", "replicates = 2", "replicates = 1"),
        ("suite.toml", '"do it"', '"do it well"'),
        ("hidden/test.txt", "not", "now"),
        ("solve.sh", "42", "43"),
    ],
)
def test_changed_file_is_refused(spec: Callable[..., str], path: str, old: str, new: str) -> None:
    interrupted(spec(), "out")
    text = Path(path).read_text()
    Path(path).write_text(text.replace(old, new))
    with pytest.raises(CampaignChanged) as raised:
        resume_campaign("out")
    assert raised.value.details["changed"]
    report = load_campaign("out")
    assert (report.ok, report.committed, report.error and report.error.code) == (False, False, "CAMPAIGN_INCOMPLETE")


def test_canary_runs_the_first_missions_and_a_changed_report_is_a_finding(spec: Callable[..., str]) -> None:
    report = run_canary(spec(), missions=1, out="out")
    assert (report.results.canary, list(scores(report))) == (1, ["works"])
    stored = Path(report.bundle, "report.json")
    stored.write_text(stored.read_text().replace('"passed":2', '"passed":4'))
    found = load_campaign("out")
    assert not found.ok
    assert "campaign_disagrees" in {each.code for each in found.findings}
    refused = check_publishable("out")
    assert (refused.packet, "canary" in {each.code for each in refused.reasons}) == (None, True)


def test_attempts_lost_to_infrastructure_are_excluded_and_shown(spec: Callable[..., str]) -> None:
    crashes = mission("crashes", {"fault": "crash"}, verify=ANSWER, solution="solve.sh")
    report = proofbox.run_campaign(spec(WORKS + crashes, '[[gate]]\ntype = "coverage"\n'), out="out")
    agent = report.flows[0]
    assert (agent.rate.passed, agent.rate.scored, agent.bounds.lost) == (2, 2, 2)
    assert (agent.bounds.lowest, agent.bounds.highest) == (0.5, 1.0)
    assert agent.infra == {"RUNTIME_CRASH": 2}
    assert (report.results.complete, report.error and report.error.code) == (False, "CAMPAIGN_GATES_FAILED")
    assert [(gate.flow, gate.passed) for gate in report.gates] == [("agent", False), ("solver", True)]
    assert resume_campaign("out").error == report.error, "a resume cannot repair a committed campaign"
    codes = [each.code for each in check_publishable("out").reasons]
    assert codes[:2] == ["coverage_incomplete", "gate_failed"]


def test_flow_that_cannot_run_is_refused_before_anything_is_written(spec: Callable[..., str]) -> None:
    broken = '[[flow]]\nid = "broken"\nrunner = { type = "process", settings = { command = ["no-such-program"] } }\n'
    with pytest.raises(ConsentRequired):
        proofbox.run_campaign(spec(more=broken), out="out")
    with pytest.raises(CampaignNotReady) as raised:
        proofbox.run_campaign("campaign.toml", out="out", trust=True)
    assert [(each["flow"], each["code"]) for each in raised.value.details["failures"]] == [
        ("broken", "RUNTIME_STRATEGY_UNAVAILABLE")
    ]
    assert not Path("out").exists()


def test_new_campaign_finishes_green_and_is_publishable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "campaign", "made"]) == 0
    assert "run it: cd made && proofbox campaign run campaign.toml --out out" in capsys.readouterr().out
    monkeypatch.chdir("made")
    report = proofbox.run_campaign("campaign.toml", out="out")
    assert (report.ok, [flow.rate.rate for flow in report.flows]) == (True, [1.0, 1.0])
    assert check_publishable("out").ok
    assert main(["suite", "lint", "suite.toml"]) == 0
    assert main(["new", "suite", "."]) == 2, "existing files are never replaced"


def test_only_one_process_runs_a_campaign(spec: Callable[..., str]) -> None:
    interrupted(spec(), "out")
    with exclusive(Path("out")), pytest.raises(RunBusy):
        resume_campaign("out")
    with pytest.raises(CampaignUnknown):
        resume_campaign("hidden")


def test_campaign_killed_twice_and_resumed_equals_an_undisturbed_one(spec: Callable[..., str]) -> None:
    slow = [command("sleep 0.2"), write("answer.txt", "42\n"), say("done")]
    missions = "".join(mission(f"m{i}", *slow, verify=ANSWER, solution="solve.sh") for i in range(2)) + LIES
    file = spec(missions)

    async def run() -> CampaignReport:
        return await proofbox.run_campaign_async(file, out="undisturbed")

    undisturbed = anyio.run(run)
    generator = random.Random(os.getpid())  # noqa: S311 -- when to kill, not a secret
    words = ["run", "campaign.toml", "--out", "out"]
    for _ in range(2):
        limit = generator.randrange(1, 6)
        with subprocess.Popen(
            [sys.executable, "-m", "proofbox.cli", "campaign", *words, "--jsonl"],
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            seen = 0
            for line in process.stdout:
                seen += b'"ended"' in line
                if seen >= limit:
                    break
            os.killpg(process.pid, signal.SIGKILL)
        words = ["resume", "out"]
    resumed = resume_campaign("out")
    assert comparable(resumed.results) == comparable(undisturbed.results)
    assert load_campaign("out") == resumed
    assert resumed.ok
