"""A run killed at any point leaves a bundle in progress or committed, with every acknowledged log line."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import drivers
import pytest
from drivers import drive
from powercut import Disk, calls_of


def test_killed_at_any_point(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    count, seed = rounds(60, 500), random.randrange(1 << 30)
    output = drive("kill", tmp_path, count, seed)
    assert not output["wrong"], f"seed {seed}: {output['wrong']}"
    # A test that never reached one of the states would prove nothing.
    assert min(output["seen"].values()) > 0, output


def test_concurrent_reader_sees_in_progress_or_complete(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    count = rounds(60, 2000)
    output = drive("read_while_writing", tmp_path, count)
    assert output["wrong"] == []
    assert output["runs"] == count
    assert output["seen"]["in_progress"] > 0


@pytest.mark.needs("strace")
def test_the_order_of_system_calls_survives_a_power_cut(tmp_path: Path) -> None:
    """Everything that the index lists is synced before the index is renamed, and the index before LATEST."""
    argv = [sys.executable, drivers.__file__, "write_one", str(tmp_path)]
    out = f"{tmp_path}/out"
    disk = Disk()
    committed: list[str] = []
    for line, name, arguments, result in calls_of(argv, tmp_path):
        if out not in line:
            continue
        before_files = {path for path in disk.dirty_files if path.startswith(out)}
        before_directories = {path for path in disk.dirty_directories if path.startswith(out)}
        moved = disk.happened(name, arguments, result)
        if moved is None or not moved[1].endswith(("artifact_index.json", "LATEST")):
            continue
        old, new = moved
        committed.append(new)
        home = new.rpartition("/")[0]
        scope = out if new.endswith("LATEST") else home
        ignored = {f"{out}/.runtime.lock"}  # identifies the holder, and means nothing after a power cut
        assert not {path for path in before_files if path.startswith(scope)} - ignored, (new, before_files)
        # The name of the temporary file itself is not on the disk yet, and need not be: the rename's sync comes next.
        assert {path for path in before_directories if path.startswith(scope)} <= {home}, (new, before_directories)
        assert old.rpartition("/")[0] == home
    assert [path.rpartition("/")[2] for path in committed] == ["artifact_index.json", "artifact_index.json", "LATEST"]
    assert not {path for path in disk.dirty_directories if path.startswith(out)}
