"""Lint warnings, and how a run reports agents that were not selected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from suites import HEAD, mission, plan, say

from proofbox.cli import main
from proofbox.errors import StrategyUnavailable, SuiteInvalid
from proofbox.lab.suite.reading import parse_suite

VERIFY = {"commands": ["sh check.sh"], "files": "hidden"}


def lint(suite: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    assert main(["suite", "lint", str(suite), "--json"]) == 0
    found: dict[str, list[str]] = json.loads(capsys.readouterr().out)["warnings"]
    return found


def test_lint_warns_when_the_workspace_contains_verifier_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("hidden", "app"):
        (tmp_path / name).mkdir()
    (tmp_path / "hidden/check.sh").write_text("true")
    (tmp_path / "hidden/solve.sh").write_text("true")
    suite = tmp_path / "suite.toml"
    suite.write_text(
        HEAD
        + mission("apart", say("done"), workspace="app", verify=VERIFY)
        + mission("inside", say("done"), workspace=".", verify=VERIFY)
        + mission("copied", say("done"), files={"x": "hidden"}, verify=VERIFY)
        + mission("solved", say("done"), workspace="hidden", solution="hidden/solve.sh", verify={"commands": ["true"]})
        + mission("own", say("done"), workspace="app", verify={"commands": ["./check.sh"]})
    )
    found = lint(suite, capsys)
    assert sorted(found) == ["copied", "inside", "own", "solved"]
    assert "workspace contains verify.files (hidden)" in found["inside"][0]
    assert "files.x contains verify.files (hidden)" in found["copied"][0]
    assert "workspace contains solution" in found["solved"][0]
    assert "check.sh is run by the verifier" in found["own"][0]
    main(["suite", "lint", str(suite)])
    assert "inside: warning: workspace contains verify.files" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[suite]\nid = "x"\nreplicates = 3\n', "[defaults]"),
        ('[suite]\nid = "x"\nnetwork = "none"\n', "[defaults]"),
        ('timeout = 3\n[suite]\nid = "x"\n', "[defaults]"),
        ('[suite]\nid = "x"\n[defaults]\nstrategies = ["a"]\n', "[suite]"),
    ],
)
def test_field_in_the_wrong_table_gets_a_hint(tmp_path: Path, text: str, hint: str) -> None:
    with pytest.raises(SuiteInvalid) as refused:
        parse_suite(text + mission("a", say("done")), base=tmp_path)
    assert hint in refused.value.fix_hints[0]


def test_suite_without_an_agent_and_without_a_script_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROOFBOX_STRATEGIES", raising=False)
    suite = tmp_path / "suite.toml"
    suite.write_text(HEAD + mission("scripted", say("done")) + mission("idle", verify={"commands": ["false"]}))
    out = tmp_path / "out"
    assert main(["suite", "run", str(suite), "--out", str(out), "--provider", "off", "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == StrategyUnavailable.code
    assert "idle" in error["message"]
    assert "--strategies" in error["fix_hints"][0]
    assert not out.exists()


def test_falling_back_to_the_scripted_agent_without_a_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StrategyUnavailable, match="has no script"):
        plan(HEAD + mission("idle"), tmp_path / "out", tmp_path, chain="nop,scripted", strategy="scripted")
    plan(HEAD + mission("idle"), tmp_path / "out", tmp_path, chain="scripted")  # selected explicitly


def test_skipped_strategy_is_named_by_run_report_and_explain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(HEAD + mission("a", say("done"), verify={"commands": ["true"]}))
    out = str(tmp_path / "out")
    chain = ["--strategies", "process,scripted", "--provider", "off"]
    assert main(["suite", "run", str(suite), "--out", out, *chain]) == 0
    assert "process was skipped: " in capsys.readouterr().out
    assert main(["suite", "report", out, "--json"]) == 0
    assert "RUNTIME_STRATEGY_UNAVAILABLE" in json.loads(capsys.readouterr().out)["skipped"]["process"]
    assert main(["attempt", "explain", "a.1", "--run", out]) == 0
    assert "process was skipped (RUNTIME_STRATEGY_UNAVAILABLE)" in capsys.readouterr().out
