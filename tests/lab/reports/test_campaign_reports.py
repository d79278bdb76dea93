"""Reports of campaigns: costs, medians, friction and losses, for terminals and pull requests, and health counters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from suites import HEAD, command, mission, say, write

import proofbox
from proofbox.agents.events import TokenUsage
from proofbox.cli import main
from proofbox.errors import CampaignInvalid
from proofbox.lab.campaign import comparing
from proofbox.lab.campaign.planning import plan_campaign
from proofbox.lab.campaign.prices import Price
from proofbox.lab.campaign.reading import read_campaign
from proofbox.lab.campaign.registration import read_manifest
from proofbox.lab.reports.campaigns import loading
from proofbox.lab.reports.campaigns.efforts import Efforts
from proofbox.lab.reports.campaigns.loading import load_with_efforts
from proofbox.lab.reports.campaigns.results import CampaignReport
from proofbox.lab.reports.campaigns.text import effort_rows, sentence
from proofbox.lab.reports.results import RunResults, read_run
from proofbox.lab.statistics import compare, describe

pytestmark = pytest.mark.xdist_group("campaign-report")  # most of these share one campaign
ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
USAGE = {"usage": {"input_tokens": 1000, "output_tokens": 100, "cached_input_tokens": 400}}
SUITE = HEAD + "".join(
    [
        mission("works", USAGE, write("answer.txt", "42\n"), say("done"), verify=ANSWER, solution="solve.sh"),
        mission("stuck", *[command("cat missing")] * 3, USAGE, say("done"), verify=ANSWER, solution="solve.sh"),
        mission("lost", {"fault": "protocol"}, verify=ANSWER, solution="solve.sh"),
    ]
)
CAMPAIGN = """
[campaign]
id = "priced"
replicates = 3
retries = 0
currency = "EUR"
[[price]]
model = "agent"
input = 2.0
cached_input = 0.5
output = 10.0
[[missions]]
suite = "suite.toml"
[[flow]]
id = "agent"
runner = { type = "scripted" }
[[flow]]
id = "solver"
runner = { type = "oracle" }
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("campaign")
    (place / "suite.toml").write_text(SUITE)
    one_worker = CAMPAIGN.replace("retries = 0", "retries = 0\nconcurrency = 1")  # starting more takes longer
    (place / "campaign.toml").write_text(one_worker)
    (place / "solve.sh").write_text("echo 42 > answer.txt\n")
    return place


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory, for this module alone: other tests count attempts as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield Path()


@pytest.fixture(scope="module")
def report(place: Path, state: Path) -> CampaignReport:
    return proofbox.run_campaign(place / "campaign.toml", out=place / "out")


@pytest.mark.needs("bubblewrap")
def test_costs_come_from_the_price_table_and_are_otherwise_unknown(report: CampaignReport) -> None:
    agent, solver = report.flows
    each = (600 * 2.0 + 400 * 0.5 + 100 * 10.0) / 1_000_000
    assert agent.cost is not None
    assert agent.cost.median == pytest.approx(each)
    assert agent.cost.n == 6
    assert agent.cost.low is None, "six attempts at two missions are worth less than six independent ones"
    assert agent.cost_spent == pytest.approx(6 * each)
    assert agent.tokens_unknown == 3
    assert (solver.tokens, solver.cost, solver.cost_spent, solver.tokens_unknown) == (None, None, None, 9)
    assert report.results.currency == "EUR"


@pytest.mark.needs("bubblewrap")
def test_friction_and_losses_are_counted(report: CampaignReport) -> None:
    agent, solver = report.flows
    assert (agent.friction.repeated_calls, agent.friction.dead_ends, agent.friction.tool_failures) == (3, 3, 9)
    assert (solver.friction.dead_ends, solver.friction.repeated_calls) == (0, 0)
    assert agent.idle is not None
    assert 0 <= agent.idle.smallest <= agent.idle.largest <= 1
    assert (agent.bounds.lost, agent.bounds.lowest, agent.bounds.highest) == (3, 3 / 9, 6 / 9)
    assert agent.pass_at_k["2"] == agent.pass_hat_k["2"] == 0.5


@pytest.mark.needs("bubblewrap")
def test_efforts_are_means_by_mission(report: CampaignReport, place: Path) -> None:
    found = load_with_efforts(place / "out")[1]["agent"]
    assert found["tokens"] == {"works": 1100, "stuck": 1100}
    assert found["cost"] == pytest.approx({"works": 0.0024, "stuck": 0.0024})
    assert found["tool_calls"] == {"works": 1, "stuck": 3}
    assert found["failed_calls"] == {"works": 0, "stuck": 3}
    assert found["repeated_calls"] == found["dead_ends"] == {"works": 0, "stuck": 1}
    assert found["seconds"].keys() == found["idle"].keys() == {"works", "stuck"}


