"""The campaigns in examples/ are linted, tried as canaries and run, with the real Codex and a fake model."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import commandlines
import pytest
from suites import serving_model

import proofbox
from proofbox.agents.fakemodel import load_rules
from proofbox.agents.runtimes.codex.binary import find_binary
from proofbox.cli import main
from proofbox.lab.campaign.running import run_canary
from proofbox.lab.reports.campaigns.results import CampaignReport

pytestmark = pytest.mark.needs("bubblewrap", "codex")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CAMPAIGNS = {
    "minimal/campaign.toml": (["codex"], 1),
    "advanced/campaign.toml": (["plain", "careful"], 2),
    "shell-adapter/campaign.toml": (["codex"], 1),
    "shell-adapter/native.toml": (["codex"], 1),
}
"""The flows of each, and the number of its missions."""
RULES = """
[[rule]]
when = "total.sh prints a wrong sum"
do = "[[run sed -i s/sum=1/sum=0/ total.sh]] [[say done]]"
[[rule]]
when = "of the region north"
do = "[[run awk -F, '$1 == \\"north\\" { s += $2 } END { print s }' sales.csv > north.txt]] [[say done]]"
[[rule]]
when = "Write hello into hello.txt."
do = "[[run echo hello > hello.txt]] [[say done]]"
"""
CONFIG = """
[runtimes.codex_app_server]
base_url = "{url}"
[runtimes.process]
base_url = "{url}"
mounts = ["{codex}:/mnt/codex:ro"]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the examples, and a user whose settings name a fake model that does what the missions ask for."""
    place = tmp_path_factory.mktemp("examples")
    shutil.copytree(EXAMPLES, place, dirs_exist_ok=True)
    (place / "rules.toml").write_text(RULES)
    config = place / "config"
    (config / "proofbox").mkdir(parents=True, mode=0o700)
    with serving_model(load_rules(place / "rules.toml")) as url:
        settings = CONFIG.format(url=url, codex=find_binary().path.parent)
        (config / "proofbox" / "config.toml").write_text(settings)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CONFIG_HOME", str(config))
            patch.chdir(place)
            yield place


def finished(report: CampaignReport) -> list[tuple[str, int, int]]:
    assert report.ok, report.error
    return [(flow.flow, flow.rate.passed, flow.planned) for flow in report.flows]


@pytest.mark.parametrize("spec", CAMPAIGNS)
def test_example_is_linted(place: Path, capsys: pytest.CaptureFixture[str], spec: str) -> None:
    assert main(["campaign", "lint", spec, "--trust", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["flows"], len(found["missions"]), found["failures"]) == (*CAMPAIGNS[spec], [])


def test_example_passes_as_a_canary(place: Path, rounds: Callable[[int, int], int]) -> None:
    """A sample tries the first campaign, the soak all of them."""
    for number, spec in enumerate(list(CAMPAIGNS)[: rounds(1, len(CAMPAIGNS))]):
        canary = run_canary(spec, out=f"canary-{number}", trust=True)
        assert [(flow, passed == planned > 0) for flow, passed, planned in finished(canary)] == [
            (flow, True) for flow in CAMPAIGNS[spec][0]
        ]
        assert canary.results.canary == 1


def test_commands_in_comments_parse() -> None:
    files = sorted(EXAMPLES.rglob("*.toml"))
    lines = [line for file in files for line in re.findall(r"^#   (proofbox .*)$", file.read_text(), re.MULTILINE)]
    assert len(lines) >= 8
    for words in (words for line in lines for words in commandlines.invocations(line)):
        commandlines.refuse_unknown(words)


def test_minimal_example_runs(place: Path) -> None:
    assert finished(proofbox.run_campaign("minimal/campaign.toml", out="minimal/out")) == [("codex", 1, 1)]


def test_advanced_example_runs_and_has_known_costs(place: Path, rounds: Callable[[int, int], int]) -> None:
    spec, replicates = Path("advanced/campaign.toml"), rounds(1, 2)
    text = spec.read_text().replace("replicates = 2", f"replicates = {replicates}")
    spec.write_text(text.replace("concurrency = 4", f"concurrency = {rounds(1, 4)}"))  # starting workers takes longer
    report = proofbox.run_campaign(spec, out="advanced/out")
    assert finished(report) == [(flow, 2 * replicates, 2 * replicates) for flow in ("plain", "careful")]
    assert all(flow.cost is not None and flow.cost.median > 0 for flow in report.flows)
    assert [gate.type for gate in report.gates if gate.passed] == [*["coverage"] * 2, *["infra"] * 2, "comparison"]


def test_shell_adapter_and_its_native_migration_score_the_same(place: Path) -> None:
    adapted = proofbox.run_campaign("shell-adapter/campaign.toml", out="shell-adapter/out", trust=True)
    native = proofbox.run_campaign("shell-adapter/native.toml", out="shell-adapter/native")
    assert finished(adapted) == finished(native) == [("codex", 1, 1)]
    found = proofbox.compare_parity("shell-adapter/out/flows/codex", "shell-adapter/native/flows/codex")
    assert (found.ok, found.differences, found.strategies) == (True, (), (("process",), ("codex_app_server",)))
