"""Before the first attempt, everything that prevents a flow from running is reported, with a code and a fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaign_files import ANSWER, ONE_FLOW, WORKS, scores, write_files
from suites import command, mission, say, toml

import proofbox
from proofbox.cli import main
from proofbox.core.dirs import config_dir
from proofbox.errors import CampaignNotReady, ConsentRequired
from proofbox.lab.campaign import preflight
from proofbox.lab.run import resources
from proofbox.lab.statistics import describe

pytestmark = pytest.mark.needs("bubblewrap")


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that writes a suite and a campaign into the current directory."""
    monkeypatch.chdir(tmp_path)
    return write_files


def failures(spec: str) -> list[tuple[str, str]]:
    """Return flow and code of each failure, after checking that each has a fix and that nothing was written."""
    found = proofbox.lint_campaign(spec, trust=True)
    assert not found.ok
    assert found.error is not None
    assert found.error.code == "CAMPAIGN_NOT_READY"
    assert all(each.fix_hints for each in found.failures)
    with pytest.raises(CampaignNotReady):
        proofbox.run_campaign(spec, out="out", trust=True)
    assert not Path("out").exists()
    return [(each.flow, each.code) for each in found.failures]


def flow(**runner: Any) -> str:
    return f'[[flow]]\nid = "other"\nrunner = {toml(runner)}\n'


def test_missing_program_and_key_are_reported_together(spec: Callable[..., str]) -> None:
    other = flow(type="process", api_key_env="ABSENT_KEY", settings={"command": ["no-such-program"]})
    assert failures(spec(more=other)) == [
        ("other", "CAMPAIGN_KEY_ABSENT"),
        ("other", "RUNTIME_STRATEGY_UNAVAILABLE"),
    ]


def test_incompatible_runtime_is_reported(spec: Callable[..., str], tmp_path: Path) -> None:
    old = tmp_path / "codex"
    old.write_text("#!/bin/sh\necho codex-cli 0.1.0\n")
    old.chmod(0o755)
    assert failures(spec(more=flow(type="codex_app_server", settings={"binary": str(old)}))) == [
        ("other", "RUNTIME_COMPATIBILITY")
    ]


