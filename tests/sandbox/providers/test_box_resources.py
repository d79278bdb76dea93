"""Limits on inotify, and shared memory, in boxes that root starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofbox import Sandboxes

PYTHON = "/usr/bin/python3"  # the only python3 that a box has
with_python = pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"no {PYTHON}")

USE_UP_INOTIFY = """
import ctypes
held = 0
while ctypes.CDLL(None).inotify_init() >= 0:
    held += 1
print(held)
"""


@with_python
@pytest.mark.needs("bubblewrap", "root")
def test_box_cannot_exhaust_inotify_instances_of_root(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/user/max_inotify_instances").read_text())
    with Sandboxes(tmp_path) as boxes:
        done = boxes.exec([PYTHON, "-I", "-c", USE_UP_INOTIFY], provider="bubblewrap")
    assert done.exit_code == 0, done.stderr
    assert 0 < int(done.stdout) <= limit // 4


@pytest.mark.needs("bubblewrap", "root")
def test_box_cannot_exhaust_inotify_watches_of_root(tmp_path: Path) -> None:
    place = "/proc/sys/user/max_inotify_watches"
    with Sandboxes(tmp_path) as boxes:
        done = boxes.exec(["cat", place], provider="bubblewrap")
    assert 0 < int(done.stdout) <= int(Path(place).read_text()) // 4


@with_python
@pytest.mark.needs("bubblewrap", "root")
def test_multiprocessing_works_in_a_box_started_by_root(tmp_path: Path) -> None:
    code = "import multiprocessing; multiprocessing.Lock(); print('locked')"
    with Sandboxes(tmp_path) as boxes:
        done = boxes.exec([PYTHON, "-I", "-c", code], provider="bubblewrap")
    assert (done.stdout, done.exit_code) == ("locked\n", 0), done.stderr
