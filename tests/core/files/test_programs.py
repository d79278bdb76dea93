"""Programs for the host are found by absolute entries of PATH, and recognized behind links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proofbox.core.files.programs import find_program, is_inside


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_relative_entries_of_path_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program(tmp_path / "tool")
    program(tmp_path / "bin/tool")
    real = program(tmp_path / "usr/tool")
    for first in ("", ".", "bin", "./bin", "../" + tmp_path.name):
        assert find_program("tool", f"{first}:{real.parent}") == str(real)
        assert find_program("tool", first) is None
        monkeypatch.setenv("PATH", first)
        assert find_program("tool") is None


def test_directories_and_files_that_cannot_be_run_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "one/tool").mkdir(parents=True)
    (tmp_path / "two").mkdir()
    (tmp_path / "two/tool").write_text("text")
    real = program(tmp_path / "three/tool")
    path = os.pathsep.join(str(tmp_path / name) for name in ("one", "two", "absent", "three"))
    assert find_program("tool", path) == str(real)


def test_program_behind_any_link_through_a_directory_is_inside_it(tmp_path: Path) -> None:
    theirs, outside = tmp_path / "theirs", tmp_path / "outside"
    planted, real = program(theirs / "bin/tool"), program(outside / "tool")
    (outside / "to-file").symlink_to(planted)
    (outside / "to-folder").symlink_to(planted.parent)
    (theirs / "back").symlink_to(real)
    for path in (planted, outside / "to-file", outside / "to-folder/tool", theirs / "back", outside / "absent"):
        assert is_inside(str(path), [theirs])
    assert not is_inside(str(real), [theirs])
    assert not is_inside(str(planted), [])
