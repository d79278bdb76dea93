"""The verifier sees the agent's work and nothing it planted, and writes nowhere but where it should."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from proofbox.core.redaction import Redactor
from proofbox.lab.spec import Command, Verify
from proofbox.lab.verifier import KEPT, check, lay_out
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
    put_back, left_out = lay_out(workspace, given, final, verify, files, dest)
    return dest, [*put_back, *left_out]


def test_hooks_that_were_planted_or_changed_are_put_back(workspace: Workspace, tmp_path: Path) -> None:
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


def test_only_what_is_taken_is_there(workspace: Workspace, tmp_path: Path) -> None:
    (workspace.path / "app.py").write_text("fixed")
    (workspace.path / "tests/test_app.py").write_text("pass")
    (workspace.path / "extra").write_text("x")
    dest, left_out = laid_out(workspace, tmp_path, Verify(take=("app.py",)))
    assert (dest / "app.py").read_text() == "fixed"
    assert (dest / "tests/test_app.py").read_text() == "assert False"
    assert sorted(left_out) == ["extra", "tests/test_app.py"]


def test_files_the_agent_never_saw_lie_over_everything(workspace: Workspace, tmp_path: Path) -> None:
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


def checked(tmp_path: Path, *commands: str | Command, timeout: float = 30.0) -> tuple[bool | None, list[str]]:
    project = tmp_path / "project"
    project.mkdir()
    with Sandboxes(project) as boxes:
        found = check(boxes, Verify(commands=commands, timeout=timeout), Redactor(), provider="off", policy={})
    return found.passed, [run.why for run in found.commands]


def test_no_command_is_no_verdict(tmp_path: Path) -> None:
    assert checked(tmp_path) == (None, [])


def test_all_must_pass_and_the_first_that_does_not_ends_it(tmp_path: Path) -> None:
    passed, why = checked(tmp_path, "true", "exit 3", "true")
    assert passed is False
    assert why == ["", "it exited 3, and 0 is expected"]


def test_ending_early_is_not_passing(tmp_path: Path) -> None:
    passed, why = checked(tmp_path, Command(run="exit 0; echo 3 passed", stdout=r"\b3 passed"))
    assert passed is False
    assert "3 passed" in why[0]


def test_what_is_expected_passes(tmp_path: Path) -> None:
    passed, _ = checked(tmp_path, Command(run=("sh", "-c", "echo 3 passed; exit 7"), exit_code=7, stdout="^3 passed$"))
    assert passed is True


def test_a_verifier_that_hangs_has_not_passed(tmp_path: Path) -> None:
    passed, why = checked(tmp_path, "sleep 600", timeout=0.2)
    assert (passed, why) == (False, ["it timed out"])


def outputs(tmp_path: Path, line: str, redactor: Redactor | None = None) -> tuple[str, str]:
    (tmp_path / "project").mkdir()
    with Sandboxes(tmp_path / "project") as boxes:
        found = check(boxes, Verify(commands=(line,)), redactor or Redactor(), provider="off", policy={})
    return found.commands[0].stdout, found.commands[0].stderr


def test_of_a_long_output_both_ends_are_kept_and_how_much_is_between(tmp_path: Path) -> None:
    stdout, stderr = outputs(tmp_path, "seq 1 20000; seq 1 20000 >&2; echo THE REASON >&2; exit 1")
    whole = "".join(f"{n}\n" for n in range(1, 20001))
    assert stdout == f"{whole[:KEPT]}\n[proofbox: {len(whole) - 2 * KEPT} bytes left out]\n{whole[-KEPT:]}"
    assert stderr.startswith("1\n2\n")
    assert stderr.endswith("20000\nTHE REASON\n")


def test_an_output_that_fits_is_whole_and_no_end_shows_a_secret(tmp_path: Path) -> None:
    secret = "correct-horse-battery"
    assert outputs(tmp_path, "seq 1 5000", Redactor([secret]))[0] == "".join(f"{n}\n" for n in range(1, 5001))
    (tmp_path / "project").rmdir()
    line = f"head -c {KEPT - 5} /dev/zero | tr '\\0' x; echo {secret}; seq 1 20000; printf '\\377\\377'; echo {secret}"
    stdout, _ = outputs(tmp_path, line, Redactor([secret]))
    assert "correct" not in stdout
    assert "battery" not in stdout
    assert stdout.endswith("20000\n\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[redacted]\n")
