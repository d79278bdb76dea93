"""Campaign files: every problem is reported with its position and a suggestion."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from flow_reports import flow_report
from suites import HEAD, mission, say, write

from proofbox.cli import main
from proofbox.core.dirs import config_dir
from proofbox.core.spec_files.problems import Problem
from proofbox.errors import CampaignChanged, CampaignInvalid, NotFoundError, PathRefused, UsageError
from proofbox.lab.campaign import agent_files
from proofbox.lab.campaign.planning import plan_campaign
from proofbox.lab.campaign.reading import read_campaign
from proofbox.lab.campaign.registration import describe, registered_digest, require_registered, require_unchanged
from proofbox.lab.campaign.spec import Gate
from proofbox.lab.reports.campaigns.gates import judge
from proofbox.lab.statistics import ComparisonVerdict, compare
from proofbox.sandbox.containers import images
from proofbox.sandbox.containers.engine import ContainerEngine
from proofbox.sandbox.images.imports import import_image

ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
SUITE = (
    HEAD
    + mission("answer", write("answer.txt", "42\n"), say("done"), verify=ANSWER, tags=["easy"])
    + mission("other", say("done"), verify=ANSWER)
)
CAMPAIGN = '[campaign]\nid = "first"\n'
MISSIONS = '[[missions]]\nsuite = "suite.toml"\n'
OTHER = '[[flow]]\nid = "b"\nrunner = { type = "scripted" }\n'
FLOW = '[[flow]]\nid = "a"\nrunner = { type = "scripted" }\n'
GOOD = CAMPAIGN + MISSIONS + FLOW
COMPARED = '[[gate]]\ntype = "comparison"\nflow = "a"\nagainst = "b"\nverdicts = {}\n'
AGAINST = (
    CAMPAIGN
    + 'against = "b"\n'
    + MISSIONS
    + FLOW
    + OTHER
    + OTHER.replace('"b"', '"c"')
    + '[[gate]]\ntype = "comparison"\nflow = "a"\nagainst = "c"\nverdicts = ["better"]\n'
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("suite.toml").write_text(SUITE)
    return tmp_path


def problems_of(text: str) -> list[Problem]:
    Path("campaign.toml").write_text(text)
    with pytest.raises(CampaignInvalid) as raised:
        read_campaign(Path("campaign.toml"))
    return msgspec.convert(raised.value.details["problems"], list[Problem])


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("[campaign\n", 1, "Expected", ""),
        (GOOD.replace('id = "first"', 'id = "first"\nreplicate = 2'), 3, "no field 'replicate'", "replicates"),
        (GOOD.replace('id = "first"', 'id = "Not valid"'), 2, "regex", ""),
        (GOOD.replace('id = "first"', 'id = "first"\nreplicates = 0'), 3, ">= 1", ""),
        (GOOD.replace('id = "first"', 'id = "first"\nmargin = 1.5'), 3, "< 1", ""),
        (GOOD.replace('id = "first"', 'id = "first"\nprompt_mode = "exm"'), 3, "prompt_mode", "exam"),
        (GOOD.replace('id = "first"', 'id = "first"\nagainst = "b"'), 3, "no flow is called 'b'", "a"),
        (GOOD.replace('id = "first"', 'id = "first"\nreplicates = 60000'), 3, "attempts are more than", "fewer"),
        (GOOD.replace('"suite.toml"', '"sute.toml"'), 4, "does not exist", "check the path"),
        (GOOD.replace("[[flow]]", 'ids = ["anser"]\n[[flow]]'), 5, "no mission matches 'anser'", "answer"),
        (GOOD.replace("[[flow]]", 'tags = ["esy"]\n[[flow]]'), 5, "no mission has the tag 'esy'", "easy"),
        (GOOD.replace("[[flow]]", 'ids = ["other"]\ntags = ["easy"]\n[[flow]]'), 3, "no mission is selected", "ids"),
        (CAMPAIGN + MISSIONS * 2 + 'ids = ["other"]\n' + FLOW, 5, "selected twice", "select it once"),
        (GOOD.replace('"scripted"', '"scriptd"'), 7, "no strategy is called 'scriptd'", "scripted"),
        (GOOD.replace('"scripted"', '"process.Quick"'), 7, "no strategy is called 'process.Quick'", "process"),
        (GOOD.replace('"scripted"', '"scripted.quick"'), 7, "no strategy is called 'scripted.quick'", "scripted"),
        (GOOD + FLOW, 9, "duplicate flow id 'a'", "unique"),
        (GOOD + 'model = "gpt"\n', 8, "no field 'model'", "runner of a [[flow]]"),
        (GOOD + 'prompt_template = "do it"\n', 8, "the template has no {prompt}", "{prompt}"),
        (GOOD.replace(" }", ', settings = { script = "agent.toml" } }'), 7, "a flow is not used", "[[mission.script"),
        (GOOD.replace(" }", ', model = "gpt" }'), 7, "scripted has no setting 'model'", "remove it"),
        (GOOD.replace('"scripted" }', '"acp", settings = { agnt = "x" } }'), 7, "acp has no setting 'agnt'", "agent"),
        (GOOD.replace('"scripted" }', '"acp", settings = { agent = "gemni" } }'), 7, "value 'gemni'", "mean gemini?"),
        (GOOD.replace('"scripted" }', '"process", settings = { command = 7 } }'), 7, "got `int`", ""),
        (GOOD + 'network = "ful"\n', 8, "unknown network mode 'ful'", "choose none, full or"),
        (GOOD + '[evaluation]\nverify = { commands = [" "] }\n', 5, "is an empty command", "add a command"),
        (GOOD + OTHER + COMPARED.format('["bettr"]'), 15, "Invalid enum value 'bettr'", "mean better?"),
        (GOOD + 'provider = "bublewrap"\n', 8, "unknown provider 'bublewrap'", "bubblewrap"),
        (GOOD + 'env = ["A=B"]\n', 8, "'A=…' is not the name of a variable", "only the name"),
        (GOOD + '[[gate]]\ntype = "budget"\nmax = -1\n', 10, "out of range", "at least 0"),
        (GOOD + '[[gate]]\ntype = "coverage"\nverdicts = ["better"]\n', 10, "has no verdicts", "remove it"),
        (GOOD + '[[gate]]\ntype = "coverage"\nagainst = "a"\n', 10, "has no against", "remove it"),
        (AGAINST, 18, "'a' and 'c' are not compared", "against = 'b'"),
        (GOOD + '[[gate]]\ntype = "covrage"\n', 9, "covrage", "coverage"),
        (GOOD + '[[gate]]\ntype = "pass_rate"\n', 8, "needs min", "min = "),
        (GOOD + '[[gate]]\ntype = "pass_rate"\nmin = 90\n', 10, "out of range", "between 0 and 1"),
        (GOOD + '[[gate]]\ntype = "coverage"\nmax = 1\n', 10, "has no max", "min = "),
        (GOOD + '[[gate]]\ntype = "coverage"\nflow = "b"\n', 10, "no flow is called 'b'", "a"),
        (GOOD + '[[gate]]\ntype = "comparison"\n', 8, "needs flow, against and verdicts", "better"),
        (GOOD.replace('id = "first"', 'id = "first"\nwatchdog = 0'), 3, "> 0", ""),
        (GOOD + '[evaluation]\nscript = "absent.sh"\n', 9, "is not an executable file", "chmod +x"),
        (CAMPAIGN + FLOW, 1, "needs 'missions'", ""),
        (CAMPAIGN + MISSIONS, 1, "needs 'flow'", ""),
    ],
)
def test_wrong_file_is_reported_with_position_and_suggestion(text: str, line: int, message: str, hint: str) -> None:
    found = problems_of(text)
    assert [each.line for each in found] == [line], found
    assert message in found[0].message
    assert hint in found[0].fix_hint


RATE = '[[gate]]\ntype = "pass_rate"\nmin = {}\n'


@pytest.mark.parametrize(
    ("gate", "missions", "problem"),
    [
        (RATE.format("1.0"), 2, "with 2 missions and 2 replicates, the lower end is at most 0.342 (write min = 0.342"),
        (RATE.format("0.35"), 2, "or less, or use at least 3 missions)"),
        (RATE.format("0.34"), 2, None),
        (COMPARED.format('["better"]'), 6, "6 missions can never show better (use at least 7 missions)"),
        (COMPARED.format('["better", "worse"]'), 1, "1 mission can never show better or worse"),
        (COMPARED.format('["better"]'), 7, None),
        (COMPARED.format('["better", "equivalent"]'), 2, "2 missions can never show better or equivalent"),
        (COMPARED.format('["better", "equivalent"]'), 7, None),
        (COMPARED.format('["better", "underpowered"]'), 1, None),
    ],
)
def test_gate_that_can_never_pass_is_refused(gate: str, missions: int, problem: str | None) -> None:
    """Three flows are compared in three pairs, so a p-value must be below a third of alpha."""
    Path("suite.toml").write_text(HEAD + "".join(mission(f"m{i}", say("done"), verify=ANSWER) for i in range(missions)))
    flows = FLOW + OTHER + OTHER.replace('"b"', '"c"')
    text = CAMPAIGN + "replicates = 2\n" + MISSIONS + flows + gate
    if problem is not None:
        [found] = problems_of(text)
        assert problem in f"{found.message} ({found.fix_hint})"
        return
    Path("campaign.toml").write_text(text)
    assert read_campaign(Path("campaign.toml"), first=1).missions == ("m0",), "a canary has the campaign's gates"


def test_value_of_a_variable_is_never_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Path("campaign.toml").write_text(GOOD + 'env = ["OPENAI_API_KEY=sk-proj-0123"]\n')
    for words in (["lint", "campaign.toml"], ["lint", "campaign.toml", "--json"], ["run", "campaign.toml"]):
        assert main(["campaign", *words]) != 0
        shown = "".join(capsys.readouterr())
        assert "OPENAI_API_KEY=" in shown
        assert "sk-proj" not in shown


def test_wrong_suite_of_a_campaign_is_reported_with_a_suggestion() -> None:
    Path("suite.toml").write_text(SUITE.replace("prompt =", "promt =", 1))
    [found] = problems_of(GOOD)
    assert (found.line, found.fix_hint) == (4, "did you mean prompt?")


def test_template_is_refused_if_only_the_missions_prompt_is_used() -> None:
    text = GOOD.replace('id = "first"', 'id = "first"\nprompt_mode = "mission_only"')
    found = problems_of(text + 'prompt_template = "{prompt}!"\n')
    assert (found[0].line, found[0].message) == (9, 'prompt_mode = "mission_only" allows no template')


def test_missing_file_is_not_found() -> None:
    with pytest.raises(NotFoundError):
        read_campaign(Path("absent.toml"))


def test_unverified_mission_is_refused() -> None:
    Path("suite.toml").write_text(HEAD + mission("answer", say("done")))
    assert problems_of(GOOD)[0].message == "nothing verifies mission 'answer'"


def test_mission_with_several_turns_is_refused() -> None:
    turn = {"prompt": "go on", "verify": ANSWER}
    Path("suite.toml").write_text(HEAD + mission("answer", say("done"), verify=ANSWER, then=[turn]))
    assert problems_of(GOOD)[0].message == "mission 'answer' has several turns, which campaigns do not support"


def test_exam_refuses_an_oracle_that_the_agent_gets(here: Path) -> None:
    (here / "files" / "hidden").mkdir(parents=True)
    verify = {**ANSWER, "files": "files/hidden"}
    Path("suite.toml").write_text(HEAD + mission("answer", say("done"), verify=verify, workspace="files"))
    exam = GOOD.replace('id = "first"', 'id = "first"\nprompt_mode = "exam"')
    assert problems_of(exam)[0].message == ("mission 'answer': verify.files is inside the files that the agent gets")
    Path("campaign.toml").write_text(GOOD)
    assert read_campaign(Path("campaign.toml")).missions == ("answer",)


def test_exam_refuses_an_evaluator_that_the_agent_gets(here: Path) -> None:
    evaluator = here / "files" / "evaluate.sh"
    evaluator.parent.mkdir()
    evaluator.write_text("#!/bin/sh\n")
    evaluator.chmod(0o755)
    Path("suite.toml").write_text(HEAD + mission("answer", say("done"), workspace="files"))
    exam = GOOD.replace('id = "first"', 'id = "first"\nprompt_mode = "exam"')
    found = problems_of(exam + '[evaluation]\nscript = "files/evaluate.sh"\n')
    assert found[0].message.endswith("verify.mounts /evaluation/evaluate.sh is inside the files that the agent gets")


def test_exam_refuses_a_flow_without_its_own_box() -> None:
    exam = GOOD.replace('id = "first"', 'id = "first"\nprompt_mode = "exam"')
    assert "an exam needs a sandbox" in problems_of(exam + 'provider = "off"\n')[0].message
    assert "an exam needs a process per attempt" in problems_of(exam + 'isolation = "shared"\n')[0].message


def test_campaign_sets_timeouts_hooks_and_the_evaluator_of_its_missions(here: Path) -> None:
    (here / "evaluate.sh").write_text("#!/bin/sh\n")
    (here / "evaluate.sh").chmod(0o755)
    Path("suite.toml").write_text(HEAD + mission("answer", say("done"), verify=ANSWER, cleanup=["first"], watchdog=9))
    more = 'attempt_timeout = 30\nhook_timeout = 20\nwatchdog = 10\ncleanup = ["second"]\n'
    text = CAMPAIGN + more + MISSIONS + FLOW + '[evaluation]\nscript = "evaluate.sh"\n'
    Path("campaign.toml").write_text(text)
    found = read_campaign(Path("campaign.toml")).suites["a"].missions[0]
    assert (found.timeout, found.hook_timeout, found.watchdog) == (30, 20, 10)
    assert found.cleanup == ("first", "second")
    assert found.verify.commands == (("/evaluation/evaluate.sh",),)
    assert found.verify.mounts == {"/evaluation/evaluate.sh": "evaluate.sh"}
    Path("campaign.toml").write_text(GOOD)
    assert read_campaign(Path("campaign.toml")).suites["a"].missions[0].watchdog == 9


def test_flow_changes_its_missions_and_no_others(here: Path) -> None:
    (here / "below").mkdir()
    (here / "below" / "suite.toml").write_text(
        HEAD + mission("answer", say("done"), verify={**ANSWER, "files": "tests"}, workspace="given", env=["LANG"])
    )
    for name in ("tests", "given"):
        (here / "below" / name).mkdir()
    other = OTHER + 'prompt_template = "First: {prompt}"\nenv = ["TZ"]\n'
    text = CAMPAIGN + "replicates = 3\n" + MISSIONS.replace("suite.toml", "below/suite.toml") + FLOW + other
    Path("campaign.toml").write_text(text)
    campaign = read_campaign(Path("campaign.toml"))
    plain, changed = (campaign.suites[flow].missions[0] for flow in ("a", "b"))
    assert (plain.prompt, changed.prompt) == ("do it", "First: do it")
    assert (plain.env, changed.env) == (("LANG",), ("LANG", "TZ"))
    assert plain.workspace == changed.workspace == "below/given"
    assert (plain.verify.files, plain.replicates) == ("below/tests", 3)


def test_images_are_registered_by_digest_and_another_one_is_refused(
    here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    rootfs = tmp_path_factory.mktemp("rootfs")
    (rootfs / "version").write_text("1")
    digest = import_image(rootfs, "tools").sha256
    engines = mission("engine", say("done"), verify=ANSWER, image="busybox:latest")
    Path("suite.toml").write_text(HEAD + mission("ours", say("done"), verify=ANSWER, image="tools") + engines)
    Path("campaign.toml").write_text(GOOD)
    campaign = read_campaign(Path("campaign.toml"))
    engine = {"Id": "sha256:" + "a" * 64}
    monkeypatch.setattr(ContainerEngine, "find", lambda: None)
    monkeypatch.setattr(images, "inspect_image", lambda _engine, _name: engine)
    registered = describe(campaign, here / "out")
    inputs = {path: each for path, each in registered.runs[0].inputs.items() if path.startswith("image://")}
    assert inputs == {"image://tools": digest, "image://busybox:latest": "a" * 64}
    assert registered.runs[0].files == {}
    require_registered(describe(campaign, here / "out"), registered)
    require_unchanged(campaign, registered, here / "out")

    engine["Id"] = "b" * 64  # as Podman writes it
    with pytest.raises(CampaignChanged, match="image://busybox:latest"):
        require_registered(describe(campaign, here / "out"), registered)
    with pytest.raises(CampaignChanged, match="image://busybox:latest"):
        require_unchanged(campaign, registered, here / "out")
    engine["Id"] = "a" * 64
    (rootfs / "version").write_text("2")
    import_image(rootfs, "tools")
    with pytest.raises(CampaignChanged, match="image://tools"):
        require_unchanged(campaign, registered, here / "out")


def test_mounted_files_are_registered_by_content(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("agent", "cache", "data"):
        (here / name).mkdir()
        (here / name / "file").write_text("1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here / "config"))
    config_dir().mkdir(parents=True, exist_ok=True)
    (config_dir() / "config.toml").write_text(f'mounts = ["{here}/data/file:/data"]\n')
    mounts = f'mounts = ["agent:/agent", "{here}:/all", "cache:/cache:rw"]'
    runner = f'{{ type = "process", settings = {{ command = ["cat"], {mounts} }} }}'
    Path("campaign.toml").write_text(GOOD.replace('{ type = "scripted" }', runner))
    campaign, out = read_campaign(Path("campaign.toml")), here / "out"
    out.mkdir()

    def found() -> dict[str, str]:
        inputs = describe(campaign, out).runs[0].inputs
        return {path: digest for path, digest in inputs.items() if path.startswith("agent://")}

    before = found()
    assert list(before) == ["agent://.", "agent://agent", "agent://data/file"]
    (out / "campaign.json").write_text("written by the campaign itself")
    assert found() == before
    for name, changed in (("agent", {"agent://.", "agent://agent"}), ("data", {"agent://.", "agent://data/file"})):
        (here / name / "file").write_text("2")
        now = found()
        assert {path for path in now if now[path] != before[path]} == changed
        (here / name / "file").write_text("1")
    monkeypatch.setattr(agent_files, "MAX_ENTRIES", 3)
    with pytest.raises(PathRefused, match="cannot be registered: it has more than 3 files"):
        describe(campaign, out)


def test_campaign_of_a_version_that_hashed_less_is_named_as_one(here: Path) -> None:
    Path("campaign.toml").write_text(GOOD)
    found = describe(read_campaign(Path("campaign.toml")), here / "out")
    [run] = found.runs
    earlier = [msgspec.structs.replace(run, inputs=run.files)]
    digest = registered_digest(found.document, None, earlier)
    registered = msgspec.structs.replace(found, runs=tuple(earlier), sha256=digest)
    with pytest.raises(CampaignChanged, match=r"earlier version, which did not hash settings://config\.toml") as raised:
        require_registered(found, registered)
    assert raised.value.fix_hints == ("start a new campaign: proofbox campaign run FILE --out NEW",)


def test_campaign_with_the_value_of_a_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text is committed, so it must not contain a secret, wherever that is."""
    monkeypatch.setenv("MY_API_KEY", "value-of-the-key-0123")
    monkeypatch.setenv("NAMED", "another-value-4567")
    for text in (
        GOOD.replace("[campaign]", '[campaign]\ntitle = "value-of-the-key-0123"', 1),
        f"# value-of-the-key-0123\n{GOOD}",
        GOOD.replace("[campaign]", '[campaign]\ntitle = "value-of-the\\u002dkey-0123"', 1),
    ):
        Path("campaign.toml").write_text(text)
        with pytest.raises(CampaignInvalid, match="path contains the value of MY_API_KEY, but evidence must not"):
            read_campaign(Path("campaign.toml"))
    runner = '{ type = "process", api_key_env = "NAMED", settings = { command = ["another-value-4567"] } }'
    Path("campaign.toml").write_text(GOOD.replace('{ type = "scripted" }', runner, 1))
    with pytest.raises(CampaignInvalid, match="contains the value of NAMED"):
        read_campaign(Path("campaign.toml"))
    Path("campaign.toml").write_text(GOOD)
    assert read_campaign(Path("campaign.toml"))
    elsewhere = Path("value-of-the-key-0123")
    elsewhere.mkdir()
    for name in ("campaign.toml", "suite.toml"):
        (elsewhere / name).write_bytes(Path(name).read_bytes())
    with pytest.raises(CampaignInvalid, match="contains the value of MY_API_KEY"):
        read_campaign(elsewhere / "campaign.toml")
    Path("suite.toml").write_text(SUITE.replace("do it", "value-of-the-key-0123"))
    with pytest.raises(CampaignInvalid, match="contains the value of MY_API_KEY"):
        read_campaign(Path("campaign.toml"))