def test_lint_runs_no_program_of_a_campaign_without_consent(
    spec: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, marker = tmp_path / "agent", tmp_path / "made-on-the-host"
    agent.write_text(f"#!/bin/sh\ntouch {marker}\necho 0.1.0\n")
    agent.chmod(0o755)
    runners = {id: {"type": id, "settings": {"binary": str(agent)}} for id in ("claude_code", "codex_app_server")}
    more = "".join(f'[[flow]]\nid = "{id}"\nrunner = {toml(runner)}\n' for id, runner in runners.items())
    file = spec(more=more)
    found = proofbox.lint_campaign(file)
    assert (found.ok, found.failures, found.sha256) == (False, (), None)
    assert found.error is not None
    assert (found.error.code, found.error.fix_hints) == (
        "SANDBOX_CONSENT_REQUIRED",
        ("read it, and if you agree: proofbox campaign lint campaign.toml --trust",),
    )
    assert main(["campaign", "lint", file]) == 1
    shown = capsys.readouterr().out
    assert "not checked without your consent to that: runtimes and sandboxes" in shown
    assert "proofbox campaign lint campaign.toml --trust" in shown
    assert not marker.exists()
    with pytest.raises(ConsentRequired):
        proofbox.run_campaign(file, out="out")
    assert not marker.exists()
    assert main(["campaign", "lint", file, "--trust"]) == 1
    assert marker.exists()
    assert "not checked" not in capsys.readouterr().out


def test_sandbox_that_cannot_enforce_a_mission_is_reported(spec: Callable[..., str]) -> None:
    demanding = mission("demanding", say("done"), verify=ANSWER, provider="bubblewrap", image="registry.invalid/none")
    found = failures(spec(WORKS + demanding))
    assert [each[0] for each in found] == ["agent"], "the same box of another flow is not tried again"
    assert found[0][1].startswith("SANDBOX_")


def test_mount_of_an_agent_that_no_box_can_have_is_reported(spec: Callable[..., str]) -> None:
    """Without these mounts the box starts, so it is tried for every flow whose agent has others."""
    Path("agent").mkdir()
    wrong = ("agent:/usr/agent", "agent:/proc/agent", "absent:/agent", "agent")
    mounted = [flow(type="process", settings={"command": ["cat"], "mounts": [each]}) for each in wrong]
    more = "".join(each.replace('"other"', f'"m{number}"') for number, each in enumerate(mounted))
    refused = [(f"m{number}", "SANDBOX_PATH_REFUSED") for number in range(len(mounted))]
    assert failures(spec(WORKS, more)) == refused


def test_script_in_the_settings_loses_no_attempt(spec: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers, which run in another directory, read it as well."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path.cwd() / "config"))
    config_dir().mkdir(parents=True, exist_ok=True)
    (config_dir() / "config.toml").write_text('[runtimes.scripted]\nscript = "agent.toml"\n')
    file = spec(WORKS, campaign=ONE_FLOW.replace("replicates = 2", ""))
    assert failures(file) == [("agent", "PROOFBOX_USAGE")], "it is absent"
    Path("agent.toml").write_text(f"step = {toml([say('done')])}\n")
    assert scores(proofbox.run_campaign(file, out="out")) == {"works": {"agent": (1, 1)}}


@pytest.mark.needs("ray")
def test_flow_that_shares_an_agent_process_is_refused_on_a_cluster(spec: Callable[..., str]) -> None:
    with pytest.raises(CampaignNotReady, match="flow agent: attempts on a cluster cannot share one agent process"):
        proofbox.run_campaign(spec(campaign=ONE_FLOW, more='isolation = "shared"\n'), out="out", engine="ray")
    assert not Path("out").exists()


@pytest.mark.needs("ray")
@pytest.mark.parametrize("image", ["tools:1", f"tools@sha256:{'0' * 64}"])
def test_image_that_is_not_named_by_digest_is_refused_on_a_cluster(spec: Callable[..., str], image: str) -> None:
    suite = mission("works", say("done"), verify=ANSWER, provider="docker", image=image)
    with pytest.raises(CampaignNotReady) as refused:
        proofbox.run_campaign(spec(suite, campaign=ONE_FLOW), out="out", engine="ray", trust=True)
    codes = [each["code"] for each in refused.value.details["failures"]]
    assert ("CAMPAIGN_IMAGE_UNPINNED" in codes) == (image == "tools:1")
    assert not Path("out").exists()


def test_low_disk_space_is_reported(spec: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "MIN_DISK", 1 << 62)
    monkeypatch.setattr(resources, "MIN_SHARE", 1.1)
    assert failures(spec()) == [("", "CAMPAIGN_RESOURCES_LOW")]


def test_budget_below_what_earlier_attempts_used_is_reported(
    spec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Past:
        flow = "agent"
        tokens = describe([900.0, 1000.0, 1100.0])

    monkeypatch.setattr(preflight, "past_flows", lambda path: (Past(),))
    gate = '[[gate]]\ntype = "budget"\nmax = {}\n'
    assert failures(spec(more=gate.format(3999))) == [("agent", "CAMPAIGN_BUDGET_TOO_SMALL")]
    assert proofbox.lint_campaign(spec(more=gate.format(4000))).ok, "2 missions, 2 replicates, 1000 tokens each"


EXAM = ONE_FLOW.replace("replicates = 2", 'prompt_mode = "exam"')


def test_agent_of_an_exam_cannot_read_its_oracle(spec: Callable[..., str], tmp_path: Path) -> None:
    """It looks for the evaluator, the hidden files and the solution, wherever they are."""
    wanted = [str(tmp_path / name) for name in ("hidden/test.txt", "solve.sh", "evaluate.sh")]
    wanted += [f"{tmp_path}/out/flows/agent/.work/*/*/*", "../../*/*", "../verified/*", "/evaluation/*"]
    looks = command(f"cat {' '.join(wanted)} > found.txt 2> refused.txt; true")
    curious = mission("curious", looks, say("done"), verify=ANSWER, solution="solve.sh")
    file = spec(curious, '[evaluation]\nscript = "evaluate.sh"\n', campaign=EXAM)
    Path("evaluate.sh").write_text("#!/bin/sh\nset -ex\ntest -s refused.txt\n! test -s found.txt\ncat refused.txt\n")
    Path("evaluate.sh").chmod(0o755)
    report = proofbox.run_campaign(file, out="out")
    assert scores(report) == {"curious": {"agent": (1, 1)}}, "the evaluator ran, and the agent found nothing"
    [record] = Path("out").rglob("attempt.json")
    [run] = json.loads(record.read_bytes())["verification"]["commands"]
    assert f"{tmp_path}/hidden/test.txt: No such file" in run["stdout"]


def test_exam_is_refused_if_a_box_shows_its_oracle(spec: Callable[..., str]) -> None:
    """Boxes show the system's directories, so a suite that is installed there has no secrets."""
    shown = mission("shown", say("done"), verify={"commands": ["true"], "mounts": {"/oracle": "/usr/bin/env"}})
    assert failures(spec(shown, campaign=EXAM)) == [("agent", "CAMPAIGN_ORACLE_REACHABLE")]


@pytest.mark.parametrize(
    "settings",
    ['[runtimes.process]\ncommand = ["cat"]\nmounts = ["{}:/data"]\n', 'mounts = ["{}:/data"]\n'],
    ids=["of the agent", "of all boxes"],
)
def test_exam_is_refused_if_the_user_mounts_its_oracle(
    spec: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    """The plan adds the user's settings to those of the campaign, so the agent would get these mounts as well."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    config_dir().mkdir(parents=True, exist_ok=True)
    (config_dir() / "config.toml").write_text(settings.format(tmp_path))
    runner = {"type": "process", "settings": {"command": ["cat", "/data/hidden/test.txt"]}}
    exam = EXAM.replace('{ type = "scripted" }', toml(runner))
    found = failures(spec(WORKS, campaign=exam))
    assert set(found) == {("agent", "CAMPAIGN_ORACLE_REACHABLE")}
