"""A mission's capabilities apply to the agent's tools and commands, for every agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from suites import HEAD, attempts, command, conduct, lines, mission, plan, say

from proofbox.evidence.verify.verifier import verify
from proofbox.lab.reports.steps import diff_attempt

pytestmark = pytest.mark.needs("bubblewrap")

SECRET = "the-secret-of-the-workspace"
RULES = """
preset = "agent"
[fs]
deny = ["private"]
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "start/private").mkdir(parents=True)
    (tmp_path / "start/.env").write_text(f"{SECRET} .env")
    (tmp_path / "start/private/key").write_text(f"{SECRET} private/key")
    (tmp_path / "start/open.txt").write_text("open")
    (tmp_path / "rules.toml").write_text(RULES)
    return tmp_path


@pytest.mark.parametrize(("rules", "hidden"), [("sandbox", ".env"), ("rules.toml", "private/key")])
def test_denied_paths_are_unreachable_for_tools_and_commands(base: Path, rules: str, hidden: str) -> None:
    steps = (
        {"tool": "read_file", "args": {"path": hidden}},
        command(f"cat {hidden}; cat open.txt; grep -rs secret-of ."),
        {"tool": "read_file", "args": {"path": "open.txt"}},
        say("done"),
    )
    source = HEAD + mission("looks", *steps, workspace="start", capabilities=rules)
    made = plan(source, base / "out", base)
    conduct(made, base / "out")
    (attempt,) = attempts(made, base / "out").values()
    assert attempt.result is not None
    assert attempt.result.infra is None
    denied, ran, read = lines(base / "out", made, attempt, "tool.calls.jsonl")
    assert denied["status"] == "failed"
    assert "CAPABILITY_DENIED" in denied["output_preview"]
    assert ran["output_preview"].count("open") >= 1
    assert read["status"] == "completed"
    assert f"{SECRET} {hidden}" not in str((denied, ran, read))
    assert verify(base / "out").ok


READ_ALONE = """
[fs]
read = ["**", "!.env"]
execute = ["**"]
[commands]
allow = ["**"]
"""


def test_box_enforces_capabilities_on_a_program(base: Path) -> None:
    (base / "read.toml").write_text(READ_ALONE)
    settings = {"process": {"command": ["sh", "-c", "cat .env open.txt; echo x > open.txt; echo done"]}}
    source = HEAD + mission("looks", workspace="start", capabilities="read.toml")
    made = plan(source, base / "out", base, chain="process!", runtimes=settings)
    run = conduct(made, base / "out")
    (attempt,) = attempts(made, base / "out").values()
    assert attempt.result is not None
    assert attempt.result.infra is None
    assert SECRET not in (run / attempt.path / "events.jsonl").read_text()
    assert diff_attempt(run / attempt.path) == "", "nothing could be written"