def test_lint_lists_problems_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    runner = '{ type = "process", api_key_env = "ABSENT_KEY", settings = { command = ["no-such-program"] } }'
    Path("campaign.toml").write_text(GOOD.replace('{ type = "scripted" }', runner))
    assert main(["campaign", "lint", "campaign.toml", "--trust", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [each["code"] for each in found["failures"]] == ["CAMPAIGN_KEY_ABSENT", "RUNTIME_STRATEGY_UNAVAILABLE"]
    assert [each["asks_for"] for each in found["widenings"]] == [
        'api_key_env = "ABSENT_KEY" of process',
        'command = ["no-such-program"] of process',
    ]
    Path("campaign.toml").write_text(GOOD.replace("[campaign]", "[campain]"))
    assert main(["campaign", "lint", "campaign.toml"]) == 1
    assert "campaign.toml:1:2: a campaign has no field 'campain' (did you mean campaign?)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("missions", "replicates", "detectable", "needed"),
    [(2, 5, None, None), (20, 5, 0.1981, 63), (20, 63, 0.0558, 63)],
)
def test_plan_states_the_difference_that_can_be_detected(
    missions: int, replicates: int, detectable: float | None, needed: int | None
) -> None:
    Path("suite.toml").write_text(HEAD + "".join(mission(f"m{i}", say("done"), verify=ANSWER) for i in range(missions)))
    Path("campaign.toml").write_text(GOOD.replace("[[missions]]", f"replicates = {replicates}\n[[missions]]") + OTHER)
    plan = plan_campaign("campaign.toml", mde="5.6pt")
    assert (plan.attempts, plan.comparisons) == (2 * missions * replicates, 1)
    assert plan.detectable_difference == (None if detectable is None else pytest.approx(detectable, abs=1e-4))
    assert plan.replicates_needed == needed


@pytest.mark.parametrize("text", ["", "0pt", "100pt", "5points", "-5pt", "1.5"])
def test_difference_that_is_no_share_is_refused(text: str) -> None:
    Path("campaign.toml").write_text(GOOD)
    with pytest.raises(UsageError):
        plan_campaign("campaign.toml", mde=text)


@pytest.mark.parametrize(
    ("gate", "passed"),
    [
        (Gate(type="coverage"), False),
        (Gate(type="coverage", min=0.9), True),
        (Gate(type="pass_rate", min=0.56), True),
        (Gate(type="pass_rate", min=0.57), False),
        (Gate(type="infra"), False),
        (Gate(type="infra", max=0.1), True),
        (Gate(type="trace"), False),
        (Gate(type="trace", max=1), True),
        (Gate(type="tool_policy", max=1), False),
        (Gate(type="tool_policy", max=2), True),
        (Gate(type="semantic", max=1), False),
        (Gate(type="semantic", max=2), True),
        (Gate(type="cleanup", max=2), False),
        (Gate(type="cleanup", max=3), True),
        (Gate(type="budget", max=999), False),
        (Gate(type="budget", max=1000), True),
        (Gate(type="comparison", flow="a", against="b", verdicts=(ComparisonVerdict.BETTER,)), True),
        (Gate(type="comparison", flow="b", against="a", verdicts=(ComparisonVerdict.BETTER,)), False),
        (Gate(type="comparison", flow="b", against="a", verdicts=(ComparisonVerdict.WORSE,)), True),
        (Gate(type="comparison", flow="a", against="c", verdicts=(ComparisonVerdict.BETTER,)), False),
    ],
)
def test_gate_passes_only_within_its_bound(gate: Gate, passed: bool) -> None:
    scores_a = {f"m{i}": (1, 1) for i in range(10)}
    scores_b = {f"m{i}": (0, 1) for i in range(10)}
    comparison = compare("a", scores_a, "b", scores_b, margin=0.05)
    flows = [flow_report(flow=gate.flow or "a")]
    assert [each.passed for each in judge([gate], flows, [comparison])] == [passed]


def test_budget_gate_fails_if_tokens_are_unknown() -> None:
    [found] = judge([Gate(type="budget", max=1000)], [flow_report(tokens_unknown=2)], [])
    assert (found.passed, found.detail) == (False, "the tokens of 2 attempts are unknown")
