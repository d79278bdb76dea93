"""`proofbox run` and `proofbox mcp proxy` without a supervisor: they explain their purpose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proofbox.cli import main


@pytest.mark.parametrize("words", [["run"], ["run", "-n"], ["mcp", "proxy"]])
def test_funnel_commands_fail_outside_a_box(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--json", "--", "touch", "made"]) == 125
    error = json.loads(capfd.readouterr().out)["error"]
    assert error["code"] == "RUNTIME_FUNNEL_UNAVAILABLE"
    assert any("proofbox exec" in hint for hint in error["fix_hints"])
    assert main([*words, "--", "touch", "made", "--json"]) == 125
    assert "in the box of an attempt" in capfd.readouterr().err
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("words", [["run"], ["mcp", "proxy"]])
def test_funnel_commands_need_a_command(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--json"]) == 125
    assert json.loads(capfd.readouterr().out)["error"]["code"] == "PROOFBOX_USAGE"