@pytest.mark.needs("bubblewrap")
def test_figures_are_those_that_were_checked(
    report: CampaignReport, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that change after the check, or that the check refuses, add nothing to the figures."""
    changed: dict[Path, bytes] = {}

    def change() -> None:
        for path in (place / "out/flows/agent").glob("*/attempts/works.*/attempt.report.json"):
            changed[path] = path.read_bytes()
            path.write_bytes(changed[path].replace(b'"input_tokens":1000', b'"input_tokens":9000'))

    def change_after_check(*args: Any, **options: Any) -> RunResults:
        found = read_run(*args, **options)
        change()
        return found

    manifest = read_manifest(place / "out")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(loading, "read_run", change_after_check)
            assert loading.read_flow(place / "out", manifest, "agent").report == report.flows[0]
        assert len(changed) == 3
        refused = loading.read_flow(place / "out", manifest, "agent").report
        assert (refused.tokens_spent, refused.tokens_unknown) == (3 * 1100, 6)
    finally:
        for path, data in changed.items():
            path.write_bytes(data)


@pytest.mark.needs("bubblewrap")
def test_campaigns_are_compared_by_effort_with_its_confidence(
    report: CampaignReport, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missions = [f"m{number}" for number in range(8)]
    seconds = {mission: 1.0 + number % 3 for number, mission in enumerate(missions)}
    before: Efforts = {"tokens": dict.fromkeys(missions, 1000.0), "seconds": seconds}
    before["dead_ends"] = dict.fromkeys(missions, 0.0)
    slower = {mission: seconds[mission] + (0.5 if number % 2 else -0.4) for number, mission in enumerate(missions)}
    after: Efforts = {**before, "tokens": dict.fromkeys(missions, 1500.0), "seconds": slower, "cost": {"m0": 1.0}}
    loaded = {"before": (report, {"agent": before, "solver": {}}), "after": (report, {"agent": after, "solver": {}})}
    monkeypatch.setattr(comparing, "load_with_efforts", lambda out: loaded[out.name])
    monkeypatch.setattr(comparing, "read_manifest", lambda _: read_manifest(place / "out"))
    found = proofbox.compare_campaigns("before", "after")
    assert [(each.measure, each.change) for each in found.efforts] == [("seconds", "unclear"), ("tokens", "more")]
    unclear, more = (each.means for each in found.efforts)
    assert (more.first, more.second, more.low, more.high, more.p) == (1500, 1000, 500, 500, 2 / 2**8)
    assert more.corrected_p == 2 * more.p
    assert unclear.low is not None
    assert unclear.high is not None
    assert unclear.low < 0 < unclear.difference < unclear.high
    back = proofbox.compare_campaigns("after", "before")
    assert [each.change for each in back.efforts] == ["unclear", "less"]
    assert {each.change for each in proofbox.compare_campaigns("after", "after").efforts} == {"unclear"}

    monkeypatch.chdir(place)
    main(["campaign", "compare", "before", "after"])
    text = capsys.readouterr().out
    assert "agent tokens   1000     1500   +50.0 %  +500 to +500" in text
    assert "agent: more tokens than before: corrected p = 0.016" in text
    assert max(map(len, text.splitlines())) <= 80
    main(["campaign", "compare", "after", "after"])
    assert "no significant change in time, tokens, cost or friction" in capsys.readouterr().out


@pytest.mark.needs("bubblewrap")
def test_report_fits_a_terminal_of_80_columns(
    report: CampaignReport, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert main(["campaign", "report", "out"]) == (0 if report.ok else 1)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80 and not line.startswith("evidence:")] == []
    heads = [line.split()[0] for line in lines if line.isupper()]
    assert heads == ["FLOW", "COMPARED", "MEDIANS", "FRICTION"]
    text = "\n".join(lines)
    assert "0.0024" in text
    assert "agent: all attempts together cost 0.0144 EUR, without 3 attempts of unknown cost" in text
    assert "solver: the cost is unknown: its tokens are unknown" in text
    assert main(["campaign", "report", str(place / "out"), "--markdown"]) == (0 if report.ok else 1)
    markdown = capsys.readouterr().out
    assert "| MEDIANS | SECONDS | TOKENS | COST (EUR) |" in markdown
    assert "| agent | 3 | 3 | 9 | 0 | 0 |" in markdown


@pytest.mark.needs("bubblewrap")
def test_median_is_shown_with_its_interval(report: CampaignReport) -> None:
    known = msgspec.structs.replace(report.flows[0], seconds=describe([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    results = msgspec.structs.replace(report.results, flows=(known,))
    assert effort_rows(msgspec.structs.replace(report, results=results))[1][1] == "3.5 (1.0 to 6.0)"


@pytest.mark.needs("bubblewrap")
def test_status_shows_the_health_of_each_strategy(
    report: CampaignReport, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["campaign", "status", str(place / "out"), "--json"])
    health = {each["strategy"]: each for each in json.loads(capsys.readouterr().out)["health"]}
    assert (health["scripted"]["attempts"], health["scripted"]["infra"]) == (9, {"RUNTIME_PROTOCOL": 3})
    assert health["scripted"]["reliability"] == pytest.approx(6 / 9)
    assert (health["oracle"]["attempts"], health["oracle"]["reliability"]) == (9, 1.0)
    assert health["oracle"]["turn_ms"]["median"] > 0
    main(["campaign", "status", str(place / "out")])
    text = capsys.readouterr().out
    assert "scripted  9         3     66.7 %" in text
    assert "scripted: lost to RUNTIME_PROTOCOL 3" in text
    for words in (["runtime", "list"], ["doctor", "--quick", "--provider", "off"]):
        main(words)
        assert "scripted  9         3     66.7 %" in capsys.readouterr().out


@pytest.mark.needs("bubblewrap")
def test_plan_estimates_the_cost_only_if_it_is_known(report: CampaignReport, place: Path) -> None:
    assert plan_campaign(place / "campaign.toml", past=place / "out").cost is None, "the solver's cost is unknown"


@given(
    st.builds(
        TokenUsage,
        input_tokens=st.integers(0, 10**9),
        output_tokens=st.integers(0, 10**9),
        cached_input_tokens=st.integers(0, 10**9),
    ),
    st.floats(0, 1000),
    st.floats(0, 1000),
)
def test_cost_is_between_that_of_cached_and_of_other_input(usage: TokenUsage, input: float, output: float) -> None:
    price, flat = (
        Price(model="m", input=input, output=output, cached_input=input / 10),
        Price(model="m", input=input, output=output),
    )
    whole = (usage.input_tokens * input + usage.output_tokens * output) / 1e6
    assert flat.cost(usage) == pytest.approx(whole)
    assert 0 <= price.cost(usage) <= flat.cost(usage) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("old", "new", "line", "message", "hint"),
    [
        ('model = "agent"', 'model = "agnt"', 8, "no flow uses the model 'agnt'", "agent"),
        ("input = 2.0", "input = -2.0", 9, ">= 0", ""),
        ("cached_input", "cached_inputs", 10, "no field 'cached_inputs'", "cached_input"),
        ('"EUR"', '"much money"', 6, "regex", ""),
        (
            "[[missions]]",
            '[[price]]\nmodel = "agent"\ninput = 1\noutput = 1\n[[missions]]',
            13,
            "duplicate",
            "one price",
        ),
    ],
)
def test_wrong_prices_are_reported_with_their_position(
    place: Path, old: str, new: str, line: int, message: str, hint: str
) -> None:
    (place / "wrong.toml").write_text(CAMPAIGN.replace(old, new))
    with pytest.raises(CampaignInvalid) as raised:
        read_campaign(place / "wrong.toml")
    found = raised.value.details["problems"][0]
    assert (found["line"], message in found["message"], hint in found.get("fix_hint", "")) == (line, True, True), found


@pytest.mark.parametrize(
    ("missions", "comparisons", "needed"),
    [
        (1, 1, "within the margin: up to 785 missions (one mission says nothing about how much they vary)"),
        (0, 1, "within the margin: up to 785 missions (no mission has scores of both)"),
        (4, 3, "within the margin, over 3 comparisons: 25 missions"),
    ],
)
def test_missions_needed_are_stated_with_what_they_depend_on(missions: int, comparisons: int, needed: str) -> None:
    scores = {f"m{number}": (1, 1) for number in range(missions)}
    found = compare("a", scores, "b", scores, margin=0.1)
    assert sentence(found, comparisons).endswith(f"; needed to decide {needed}")


def test_plan_states_its_assumptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("suite.toml").write_text(SUITE)
    Path("solve.sh").write_text("echo 42 > answer.txt\n")
    Path("campaign.toml").write_text(CAMPAIGN)
    assert main(["campaign", "plan", "campaign.toml", "--mde", "10pt"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "missions (assuming that flows pass half of the time and missions are equally hard)" in told
