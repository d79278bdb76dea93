"""Campaigns are run, interrupted, reported, published and regraded, from Python and with the command."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from campaign_files import ANSWER, CAMPAIGN, LIES, ONE_FLOW, WORKS, interrupted, scores, write_files
from suites import DIES_AT_FIRST, command, mission, one_worker_process, patch_workers, toml, write

import proofbox
from proofbox.cli import main
from proofbox.config import consent
from proofbox.config.engine import EngineSettings
from proofbox.core.digest import sha256_file
from proofbox.core.dirs import config_dir
from proofbox.errors import (
    BundleSecretFound,
    CampaignChanged,
    CampaignExists,
    CampaignNotReady,
    CampaignUnknown,
    ConsentRequired,
    CorruptError,
    RunBusy,
    RunInterrupted,
    RunMoved,
    RunUnknown,
    UsageError,
)
from proofbox.evidence.attest.keys import new_key
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.lab.campaign import running
from proofbox.lab.campaign.history import known_campaigns
from proofbox.lab.campaign.layout import flow_out
from proofbox.lab.campaign.registration import CampaignManifest, exclusive, read_manifest, registered_digest
from proofbox.lab.reports.campaigns import parallel_reading
from proofbox.lab.reports.campaigns.text import notes
from proofbox.lab.run.events import RunStarted, SuiteEvent
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import ledger_path, read_plan
from proofbox.workspace import registry

USAGE = {"usage": {"input_tokens": 900, "output_tokens": 100}}
ONCE = CAMPAIGN.replace("replicates = 2", "replicates = 1")

pytestmark = [pytest.mark.needs("bubblewrap"), pytest.mark.xdist_group("campaign")]


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that writes a suite and a campaign into the current directory."""
    monkeypatch.chdir(tmp_path)
    return write_files


@pytest.fixture(scope="session")
def original_finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        proofbox.run_campaign(write_files(), out="out")
    return place


@pytest.fixture(scope="session")
def original_begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("begun")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        interrupted(write_files(), "out")
    return place


@pytest.fixture
def finished(original_finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The directory of a committed campaign, copied into the current directory with its files."""
    shutil.copytree(original_finished, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return "out"


@pytest.fixture
def begun(original_begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The directory of a campaign that was interrupted, copied like `finished`. It can be read, but not run to its end:
    its runs belong to the original."""
    shutil.copytree(original_begun, tmp_path, symlinks=True, dirs_exist_ok=True)
    manifest = tmp_path / "out" / "campaign.json"
    content = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps({**content, "path": str(tmp_path / "campaign.toml")}))
    monkeypatch.chdir(tmp_path)
    return "out"


