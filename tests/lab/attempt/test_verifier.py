"""The verifier sees the agent's work but nothing that it planted, and writes only where it should."""

from __future__ import annotations

import os
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proofbox.config.settings import Settings
from proofbox.core.redaction.redactor import Redactor
from proofbox.lab.attempt.runner_files import unprotected
from proofbox.lab.attempt.verifier import KEPT, check, lay_out
from proofbox.lab.suite.spec import Verify, VerifyCommand
from proofbox.sandbox.service import Sandboxes
from proofbox.workspace.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    root = tmp_path / "ws"
    (root / "tests").mkdir(parents=True)
    (root / "app.py").write_text("broken")
    (root / "tests/test_app.py").write_text("assert False")
    (root / "tests/conftest.py").write_text("# ours")
    with Workspace.init(root) as opened:
        opened.snapshot("given")
        yield opened


def laid_out(workspace: Workspace, tmp_path: Path, verify: Verify, files: Path | None = None) -> tuple[Path, list[str]]:
    given = workspace.history()[0].id
    final = workspace.snapshot("final", sealed=True).id
    dest = tmp_path / "verified"
    with lay_out(workspace, given, final, verify, files, dest) as (put_back, left_out):
        pass
    return dest, [*put_back, *left_out]


def test_planted_or_changed_hooks_are_restored(workspace: Workspace, tmp_path: Path) -> None:
    (workspace.path / "app.py").write_text("fixed")
    (workspace.path / "tests/conftest.py").write_text("evil")
    (workspace.path / "sitecustomize.py").write_text("evil")
    (workspace.path / "deep/er").mkdir(parents=True)
    (workspace.path / "deep/er/conftest.py").write_text("evil")
    dest, put_back = laid_out(workspace, tmp_path, Verify())
    assert sorted(put_back) == ["deep/er/conftest.py", "sitecustomize.py", "tests/conftest.py"]
    assert (dest / "tests/conftest.py").read_text() == "# ours"
    assert not (dest / "sitecustomize.py").exists()
    assert not (dest / "deep/er/conftest.py").exists()
    assert (dest / "app.py").read_text() == "fixed"


def test_only_taken_paths_are_kept(workspace: Workspace, tmp_path: Path) -> None:
    (workspace.path / "app.py").write_text("fixed")
    (workspace.path / "tests/test_app.py").write_text("pass")
    (workspace.path / "extra").write_text("x")
    dest, left_out = laid_out(workspace, tmp_path, Verify(take=("app.py",)))
    assert (dest / "app.py").read_text() == "fixed"
    assert (dest / "tests/test_app.py").read_text() == "assert False"
    assert sorted(left_out) == ["extra", "tests/test_app.py"]


