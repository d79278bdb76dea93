"""`suite lint` and `suite run` of a task's directory, as a user calls them."""

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


def test_lint_says_what_is_different_here(task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = call(capsys, "lint", str(task))
    assert (code, said["missions"], said["suite"]) == (0, 1, "task")
    assert said["notes"] == {"task": ["task.toml: environment.fancy is not supported and was ignored"]}
    code, said = call(capsys, "lint", str(task), "--host-root")
    assert said["notes"]["task"][0].startswith("not comparable: ")
    (task / "tests/test.sh").unlink()
    code, said = call(capsys, "lint", str(task))
    assert (code, said["error"]["code"]) == (1, "SUITE_INVALID")
    assert [each["message"] for each in said["problems"]] == ["tests/test.sh is missing"]


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(("strategy", "code", "verified"), [("oracle", 0, "passed"), ("nop", 1, "failed")])
def test_the_controls_run_on_the_host_s_root(
    task: Path, capsys: pytest.CaptureFixture[str], strategy: str, code: int, verified: str
) -> None:
    got, said = call(capsys, "run", str(task), "--host-root", "--strategies", strategy, "--out", "out")
    assert got == code
    (attempt,) = said["attempts"]
    assert (attempt["verified"], attempt["infra"], list(said["not_comparable"])) == (verified, None, ["task"])


def test_what_does_not_go_together_is_refused(task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = call(capsys, "run", str(task), "--provider", "bubblewrap")
    assert (code, said["error"]["code"]) == (2, "PROOFBOX_USAGE")
    assert any("--host-root" in hint for hint in said["error"]["fix_hints"])
    (task.parent / "suite.toml").write_text("")
    code, said = call(capsys, "run", "suite.toml", "--host-root")
    assert (code, said["error"]["code"]) == (2, "PROOFBOX_USAGE")


def test_without_an_engine_there_is_the_host_s_root(
    task: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{task}/no.sock")
    code, said = call(capsys, "run", str(task), "--strategies", "oracle")
    assert (code, said["error"]["code"]) == (3, "SANDBOX_UNAVAILABLE")
    assert any("--host-root" in hint for hint in said["error"]["fix_hints"])
