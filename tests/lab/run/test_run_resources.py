"""Disk use of an agent is counted correctly even while the agent changes files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.lab.run.resources import reason, size_of

ALL = 1 << 62
MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "free", "least"),
    [(60 * MIB, 7 * MIB, 0), (60 * MIB, 5 * MIB, 6), (1 << 40, 513 * MIB, 0), (1 << 40, 511 * MIB, 512)],
)
def test_required_free_space_depends_on_the_file_system_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, free: int, least: int
) -> None:
    """A small file system is not a shortage: 512 MiB would never be free there."""
    reported = os.statvfs_result((4096, 4096, size >> 12, free >> 12, free >> 12, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: reported)
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemAvailable: 8388608 kB\n")
    assert reason(tmp_path, meminfo) == (f"less than {least} MiB of disk space is free at {tmp_path}" if least else "")


def nested(top: Path, name: str, levels: int, size: int) -> None:
    """Create nested directories with a file in the last one."""
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    file = os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    os.write(file, bytes(size))
    os.close(file)
    os.close(fd)


@pytest.mark.parametrize(("name", "levels"), [("n" * 200, 40), ("a", 5000)])
def test_deep_trees_and_long_paths_are_counted(deep_path: Path, name: str, levels: int) -> None:
    top = deep_path / "top"
    nested(top, name, levels, 5 * MIB)
    (top / "beside").write_bytes(bytes(MIB))
    assert 6 * MIB <= size_of(top, ALL) <= 7 * MIB + levels * 8192


def while_counting(monkeypatch: pytest.MonkeyPatch, act: Callable[[str], None]) -> None:
    """Call `act` with the names in each directory right after it has been listed."""
    scandir = os.scandir

    class Listed:
        def __init__(self, fd: int) -> None:
            with scandir(fd) as found:
                self._found = sorted(found, key=lambda entry: entry.name)

        def __enter__(self) -> list[os.DirEntry[str]]:
            for entry in self._found:
                act(entry.name)
            return self._found

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", Listed)


def test_vanished_file_does_not_hide_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a-vanishes", "b", "c"):
        (tmp_path / name).write_bytes(bytes(MIB))
    while_counting(monkeypatch, lambda _: (tmp_path / "a-vanishes").unlink(missing_ok=True))
    assert 2 * MIB <= size_of(tmp_path, ALL) < 3 * MIB


def test_moved_directory_does_not_hide_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "top"
    for name in ("a/heavy", "b", "z"):
        (top / name).mkdir(parents=True)
    for name in ("a/heavy/file", "b/file", "a/file"):
        (top / name).write_bytes(bytes(MIB))
    (top / "z/leaves").mkdir()
    (top / "z/leaves/here").touch()

    def leave(name: str) -> None:
        if name == "here":
            os.rename(top / "z/leaves", tmp_path / "elsewhere")

    while_counting(monkeypatch, leave)
    assert 3 * MIB <= size_of(top, ALL) < 4 * MIB


trees = st.recursive(st.integers(0, 3), lambda below: st.lists(below, max_size=4), max_leaves=25)


@given(trees)
def test_size_is_the_sum_of_all_entries(tmp_path_factory: pytest.TempPathFactory, tree: object) -> None:
    top = tmp_path_factory.mktemp("size")
    expected = 0

    def make(place: Path, what: object) -> None:
        nonlocal expected
        if isinstance(what, list):
            place.mkdir()
            for number, each in enumerate(what):
                make(place / str(number), each)
        elif isinstance(what, int):
            place.write_bytes(bytes(what << 12))

    make(top / "tree", tree)
    for place, folders, files in os.walk(top):
        expected += sum(max(os.lstat(os.path.join(place, name)).st_blocks, 1) * 512 for name in (*folders, *files))
    assert size_of(top, ALL) == expected
    assert size_of(top, 0) <= expected
    assert size_of(top / "not there", ALL) == 0