def test_hidden_files_overwrite_everything(workspace: Workspace, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    (hidden / "tests").mkdir(parents=True)
    (hidden / "tests/test_app.py").write_text("the real one")
    (workspace.path / "tests/test_app.py").unlink()
    (workspace.path / "tests/test_app.py").mkdir()
    (workspace.path / "tests/test_app.py/x").write_text("in the way")
    dest, _ = laid_out(workspace, tmp_path, Verify(), hidden)
    assert (dest / "tests/test_app.py").read_text() == "the real one"


def test_no_link_leads_the_verifier_outside(workspace: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "test_app.py").write_text("untouched")
    for name in ("tests/test_app.py", "tests/conftest.py"):
        (workspace.path / name).unlink()
    (workspace.path / "tests").rmdir()
    (workspace.path / "tests").symlink_to(outside)
    hidden = tmp_path / "hidden"
    (hidden / "tests/sub").mkdir(parents=True)
    (hidden / "tests/test_app.py").write_text("the real one")
    (hidden / "tests/sub/more.py").write_text("more")
    dest, _ = laid_out(workspace, tmp_path, Verify(), hidden)
    assert (outside / "test_app.py").read_text() == "untouched"
    assert sorted(os.listdir(outside)) == ["sub", "test_app.py"]
    assert os.listdir(outside / "sub") == []
    assert (dest / "tests/test_app.py").read_text() == "the real one"
    assert (dest / "tests/conftest.py").read_text() == "# ours"


def checked(tmp_path: Path, *commands: str | VerifyCommand, timeout: float = 30.0) -> tuple[bool | None, list[str]]:
    project = tmp_path / "project"
    project.mkdir()
    with Sandboxes(project) as boxes:
        found = check(boxes, Verify(commands=commands, timeout=timeout), Redactor(), provider="off", policy={})
    return found.passed, [run.why for run in found.commands]


def test_mission_without_commands_has_no_verdict(tmp_path: Path) -> None:
    assert checked(tmp_path) == (None, [])


def test_first_failing_command_ends_verification(tmp_path: Path) -> None:
    passed, why = checked(tmp_path, "true", "exit 3", "true")
    assert passed is False
    assert why == ["", "it exited 3, expected 0"]


def test_ending_early_is_not_passing(tmp_path: Path) -> None:
    passed, why = checked(tmp_path, VerifyCommand(run="exit 0; echo 3 passed", stdout=r"\b3 passed"))
    assert passed is False
    assert "3 passed" in why[0]


def test_expected_exit_code_and_output_pass(tmp_path: Path) -> None:
    passed, _ = checked(
        tmp_path, VerifyCommand(run=("sh", "-c", "echo 3 passed; exit 7"), exit_code=7, stdout="^3 passed$")
    )
    assert passed is True


def test_hanging_verifier_does_not_pass(tmp_path: Path) -> None:
    passed, why = checked(tmp_path, "sleep 600", timeout=0.2)
    assert (passed, why) == (False, ["it timed out"])


def outputs(tmp_path: Path, line: str, redactor: Redactor | None = None) -> tuple[str, str]:
    (tmp_path / "project").mkdir()
    with Sandboxes(tmp_path / "project") as boxes:
        found = check(boxes, Verify(commands=(line,)), redactor or Redactor(), provider="off", policy={})
    return found.commands[0].stdout, found.commands[0].stderr


def test_long_output_keeps_both_ends_and_the_omitted_size(tmp_path: Path) -> None:
    stdout, stderr = outputs(tmp_path, "seq 1 20000; seq 1 20000 >&2; echo THE REASON >&2; exit 1")
    whole = "".join(f"{n}\n" for n in range(1, 20001))
    assert stdout == f"{whole[:KEPT]}\n[proofbox: {len(whole) - 2 * KEPT} bytes left out]\n{whole[-KEPT:]}"
    assert stderr.startswith("1\n2\n")
    assert stderr.endswith("20000\nTHE REASON\n")


def test_short_output_is_complete_and_cut_output_shows_no_secret(tmp_path: Path) -> None:
    secret = "correct-horse-battery"
    assert outputs(tmp_path, "seq 1 5000", Redactor([secret]))[0] == "".join(f"{n}\n" for n in range(1, 5001))
    (tmp_path / "project").rmdir()
    line = f"head -c {KEPT - 5} /dev/zero | tr '\\0' x; echo {secret}; seq 1 20000; printf '\\377\\377'; echo {secret}"
    stdout, _ = outputs(tmp_path, line, Redactor([secret]))
    assert "correct" not in stdout
    assert "battery" not in stdout
    assert stdout.endswith("20000\n\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[redacted]\n")


@pytest.mark.parametrize(
    ("command", "planted"),
    [
        ("python3 -m unittest", ["unittest/__init__.py", "argparse.py", "signal.cpython-311-x86_64-linux-gnu.so"]),
        ("python3 -m pytest -q", ["pytest.py", "_pytest/__init__.py", "pyproject.toml", "sub/pyproject.toml"]),
        ("pytest", ["pyproject.toml", ".pytest.ini"]),
        ("python3 tests/check.py", ["tests/json.py", "tests/subprocess/__init__.py"]),
        ("npm test", ["package.json", ".npmrc", "jest.config.js"]),
        ("make -s test", ["Makefile", "GNUmakefile"]),
        ("cargo test", [".cargo/config.toml", "build.rs"]),
    ],
)
def test_files_loaded_by_known_runners_are_restored(
    workspace: Workspace, tmp_path: Path, command: str, planted: list[str]
) -> None:
    harmless = ["app.py", "json/data.txt", "html/index.html", "lib/calendar.py", "code"]
    for name in (*planted, *harmless):
        (workspace.path / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace.path / name).write_text("planted")
    dest, put_back = laid_out(workspace, tmp_path, Verify(commands=(command,)))
    assert sorted(put_back) == sorted(planted)
    assert [name for name in harmless if not (dest / name).exists()] == []


def test_link_that_shadows_a_runner_package_is_removed(workspace: Workspace, tmp_path: Path) -> None:
    (workspace.path / "evil").mkdir()
    (workspace.path / "evil/__init__.py").write_text("planted")
    (workspace.path / "unittest").symlink_to("evil")
    dest, put_back = laid_out(workspace, tmp_path, Verify(commands=("python3 -m unittest",)))
    assert put_back == ["unittest"]
    assert not (dest / "unittest").is_symlink()


def test_agent_files_cannot_shadow_hidden_files(workspace: Workspace, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    (hidden / "tests").mkdir(parents=True)
    (hidden / "tests/test_app.py").write_text("the real one")
    planted = ["tests/test_app/__init__.py", "tests/test_app.cpython-311-x86_64-linux-gnu.so"]
    compiled = ["tests/__pycache__/test_app.cpython-311.pyc", "app.pyc"]
    for name in (*planted, *compiled):
        (workspace.path / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace.path / name).write_text("planted")
    dest, put_back = laid_out(workspace, tmp_path, Verify(), hidden)
    assert sorted(put_back) == sorted(planted)  # compiled files are restored without being reported
    assert [name for name in (*planted, *compiled) if (dest / name).exists()] == []


@pytest.mark.parametrize("how", ["package", "link", "compiled"])
def test_a_planted_runner_does_not_pass_a_wrong_solution(workspace: Workspace, tmp_path: Path, how: str) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "test_it.py").write_text("import unittest\nclass T(unittest.TestCase):\n def test(self): self.fail()\n")
    evil = "import os; os._exit(0)"
    if how == "compiled":
        source = tmp_path / "evil.py"
        source.write_text(evil)
        name = f"__pycache__/test_it.{sys.implementation.cache_tag}.pyc"
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(source), str(workspace.path / name), invalidation_mode=unchecked)
    else:
        name = "evil" if how == "link" else "unittest"
        (workspace.path / name).mkdir()
        (workspace.path / name / "__init__.py").write_text(evil)
    if how == "link":
        (workspace.path / "unittest").symlink_to("evil")
    verify = Verify(commands=(f"{sys.executable} -m unittest test_it",))
    dest, _ = laid_out(workspace, tmp_path, verify, hidden)
    with Sandboxes(dest, settings=Settings()) as boxes:
        found = check(boxes, verify, Redactor(), provider="off", policy={})
    assert found.passed is False


def test_lint_warns_about_verifier_files_that_the_agent_can_change() -> None:
    verify = Verify(
        commands=("./run.sh", "sh tests/check.sh", "go test ./...", "pytest"),
        protect=("**/conftest.py",),
        env={"PATH": "/usr/bin:bin"},
    )
    found = "\n".join(unprotected(verify, ["tests/check.sh"]))
    for word in ("run.sh is run by the verifier", "TestMain", "pyproject.toml", "verify.env.PATH"):
        assert word in found
    assert "check.sh" not in found
    assert not list(unprotected(Verify(commands=("grep -qx 42 answer.txt", "python3 -m unittest")), []))