def test_results_are_computed_from_the_evidence_and_shown(finished: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = proofbox.load_campaign(finished)
    assert report.ok, report.error
    assert scores(report) == {
        "works": {"agent": (2, 2), "solver": (2, 2)},
        "lies": {"agent": (0, 2), "solver": (2, 2)},
    }
    agent, solver = report.flows
    assert (agent.rate.rate, solver.rate.rate) == (0.5, 1.0)
    assert (agent.rate.effective_n, agent.pass_at_k, agent.flaky) == (2.0, {"1": 0.5, "2": 0.5}, ())
    assert (agent.contradicted_claims, solver.contradicted_claims, agent.cleanup_failures) == (2, 0, {})
    assert [(each.verdict, each.missions) for each in report.comparisons] == [("underpowered", 2)]
    assert proofbox.resume_campaign(finished) == report
    assert proofbox.verify(finished).ok
    assert main(["campaign", "report", finished, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(msgspec.json.encode(report))
    assert main(["campaign", "report", finished, "--markdown"]) == 0
    assert "| agent | 2/4 | 50.0 % |" in capsys.readouterr().out
    assert main(["campaign", "status", finished]) == 0
    assert "4/4" in capsys.readouterr().out


def test_status_counts_the_attempts_of_a_running_campaign(
    spec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def look(event: RunStarted | SuiteEvent) -> None:
        if isinstance(event, SuiteEvent) and event.event == "ended":
            code = main(["campaign", "status", "out", "--json"])
            [flow] = json.loads(capsys.readouterr().out)["results"]["flows"]
            seen.append((flow["ended"], flow["planned"], code))

    proofbox.run_campaign(spec(WORKS, campaign=ONE_FLOW), out="out", on_event=look)
    first, last = seen
    assert first in [(1, 2, 1), (2, 2, 0)]  # the second attempt may have ended as well
    assert last == (2, 2, 0)


def test_campaign_whose_events_are_no_longer_read_ends_and_resumes(spec: Callable[..., str]) -> None:
    words = [sys.executable, "-m", "proofbox.cli", "campaign", "run", spec(WORKS, campaign=ONE_FLOW), "--jsonl"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert "proofbox campaign resume out" in process.stderr.read()
    assert process.returncode == 141, "it is not complete"
    assert proofbox.resume_campaign("out").ok


def test_flows_of_a_large_campaign_are_read_in_children_with_the_same_results(
    finished: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, here = proofbox.load_campaign(finished), []
    monkeypatch.setattr(parallel_reading, "LARGE", 0)
    with monkeypatch.context() as patch:
        patch.setattr(
            "proofbox.lab.reports.campaigns.loading.read_flow", lambda *_: here.append("read in this process")
        )
        assert proofbox.load_campaign(finished) == expected
    assert here == []
    for ledger in Path(finished).rglob("*.ledger"):
        ledger.write_bytes(b"not a ledger")
    with pytest.raises(CorruptError):  # the failure of a child is raised here
        proofbox.load_campaign(finished)


def test_campaign_is_compared_with_an_earlier_one(finished: str, capsys: pytest.CaptureFixture[str]) -> None:
    same = proofbox.compare_campaigns(finished, finished)
    assert [(each.first, each.difference) for each in same.comparisons] == [("agent (later)", 0), ("solver (later)", 0)]
    assert main(["campaign", "compare", finished, finished]) == 0
    assert "agent      +0.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["report", "{}"], "fix: name the run of one flow: proofbox report {}/flows/agent"),
        (["report", "parity", "{}", "{}"], "fix: name the run of one flow: proofbox report parity {}/flows/agent"),
        (["validate", "{}"], "fix: name the run of one flow: proofbox validate {}/flows/agent"),
        (["attempt", "list", "{}"], "fix: name the run of one flow: proofbox attempt list {}/flows/agent"),
        (
            ["attempt", "explain", "works.1", "--run", "{}"],
            "fix: name the run of one flow: proofbox attempt explain works.1 --run {}/flows/agent",
        ),
    ],
)
@pytest.mark.parametrize("campaign", ["finished", "begun"])
def test_campaign_given_as_a_run_is_refused_with_commands_that_work(
    campaign: str,
    words: list[str],
    hint: str,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = request.getfixturevalue(campaign)
    assert main([word.format(out) for word in words]) == 2
    told = capsys.readouterr().err
    assert f"{out} is a campaign, not a run; its runs are in {out}/flows" in told
    assert f"fix: see the campaign: proofbox campaign report {out}" in told
    assert hint.format(out) in told
    if campaign == "finished" and "parity" not in words:
        assert main(hint.format(out).rpartition(": proofbox ")[2].split()) == 0


def test_bundle_of_a_campaign_is_not_validated_as_a_run(finished: str) -> None:
    with pytest.raises(RunUnknown, match=r"out is a campaign"):
        proofbox.validate(proofbox.load_campaign(finished).bundle)


def test_report_ends_with_what_to_do_next(finished: str, capsys: pytest.CaptureFixture[str]) -> None:
    digest = proofbox.load_campaign(finished).results.sha256
    assert main(["campaign", "report", "--html", "r.html"]) == 0
    registered, _, explain, written = capsys.readouterr().out.splitlines()[-4:]
    assert registered == f"registered (hash of the campaign and its files): {digest[:12]}…"
    assert explain == "explain an attempt: proofbox attempt explain ID --run out/flows/FLOW"
    assert written == "written: r.html"
    assert Path("r.html").exists()
    assert main(["report", "out/flows/agent", "--html", "flow.html"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "written: flow.html"


def test_directory_without_a_campaign_is_named_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["status"], ["resume"], ["report"], ["compare", "out", "out"]):
        assert main(["campaign", *words]) == 2
        told = capsys.readouterr().err
        assert "there is no campaign in out" in told
        assert "fix: name the directory that you gave to `proofbox campaign run` as --out" in told


def test_published_results_have_a_packet_that_verifies(finished: str, capsys: pytest.CaptureFixture[str]) -> None:
    published = proofbox.check_publishable(finished)
    assert (published.ok, published.reasons) == (True, ())
    assert published.packet is not None
    assert proofbox.verify(published.packet).ok
    assert proofbox.check_publishable(finished).packet == published.packet, "a packet that exists is verified"
    assert main(["campaign", "publish-check", finished]) == 0
    assert "first can be published" in capsys.readouterr().out
    with pytest.raises(CampaignExists):
        proofbox.run_campaign("campaign.toml", out=finished)


def test_interrupted_campaign_is_named_as_one(begun: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["campaign", "report", begun, "--html", "r.html"]) == 1
    told = capsys.readouterr().err
    assert "the campaign in out is not committed" in told
    assert "fix: resume with: proofbox campaign resume out" in told
    assert not Path("r.html").exists()
    main(["campaign", "compare", begun, begun])
    assert "the earlier campaign is not committed: " in capsys.readouterr().out


def test_packet_that_exists_must_be_signed_with_the_given_key(finished: str) -> None:
    ours, other = new_key("ours"), new_key("other")
    unsigned = proofbox.check_publishable(finished)
    assert unsigned.packet is not None
    refused = proofbox.check_publishable(finished, sign="ours")
    assert (refused.ok, refused.packet, [each.code for each in refused.reasons]) == (False, None, ["signature_absent"])
    assert f"remove {unsigned.packet}" in refused.reasons[0].detail
    Path(unsigned.packet).unlink()
    assert proofbox.check_publishable(finished, sign="ours").signed_by == ours.key_id
    assert proofbox.check_publishable(finished, sign="ours").signed_by == ours.key_id, "it exists now"
    refused = proofbox.check_publishable(finished, sign="other")
    assert (refused.ok, len(refused.reasons), other.key_id) == (False, 1, other.key_id)


def test_packet_of_another_policy_does_not_count(finished: str) -> None:
    emit_promotion(proofbox.load_campaign(finished).bundle, policy="decision-stage")
    assert [each.code for each in proofbox.check_publishable(finished).reasons] == ["packet_other"]


def test_new_verifiers_grade_the_stored_files_again(finished: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report = proofbox.load_campaign(finished)
    Path("hidden/answer.txt").write_text("42\n")  # a new oracle that overwrites the agent's answer
    with monkeypatch.context() as patch:
        patch.setenv("SOME_API_KEY", sha256_file(Path(report.bundle, INDEX))[0])
        with pytest.raises(BundleSecretFound, match=r"regrade\.json"):
            proofbox.regrade_campaign(finished, "campaign.toml", out="refused")
    regraded = proofbox.regrade_campaign(finished, "campaign.toml", out="regraded")
    assert (regraded.changed, regraded.regrade.rates["agent"].rate) == (2, 1.0)
    assert regraded.regrade.parent == Path(report.bundle).name
    assert regraded.regrade.sha256 != report.results.sha256
    assert proofbox.verify("regraded").ok
    assert proofbox.load_campaign(finished) == report, "the campaign stays as it is"


def test_changed_manifest_or_report_is_a_finding(finished: str) -> None:
    report = proofbox.load_campaign(finished)
    stored = Path(report.bundle, "report.json")
    content = stored.read_text()
    stored.write_text(content.replace('"passed":2', '"passed":4'))
    found = proofbox.load_campaign(finished)
    assert not found.ok
    assert "campaign_disagrees" in {each.code for each in found.findings}
    stored.write_text(content)
    manifest = Path(finished, "campaign.json")
    manifest.write_text(manifest.read_text().replace("replicates = 2", "replicates = 1"))
    refused = proofbox.check_publishable(finished)
    assert {"campaign_not_registered", "campaign_disagrees"} <= {each.code for each in refused.reasons}


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("campaign.toml", "replicates = 2", "replicates = 1"),
        ("suite.toml", '"do it"', '"do it well"'),
        ("hidden/test.txt", "not", "now"),
        ("solve.sh", "42", "43"),
        ("out/campaign.json", "replicates = 2", "replicates = 1"),
    ],
)
def test_changed_file_is_refused_by_its_hash(begun: str, path: str, old: str, new: str) -> None:
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))
    with pytest.raises(CampaignChanged) as raised:
        proofbox.resume_campaign(begun)
    assert raised.value.details["changed"]
    report = proofbox.load_campaign(begun)
    assert (report.ok, report.committed) == (False, False)


def test_resume_loses_nothing_without_a_key_or_in_another_directory(
    spec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"command": ["/bin/sh", "-c", "echo 42 > answer.txt"]}
    runner = {"type": "process", "base_url": "http://127.0.0.1:9", "api_key_env": "THE_KEY", "settings": settings}
    file = spec(WORKS, campaign=ONE_FLOW.replace('{ type = "scripted" }', toml(runner)))
    monkeypatch.setenv("THE_KEY", "known-only-to-this-test")
    interrupted(file, "out", trust=True)
    with monkeypatch.context() as patch:
        patch.delenv("THE_KEY")
        with pytest.raises(CampaignNotReady) as raised:
            proofbox.resume_campaign("out")
    codes = [each["code"] for each in raised.value.details["failures"]]
    assert codes == ["CAMPAIGN_KEY_ABSENT", "RUNTIME_STRATEGY_UNAVAILABLE"]
    shutil.move("out", "moved")
    with pytest.raises(RunMoved):
        proofbox.resume_campaign("moved")
    shutil.move("moved", "out")
    report = proofbox.resume_campaign("out")
    assert (report.ok, scores(report)) == (True, {"works": {"agent": (2, 2)}})


def test_settings_of_the_user_are_registered_without_secrets(
    spec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They decide what a flow does as much as the campaign's file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path.cwd() / "config"))
    config = config_dir() / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)

    def set_up(command: str, value: str = "first-value") -> str | None:
        env = f"env = {{ SOME_TOKEN = {json.dumps(value)} }}"
        config.write_text(f'[runtimes.process]\ncommand = ["sh", "-c", "{command}"]\n[runtimes.acp]\n{env}\n')
        return proofbox.lint_campaign(file).sha256

    file = spec(WORKS, campaign=ONE_FLOW.replace("scripted", "process"))
    one, other = set_up("echo 42 > answer.txt"), set_up("true")
    assert one != other
    acp = {"type": "acp", "settings": {"command": ["cat"]}}
    file = spec(WORKS, campaign=ONE_FLOW.replace('{ type = "scripted" }', toml(acp)))
    proofbox.lint_campaign(file, trust=True)
    assert set_up("true") == set_up("true", "second-value"), "values of secrets are not hashed"
    file = spec(WORKS, campaign=ONE_FLOW.replace("scripted", "process"))
    assert set_up("echo 42 > answer.txt") == one
    interrupted(file, "out")
    set_up("true")
    with pytest.raises(CampaignChanged, match=r"changed: settings://config\.toml"):
        proofbox.resume_campaign("out")
    set_up("echo 42 > answer.txt")
    assert proofbox.resume_campaign("out").ok


def test_flows_compare_several_agents_of_one_kind(spec: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path.cwd() / "config"))
    config = config_dir() / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text('[runtimes.process.quick]\ncommand = ["sh", "-c", "echo 42 > answer.txt"]\n')
    idle = {"type": "process.idle", "settings": {"command": ["true"]}}
    campaign = ONCE.replace('"scripted"', '"process.quick"').replace('{ type = "oracle" }', toml(idle))
    report = proofbox.run_campaign(spec(WORKS, campaign=campaign), out="out", trust=True)
    assert scores(report) == {"works": {"agent": (1, 1), "solver": (0, 1)}}
    assert [each.strategy for each in report.flows] == ["process.quick", "process.idle"]
    config.write_text('[runtimes.process.quick]\ncommand = ["true"]\n')
    assert proofbox.lint_campaign("campaign.toml").sha256 != report.results.sha256
    config.write_text("")
    [failure] = proofbox.lint_campaign("campaign.toml").failures
    assert failure.flow == "agent"
    assert "no command is set for process.quick" in failure.message


def test_files_that_the_agent_mounts_are_registered(spec: Callable[..., str]) -> None:
    """A better agent in the middle of a campaign would improve its results."""
    agent = Path("agent/run.sh")
    agent.parent.mkdir()
    agent.write_text("true\n")
    settings = {"command": ["sh", "/mnt/agent/run.sh"], "mounts": ["agent:/mnt/agent"]}
    runner = {"type": "process", "settings": settings}
    interrupted(spec(WORKS, campaign=ONE_FLOW.replace('{ type = "scripted" }', toml(runner))), "out", trust=True)

    def improve(event: RunStarted | SuiteEvent | None = None) -> None:
        if event is None or (isinstance(event, SuiteEvent) and event.event == "ended"):
            agent.write_text("echo 42 > answer.txt\n")

    improve()
    with pytest.raises(CampaignChanged, match="changed: agent://agent"):
        proofbox.resume_campaign("out")
    agent.write_text("true\n")
    with pytest.raises(CampaignChanged, match=r"mounts .* have changed: agent://agent"):
        proofbox.resume_campaign("out", on_event=improve)
    agent.write_text("true\n")
    report = proofbox.resume_campaign("out")
    assert (report.findings, scores(report)) == ((), {"works": {"agent": (0, 2)}})


def test_plan_with_other_settings_than_registered_is_a_finding(finished: str) -> None:
    [ledger] = Path(finished, "flows/agent").glob("*.ledger")
    with contextlib.closing(sqlite3.connect(ledger)) as database, database:
        [(text,)] = database.execute("SELECT value FROM about WHERE key = 'plan'")
        plan = {**json.loads(text), "runtimes": {"scripted": {"pace": 1}}}
        database.execute("UPDATE about SET value = ? WHERE key = 'plan'", [json.dumps(plan)])
    details = {each.detail for each in proofbox.load_campaign(finished).findings}
    assert "the user's settings that it was planned with are not the registered ones" in details


def test_manifest_that_was_changed_with_its_hash_is_refused(begun: str) -> None:
    """The registered hash is also recorded outside the campaign's directory."""
    Path("campaign.toml").write_text(Path("campaign.toml").read_text().replace("replicates = 2", "replicates = 1"))
    made = json.loads(Path(begun, "campaign.json").read_bytes())
    lint = proofbox.lint_campaign("campaign.toml")
    made |= {"source": Path("campaign.toml").read_text(), "sha256": lint.sha256}
    Path(begun, "campaign.json").write_text(json.dumps(made))
    with pytest.raises(CampaignChanged, match="is not the manifest that was registered"):
        proofbox.resume_campaign(begun)


@pytest.mark.needs("ray")
def test_resumed_campaign_keeps_its_engine_unless_told_otherwise(
    spec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a flow that was not planned when the campaign was killed."""
    conducted: list[str | None] = []

    def stop_there(*_: object, engine: str | None = None, **__: object) -> None:
        conducted.append(engine)
        raise RunInterrupted("killed", op="suite")

    monkeypatch.setattr(running, "conduct_run", stop_there)
    with pytest.raises(RunInterrupted):
        proofbox.run_campaign(spec(), engine="ray:127.0.0.1:9", per_node=3)
    last = read_manifest(Path("out")).runs[-1]
    path = ledger_path(flow_out(Path("out"), last.flow), last.run_id)
    path.unlink()
    for engine in (None, "local"):
        with pytest.raises(RunInterrupted):
            proofbox.resume_campaign("out", engine=engine)
    with Ledger(path, read_only=True) as ledger:
        assert read_plan(ledger).engine == EngineSettings(name="ray:127.0.0.1:9", per_node=3)
    assert conducted == [None, None, "local"]


def test_doctor_lists_campaigns_that_can_be_resumed(begun: str, capsys: pytest.CaptureFixture[str]) -> None:
    original = next(each for each in known_campaigns() if each.run_id == read_manifest(Path(begun)).run_id)
    assert main(["doctor", "--quick", "--provider", "off"]) in (0, 1)
    shown = capsys.readouterr().out
    assert f"campaign first in {original.out}: interrupted" in shown
    assert f"proofbox campaign resume {original.out}" in shown


def test_gc_keeps_what_can_be_resumed_and_removes_an_old_campaign_as_a_whole(
    begun: str, tmp_path: Path, original_finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(**rules: Any) -> list[tuple[str, bool, str]]:
        found = proofbox.collect_garbage(begun, older_than=0, dry_run=True, **rules)
        return [(each.kind, each.free, each.reason) for each in found.items if each.kind in ("campaign", "run")]

    assert kept() == [("campaign", False, "it can be resumed")]
    assert kept(include_uncommitted=True) == [("campaign", True, "older than 0 s")]
    with exclusive(Path(begun)):
        assert kept(include_uncommitted=True) == [("campaign", False, "in progress")]
    other = tmp_path / "committed"
    shutil.copytree(original_finished, other, symlinks=True)
    begun = str(other / "out")
    packet = proofbox.check_publishable(begun).packet
    assert kept() == [("campaign", False, "promoted")]
    Path(str(packet)).unlink()
    (other / "out" / "notes.txt").write_text("mine")
    monkeypatch.setattr(registry, "drop_store", lambda store: [])  # other tests use copies of the campaign
    monkeypatch.setattr(consent, "forget_run", lambda run_id: None)
    freed = proofbox.collect_garbage(begun, older_than=0)
    assert [(each.kind, each.free, each.left) for each in freed.items if each.kind == "campaign"] == [
        ("campaign", True, "")
    ]
    assert freed.freed > 100_000
    assert [path.name for path in (other / "out").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "../victim"},
        {"run_id": "/victim"},
        {"run_id": "run-01kcy3m8r0q4c5v7w9xbdfhj2n"},
        {"campaign": "../victim"},
        {"missions": ["../victim"]},
        {"registered_at": "yesterday"},
        {"runs": {"flow": "../../victim"}},
        {"runs": {"run_id": ".."}},
    ],
)
def test_manifest_of_a_stranger_cannot_name_files_elsewhere(begun: str, change: dict[str, Any]) -> None:
    Path("victim").mkdir()
    Path("victim/file").touch()
    manifest = json.loads(Path(begun, "campaign.json").read_bytes())
    run = {**manifest["runs"][0], **change.get("runs", {})}
    Path(begun, "campaign.json").write_text(json.dumps({**manifest, **change, "runs": [run]}))
    with pytest.raises(CorruptError):
        proofbox.collect_garbage(begun, older_than=0, include_uncommitted=True)
    assert Path("victim/file").exists()


@pytest.mark.parametrize("link", ["flows", "flows/agent"])
def test_gc_removes_no_run_behind_a_link(
    begun: str, tmp_path: Path, link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "drop_store", lambda store: [])
    monkeypatch.setattr(consent, "forget_run", lambda run_id: None)
    elsewhere = tmp_path / "elsewhere"
    Path(begun, link).rename(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    Path(begun, link).symlink_to(elsewhere)
    freed = proofbox.collect_garbage(begun, older_than=0, include_uncommitted=True)
    assert [each.free for each in freed.items if each.kind == "campaign"] == [True]
    assert sorted(elsewhere.rglob("*")) == before


def test_only_one_process_runs_a_campaign(begun: str) -> None:
    with exclusive(Path(begun)):
        with pytest.raises(RunBusy):
            proofbox.resume_campaign(begun)
        assert proofbox.load_campaign(begun).running
    with pytest.raises(CampaignUnknown):
        proofbox.resume_campaign("hidden")


def test_campaign_stops_at_its_timeout_and_can_be_resumed(
    spec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    waits = mission("waits", command("sleep 600"), verify=ANSWER, solution="solve.sh")
    campaign = ONCE.replace("replicates = 1", "replicates = 1\ntimeout = 1")
    assert main(["campaign", "run", spec(waits, campaign=campaign), "--out", "out"]) == 130
    assert "the campaign stopped at its timeout of 1 s" in (told := capsys.readouterr().err)
    assert "proofbox campaign resume out" in told
    stopped = proofbox.load_campaign("out")
    scored = [flow.rate.scored for flow in stopped.flows]
    assert (stopped.committed, stopped.running, scored) == (False, False, [0, 0])
    with pytest.raises(RunInterrupted, match="timeout of 1 s"):
        proofbox.resume_campaign("out")


def test_canary_runs_the_first_missions_and_is_never_publishable(spec: Callable[..., str]) -> None:
    report = proofbox.run_canary(spec(WORKS, campaign=ONCE), missions=50, out="out")
    assert (report.results.canary, list(scores(report))) == (50, ["works"])
    assert any(note.startswith("a canary of 1 mission:") for note in notes(report))
    compared = proofbox.compare_campaigns("out", "out")
    assert compared.notes[0] == "the earlier campaign is a canary of 1 mission"
    refused = proofbox.check_publishable("out")
    assert (refused.packet, [each.code for each in refused.reasons]) == (None, ["canary"])
    plan = proofbox.plan_campaign("campaign.toml")
    assert plan.rate == pytest.approx(1 - 1 / 4), "estimates come from the canary"
    assert plan.seconds is not None
    with pytest.raises(UsageError):
        proofbox.run_canary("campaign.toml", missions=0)


def test_attempts_lost_to_infrastructure_are_excluded_and_shown(spec: Callable[..., str]) -> None:
    crashes = mission("crashes", {"fault": "crash"}, verify=ANSWER, solution="solve.sh")
    report = proofbox.run_campaign(spec(WORKS + crashes, '[[gate]]\ntype = "coverage"\n', campaign=ONCE), out="out")
    agent = report.flows[0]
    assert (agent.rate.passed, agent.rate.scored, agent.bounds.lost) == (1, 1, 1)
    assert (agent.bounds.lowest, agent.bounds.highest) == (0.5, 1.0)
    assert agent.infra == {"RUNTIME_CRASH": 1}
    assert (report.results.complete, report.error and report.error.code) == (False, "CAMPAIGN_GATES_FAILED")
    assert [(gate.flow, gate.passed) for gate in report.gates] == [("agent", False), ("solver", True)]
    assert proofbox.resume_campaign("out").error == report.error, "a resume cannot repair a committed campaign"
    codes = [each.code for each in proofbox.check_publishable("out").reasons]
    assert codes[:2] == ["coverage_incomplete", "gate_failed"]


def test_campaign_without_a_score_for_every_attempt_is_not_ok(
    spec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    crashes = mission("crashes", {"fault": "crash"}, verify=ANSWER)
    report = proofbox.run_campaign(spec(WORKS + crashes, campaign=ONE_FLOW.replace("replicates = 2", "")), out="out")
    assert (report.ok, report.committed, report.results.complete) == (False, True, False)
    assert report.error is not None
    assert (report.error.code, report.error.message) == (
        "CAMPAIGN_INCOMPLETE",
        "1 result of first without a score: lost to RUNTIME_CRASH",
    )
    shown = {"report": "not complete: 1 result", "resume": "not complete: 1 result", "status": "1 result of first"}
    for verb, text in shown.items():
        assert main(["campaign", verb, "out"]) == 1
        assert f"{text} without a score" in capsys.readouterr().out


def test_campaign_that_asks_for_more_needs_consent(spec: Callable[..., str]) -> None:
    broken = '[[flow]]\nid = "broken"\nrunner = { type = "process", settings = { command = ["no-such-program"] } }\n'
    file = spec(LIES, more=broken)
    for function, words in (
        (proofbox.run_campaign, "run campaign.toml"),
        (proofbox.run_canary, "canary -n 1 campaign.toml"),
    ):
        with pytest.raises(ConsentRequired) as required:
            function(file, out="out")
        [hint] = required.value.fix_hints
        assert hint.endswith(f": proofbox campaign {words} --out out --trust")
    assert not Path("out").exists()


def test_consent_to_new_verifiers_runs_no_agent_again(finished: str) -> None:
    wider = {**ANSWER, "network": "full"}
    write_files(mission("works", verify=wider) + mission("lies", verify=wider))
    with pytest.raises(ConsentRequired) as required:
        proofbox.regrade_campaign(finished, "campaign.toml", out="regraded")
    [hint] = required.value.fix_hints
    assert hint.endswith(": proofbox campaign regrade out campaign.toml --out regraded --trust")


def test_new_campaign_finishes_green_and_is_publishable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "campaign", "made"]) == 0
    assert "run it: cd made && proofbox campaign run campaign.toml --out out" in capsys.readouterr().out
    monkeypatch.chdir("made")
    one_worker_process(monkeypatch)
    report = proofbox.run_campaign("campaign.toml", out="out")
    assert (report.ok, [flow.rate.rate for flow in report.flows]) == (True, [1.0, 1.0])
    assert proofbox.check_publishable("out").ok
    assert main(["suite", "lint", "suite.toml"]) == 0
    assert main(["new", "suite", "."]) == 2, "existing files are never replaced"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda manifest: manifest.update(campaign="renamed"), "campaign.json"),
        (lambda manifest: manifest["runs"][0].update(model="gpt-99"), "campaign.json"),
        (lambda manifest: manifest["runs"][0].update(strategy="codex_app_server"), "campaign.json"),
        (lambda manifest: manifest.update(missions=["works", "phantom"]), "campaign.json"),
        (lambda manifest: manifest.update(runs=manifest["runs"][1:]), "campaign.json"),
        (lambda manifest: manifest["runs"].reverse(), "campaign.json"),
    ],
)
def test_manifest_that_describes_another_campaign_is_a_finding(
    finished: str, change: Callable[[dict[str, Any]], None], where: str
) -> None:
    """Also if its own digest is computed again."""
    path = Path(finished, "campaign.json")
    content = json.loads(path.read_bytes())
    change(content)
    manifest = msgspec.convert(content, CampaignManifest)
    content["sha256"] = registered_digest(manifest.document, manifest.canary, manifest.runs)
    path.write_text(json.dumps(content))
    report = proofbox.load_campaign(finished)
    assert where in {each.path for each in report.findings if each.code == "campaign_not_registered"}
    assert not report.ok
    refused = proofbox.check_publishable(finished)
    assert "CAMPAIGN_CHANGED" in {each.code for each in refused.reasons}


def test_run_of_another_agent_is_a_finding(finished: str) -> None:
    """The run of the oracle takes the place of the agent's run, with a manifest that names it."""
    path = Path(finished, "campaign.json")
    content = json.loads(path.read_bytes())
    agent, solver = content["runs"]
    for name in (solver["run_id"], f"{solver['run_id']}.ledger"):
        Path(finished, "flows/solver", name).rename(Path(finished, "flows/agent", name))
    agent["run_id"] = solver["run_id"]
    path.write_text(json.dumps(content))
    details = [each.detail for each in proofbox.load_campaign(finished).findings]
    assert "attempts were made by oracle" in details


def test_attempt_with_a_result_cannot_be_retried(spec: Callable[..., str]) -> None:
    spec(LIES, campaign=ONE_FLOW.replace("replicates = 2", "replicates = 6"))  # it must stop before the last one ends
    stop = threading.Event()
    with pytest.raises(RunInterrupted):
        proofbox.run_campaign(
            "campaign.toml",
            out="out",
            stop=stop,
            on_event=lambda each: stop.set() if isinstance(each, SuiteEvent) and each.event == "ended" else None,
        )
    [run] = read_manifest(Path("out")).runs
    ledger = sqlite3.connect(Path("out/flows/agent", f"{run.run_id}.ledger"), isolation_level=None)
    row = "insert into attempt (number, id, mission, replicate, parent, planned_at) values (99, ?, 'lies', 1, ?, 1.0)"
    ledger.execute(row, ("lies.1.r1", "lies.1"))
    ledger.close()
    report = proofbox.resume_campaign("out")
    assert [(each.code, each.path.rpartition("/")[2]) for each in report.findings] == [
        ("retry_unwarranted", "lies.1.r1.e2")
    ]
    found = proofbox.validate(Path("out/flows/agent", run.run_id))
    assert "it retries lies.1, which has a result" in {each.detail for each in found.findings}


def test_budget_gate_fails_if_a_replaced_attempt_left_no_count_of_its_tokens(
    spec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_workers(monkeypatch, DIES_AT_FIRST)
    works = mission("works", USAGE, write("answer.txt", "42\n"), verify=ANSWER)
    once = ONE_FLOW.replace("replicates = 2", "replicates = 1").replace("retries = 0", "retries = 1")
    report = proofbox.run_campaign(spec(works, '[[gate]]\ntype = "budget"\nmax = 1500\n', campaign=once), out="out")
    [flow], [gate] = report.flows, report.gates
    assert (flow.rate.passed, flow.tokens_spent, flow.tokens_unknown) == (1, 1000, 1)
    assert (gate.passed, gate.detail) == (False, "the tokens of 1 attempt are unknown")


def test_exam_refuses_mounts_that_show_the_hidden_files(spec: Callable[..., str]) -> None:
    settings = {"command": ["true"], "mounts": [f"{Path.cwd()}:/answers:ro"]}
    flow = f'[[flow]]\nid = "cheat"\nrunner = {toml({"type": "process", "settings": settings})}\n'
    spec(LIES, campaign=f'[campaign]\nid = "exam"\nprompt_mode = "exam"\n[[missions]]\nsuite = "suite.toml"\n{flow}')
    with pytest.raises(CampaignNotReady, match=r"the agent can read verify\.files"):
        proofbox.run_campaign("campaign.toml", out="out", trust=True)


def test_results_with_a_secret_are_not_committed_and_a_comparison_names_changed_missions(
    finished: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("suite.toml").write_text(Path("suite.toml").read_text().replace("grep -qx 42 answer.txt", "true"))
    Path("campaign.toml").write_text(ONE_FLOW.replace("replicates = 2", "replicates = 1"))

    def hide(event: RunStarted | SuiteEvent) -> None:
        """The registered digest looks like a secret as soon as the campaign runs."""
        monkeypatch.setenv("SOME_API_KEY", read_manifest(Path("later")).sha256)

    with pytest.raises(BundleSecretFound, match=r"campaign\.json, report\.json"):
        proofbox.run_campaign("campaign.toml", out="later", on_event=hide)
    assert not proofbox.load_campaign("later").committed
    monkeypatch.delenv("SOME_API_KEY")
    assert proofbox.resume_campaign("later").committed
    assert "the missions of agent" in proofbox.compare_campaigns(finished, "later").changed_inputs


def test_verify_checks_the_runs_of_a_campaign(finished: str, capsys: pytest.CaptureFixture[str]) -> None:
    packet = proofbox.check_publishable(finished).packet
    assert packet is not None
    whole = proofbox.verify(finished)
    assert (whole.ok, whole.checked.bundles) == (True, 1 + 2 * (1 + 4))
    run = read_manifest(Path(finished)).run("agent")
    attempt = Path("flows/agent", run.run_id, "attempts/works.1.e1/prompt.txt")
    Path(finished, attempt).write_text("changed")
    for path in (finished, packet):
        assert [(each.code, each.path) for each in proofbox.verify(path).findings] == [("size_mismatch", str(attempt))]
    assert main(["verify", finished]) == 1
    assert "size_mismatch" in capsys.readouterr().out
    shutil.move(Path(finished, "flows/agent"), "elsewhere")
    moved = proofbox.verify(finished)
    assert (moved.ok, [note for note in moved.notes if run.run_id in note]) == (
        True,
        [f"the run flows/agent/{run.run_id} is not here, so it was not checked"],
    )
