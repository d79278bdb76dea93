"""Boxes of an attempt take their settings from the suite and the user, never from files in the tree under test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, command, conduct, mission, plan, say, write

from proofbox.core.dirs import config_dir
from proofbox.lab.run.ledger import Attempt

pytestmark = pytest.mark.needs("bubblewrap")

ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
CONFIGS = {
    "widening": 'network = "full"\nmounts = ["/:/host"]\n',
    "malformed": "this is not TOML",
    "wrong-provider": 'provider = "apple-vm"\n',
    "tiny": "memory = 1\n",
    "provision": 'provision = "prepare.sh"\n',
}


def run(suite: str, tmp_path: Path, **options: Any) -> dict[str, Attempt]:
    base = tmp_path / "suite"
    base.mkdir(exist_ok=True)
    made = plan(HEAD + suite, tmp_path / "out", base, **options)
    conduct(made, tmp_path / "out")
    return attempts(made, tmp_path / "out")


def test_config_written_by_the_agent_does_not_configure_the_verifier(tmp_path: Path) -> None:
    """A wrong answer counts against the agent, whatever configuration it leaves."""
    missions = [
        mission(
            name,
            write(".proofbox/config.toml", text),
            write("prepare.sh", "echo 42 > answer.txt"),
            write("answer.txt", "41\n"),
            say("done"),
            verify=ANSWER,
        )
        for name, text in CONFIGS.items()
    ]
    ended = run("".join(missions), tmp_path)
    found = {each.mission: each.result and (each.result.verified, each.result.infra) for each in ended.values()}
    assert found == dict.fromkeys(CONFIGS, ("failed", None))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("strategy", ["scripted", "process", "oracle"])
def test_config_in_the_workspace_configures_no_box_of_an_attempt(tmp_path: Path, name: str, strategy: str) -> None:
    app = tmp_path / "suite" / "app"
    (app / ".proofbox").mkdir(parents=True)
    (app / ".proofbox/config.toml").write_text(CONFIGS[name])
    (app / "prepare.sh").write_text("exit 1")
    (tmp_path / "suite/solve.sh").write_text("#!/bin/sh\necho 42 > answer.txt\n")
    suite = mission(
        "a",
        command("echo 42 > answer.txt"),
        say("done"),
        workspace="app",
        setup=["touch was-set-up"],
        solution="solve.sh",
        verify={"commands": ["test -e was-set-up", "grep -qx 42 answer.txt"]},
    )
    runtimes = {"process": {"command": ["sh", "-c", "echo 42 > answer.txt"]}}
    ended = run(suite, tmp_path, chain=strategy, runtimes=runtimes)
    result = ended["a.1"].result
    assert result is not None
    assert (result.verified, result.infra) == ("passed", None)


def test_user_settings_configure_the_boxes_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("FROM_THE_USER", "yes")
    (config_dir() / "config.toml").write_text('env = ["FROM_THE_USER"]\n')
    suite = mission("a", say("done"), verify={"commands": ['test "$FROM_THE_USER" = yes']})
    ended = run(suite, tmp_path)
    assert ended["a.1"].result is not None
    assert ended["a.1"].result.verified == "passed"
