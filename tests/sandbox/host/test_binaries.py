"""Programs are found on PATH like a shell finds them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from proofbox.sandbox.host.binaries import find_program


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH on which the third directory is the first with a `tool` that can be executed."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/tool").touch(mode=0o644)
    (tmp_path / "folder/tool").mkdir(parents=True)
    for name in ("real", "later"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tool").touch(mode=0o755)
    return os.pathsep.join(str(tmp_path / name) for name in ("absent", "plain", "folder", "real", "later"))


def test_first_executable_file_is_found(path: str, tmp_path: Path) -> None:
    assert find_program("tool", path) == str(tmp_path / "real/tool") == shutil.which("tool", path=path)


def test_path_of_the_environment_is_the_default(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", path)
    assert find_program("tool") == str(tmp_path / "real/tool")


@pytest.mark.parametrize("name", ["", "other", "tool\0", "plain/tool", "no/tool"])
def test_missing_program_is_not_found(name: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_program(name, path) is None


def test_empty_path_has_no_programs(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path / "real")
    assert find_program("tool", "") is None


def test_name_with_a_directory_is_not_looked_up(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_program("real/tool", "") == "real/tool"
