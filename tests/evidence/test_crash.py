"""Killed at any instant, a run leaves a bundle in progress or a committed one, and every line it was promised."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import drivers
import pytest
from drivers import drive


@pytest.mark.timeout(300)
def test_killed_at_any_point(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    count, seed = rounds(60, 500), random.randrange(1 << 30)
    said = drive("kill", tmp_path, count, seed)
    assert not said["wrong"], f"seed {seed}: {said['wrong']}"
    # A test that never reached one of the states would prove nothing.
    assert min(said["seen"].values()) > 0, said


@pytest.mark.timeout(300)
def test_a_reader_in_the_middle_sees_no_third_state(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    count = rounds(60, 2000)
    said = drive("read_while_writing", tmp_path, count)
    assert said["wrong"] == []
    assert said["runs"] == count
    assert said["seen"]["in_progress"] > 0


CALL = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(\w+)\((.*)\) += (-?\d+|\?)(.*)$")
PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')
OF_DESCRIPTOR = re.compile(r"(?:AT_FDCWD|\d+)<([^>]*)>")


class Disk:
    """What a power cut would leave: which files have bytes, and which directories names, that were never synced."""

    def __init__(self) -> None:
        self.dirty_files: set[str] = set()
        self.dirty_directories: set[str] = set()

    def happened(self, name: str, arguments: str, result: str) -> tuple[str, str] | None:
        """Take note of one call; the two names of a rename."""
        if result.startswith("-"):
            return None
        bases, names = OF_DESCRIPTOR.findall(arguments), PATH.findall(arguments)
        if name in ("write", "pwrite64", "ftruncate"):
            self.dirty_files.add(bases[0])
        elif name in ("fsync", "fdatasync"):
            self.dirty_files.discard(bases[0])
            self.dirty_directories.discard(bases[0])
        elif "O_CREAT" in arguments or name in ("mkdir", "mkdirat", "unlink", "unlinkat"):
            self.named(self.full(bases, names, 0))
        elif name in ("rename", "renameat", "renameat2"):
            old, new = self.full(bases, names, 0), self.full(bases, names, 1)
            self.named(old)
            self.named(new)
            self.dirty_files.discard(new)  # what was there is gone
            for pool in (self.dirty_files, self.dirty_directories):
                for path in [path for path in pool if path == old or path.startswith(old + "/")]:
                    pool.remove(path)
                    pool.add(new + path[len(old) :])
            return old, new
        return None

    def full(self, bases: list[str], names: list[str], which: int) -> str:
        base = bases[which] if which < len(bases) else ""
        return names[which] if names[which].startswith("/") else f"{base}/{names[which]}"

    def named(self, path: str) -> None:
        self.dirty_directories.add(path.rpartition("/")[0])


@pytest.mark.needs("strace")
def test_the_order_of_system_calls_survives_a_power_cut(tmp_path: Path) -> None:
    """A kill leaves the page cache alone and proves nothing about a power cut. The recorded calls do.

    When the index takes its name, everything it lists is on the disk; when LATEST does, the index is.
    """
    traced = (
        "openat,open,write,pwrite64,ftruncate,fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat,unlink,unlinkat"
    )
    argv = ["strace", "-f", "-y", "-s", "400", "-e", f"trace={traced}", "-o", str(tmp_path / "calls")]
    argv += [sys.executable, drivers.__file__, "write_one", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    out = f"{tmp_path}/out"
    disk = Disk()
    committed: list[str] = []
    for line in _joined((tmp_path / "calls").read_text().splitlines()):
        match = CALL.match(line)
        if not match or out not in line:
            continue
        name, arguments, result = match[1], match[2], match[3]
        before_files = {path for path in disk.dirty_files if path.startswith(out)}
        before_directories = {path for path in disk.dirty_directories if path.startswith(out)}
        moved = disk.happened(name, arguments, result)
        if moved is None or not moved[1].endswith(("artifact_index.json", "LATEST")):
            continue
        old, new = moved
        committed.append(new)
        home = new.rpartition("/")[0]
        scope = out if new.endswith("LATEST") else home
        ignored = {f"{out}/.runtime.lock"}  # says who is there, and means nothing after a power cut
        assert not {path for path in before_files if path.startswith(scope)} - ignored, (new, before_files)
        # The name of the temporary itself is not on the disk yet, and need not be: the rename's sync comes next.
        assert {path for path in before_directories if path.startswith(scope)} <= {home}, (new, before_directories)
        assert old.rpartition("/")[0] == home
    assert [path.rpartition("/")[2] for path in committed] == ["artifact_index.json", "artifact_index.json", "LATEST"]
    assert not {path for path in disk.dirty_directories if path.startswith(out)}


def _joined(lines: list[str]) -> list[str]:
    """Calls that another thread interrupted, put together again where they ended."""
    begun: dict[str, str] = {}
    whole = []
    for line in lines:
        pid = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[pid] = line.removesuffix(" <unfinished ...>")
        elif match := re.match(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$", line):
            whole.append(begun.pop(match[1], "") + match[2])
        else:
            whole.append(line)
    return whole
