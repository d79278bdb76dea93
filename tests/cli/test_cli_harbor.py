"""`suite lint` and `suite run` on a directory of Harbor tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proofbox.cli import main

TOML = "[agent]\ntimeout_sec = 60\n[environment]\nallow_internet = false\nfancy = true\n"
TEST = "if grep -qx 42 /app/answer.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "task"
    files = {
        "task.toml": TOML,
        "instruction.md": "Write 42",
        "environment/Dockerfile": "FROM scratch\nWORKDIR /app\n",
        "tests/test.sh": TEST,
        "solution/solve.sh": "echo 42 > answer.txt\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["suite", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_lint_lists_differences_to_harbor(task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = call(capsys, "lint", str(task))
    assert (code, result["missions"], result["suite"]) == (0, 1, "task")
    assert result["notes"] == {"task": ["task.toml: environment.fancy is not supported and was ignored"]}
    code, result = call(capsys, "lint", str(task), "--host-root")
    assert result["notes"]["task"][0].startswith("not comparable: ")
    (task / "tests/test.sh").unlink()
    code, result = call(capsys, "lint", str(task))
    assert (code, result["error"]["code"]) == (1, "SUITE_INVALID")
    assert [each["message"] for each in result["problems"]] == ["tests/test.sh is missing"]


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(("strategy", "code", "verified"), [("oracle", 0, "passed"), ("nop", 1, "failed")])
def test_control_strategies_run_with_host_root(
    task: Path, capsys: pytest.CaptureFixture[str], strategy: str, code: int, verified: str
) -> None:
    got, result = call(capsys, "run", str(task), "--host-root", "--strategies", strategy, "--out", "out")
    assert got == code
    (attempt,) = result["attempts"]
    assert (attempt["verified"], attempt["infra"], list(result["not_comparable"])) == (verified, None, ["task"])


def test_conflicting_harbor_flags_are_refused(task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = call(capsys, "run", str(task), "--provider", "bubblewrap")
    assert (code, result["error"]["code"]) == (2, "PROOFBOX_USAGE")
    assert any("--host-root" in hint for hint in result["error"]["fix_hints"])
    (task.parent / "suite.toml").write_text("")
    code, result = call(capsys, "run", "suite.toml", "--host-root")
    assert (code, result["error"]["code"]) == (2, "PROOFBOX_USAGE")


def test_missing_container_engine_suggests_host_root(
    task: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{task}/no.sock")
    code, result = call(capsys, "run", str(task), "--strategies", "oracle")
    assert (code, result["error"]["code"]) == (3, "SANDBOX_UNAVAILABLE")
    assert any("--host-root" in hint for hint in result["error"]["fix_hints"])
