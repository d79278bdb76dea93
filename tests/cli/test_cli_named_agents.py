"""Several agents of one kind: named in the settings or by flags, listed, run and compared under their own names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proofbox.cli import main

CONFIG = """
[runtimes.process.quick]
command = ["sh", "-c", "echo 42 > answer.txt"]
[runtimes.process.idle]
command = ["sh", "-c", "true"]
[runtimes.acp.mine]
command = ["no-such-agent"]
"""
VERIFY = 'verify = { commands = ["grep -qx 42 answer.txt"] }\n'
SUITE = f"""
[suite]
id = "named"
[[mission]]
id = "first"
prompt = "go"
tags = ["fast"]
{VERIFY}
[[mission]]
id = "second"
prompt = "go"
{VERIFY}
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config/proofbox/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(CONFIG)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    Path("suite.toml").write_text(SUITE)


def test_named_agents_are_listed_with_their_readiness(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runtime", "list", "--json"]) == 0
    listed = {each["strategy"]: each for each in json.loads(capsys.readouterr().out)["runtimes"]}
    assert [listed[f"process.{name}"]["available"] for name in ("quick", "idle")] == [True, True]
    assert not listed["acp.mine"]["available"]
    assert listed["acp.mine"]["reason"] == "no-such-agent is not installed on this machine"


@pytest.mark.needs("bubblewrap")
def test_named_agents_run_some_missions_and_are_compared_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["suite", "run", "suite.toml", "--provider", "bubblewrap", "--json"]
    assert main([*run, "--out", "quick", "--strategies", "process.quick!", "--tag", "fast"]) == 0
    assert main([*run, "--out", "idle", "--strategies", "process.idle!", "--mission", "f*"]) == 1
    said = """sh -c 'echo "{\\"type\\":\\"message\\",\\"text\\":\\"hi\\"}"'"""
    flags = ["--command", f"mine={said}", "--set", 'output="jsonl"', "--mission", "second"]
    assert main([*run, "--out", "mine", *flags]) == 1
    runs = {}
    for line in capsys.readouterr().out.splitlines():
        document = json.loads(line)
        [attempt] = document["attempts"]
        found = {path.name: json.loads(path.read_bytes()) for path in Path(attempt["bundle"]).glob("*.json")}
        runs[found["runner.ref.json"]["runtime"]] = (attempt["attempt_id"], attempt["verified"])
    assert runs == {
        "process.quick": ("first.1", "passed"),
        "process.idle": ("first.1", "failed"),
        "process.mine": ("second.1", "failed"),
    }
    assert main(["report", "parity", "quick", "idle"]) == 1
    shown = capsys.readouterr().out
    assert "process.quick" in shown
    assert "process.idle" in shown


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["a=true", "b=true"], "a run uses one agent"),
        (["a=true", "a=false"], "--command a is given twice"),
        (["a=true", "process.a=false"], "two commands are given for process.a"),
        (["a=true", "--strategies", "scripted"], "the chain is scripted"),
    ],
)
def test_commands_that_would_not_run_are_refused(
    capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    words = [word for flag in flags for word in (["--command", flag] if "=" in flag else [flag])]
    assert main(["suite", "run", "suite.toml", *words, "--json"]) == 2
    assert message in json.loads(capsys.readouterr().out)["error"]["message"]
    assert not Path("out").exists()
