"""Programs for the host are found by absolute entries of PATH, and recognized behind links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proofbox.core.files import programs
from proofbox.core.files.programs import distrust, find_program, is_inside, locate_program, trusted_path
from proofbox.errors import PathRefused


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_relative_entries_of_path_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    program(tmp_path / "here/tool")
    program(tmp_path / "here/bin/tool")
    real = program(tmp_path / "usr/tool")
    for first in ("", ".", "bin", "./bin", "../here"):
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


def test_program_that_a_box_or_the_current_directory_provides_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_distrusted", set())
    project, here, real = tmp_path / "project", tmp_path / "here", program(tmp_path / "usr/tool")
    places = (program(project / "bin/tool").parent, program(here / "tool").parent)
    monkeypatch.chdir(here)
    distrust([project])
    for place in places:
        path = f"{place}:{real.parent}"
        monkeypatch.setenv("PATH", path)
        with pytest.raises(PathRefused, match="on PATH"):
            find_program("tool")
        assert locate_program("tool") == str(place / "tool")
        assert trusted_path() == str(real.parent)
    assert find_program("tool", str(real.parent)) == str(real)


def test_program_below_a_current_directory_that_contains_the_home_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    real = program(tmp_path / "home/bin/tool")
    for here in (tmp_path, tmp_path / "home", Path("/")):
        monkeypatch.chdir(here)
        assert find_program("tool", str(real.parent)) == str(real)


def test_removed_program_is_searched_again(tmp_path: Path) -> None:
    first, second = program(tmp_path / "one/tool"), program(tmp_path / "two/tool")
    path = f"{first.parent}:{second.parent}"
    assert find_program("tool", path) == str(first)
    first.unlink()
    assert find_program("tool", path) == str(second)
