"""The mount table as boxes are checked against it: always the current one."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from pathlib import Path

import pytest

from proofbox.sandbox.host.mounts import mount_points_below
from proofbox.workspace.scanning.stack import enter_private_mounts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


def _sees_changes(place: Path) -> None:
    enter_private_mounts()
    for name in ("one", "two"):
        (place / "above" / name).mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", str(place / "above" / name)], check=True)
        assert str(place / "above" / name) in mount_points_below(str(place))
    subprocess.run(["umount", str(place / "above/one")], check=True)
    assert mount_points_below(str(place)) == [str(place / "above/two")]
    (place / "above").rename(place / "renamed")  # the kernel reports no change of the table
    assert mount_points_below(str(place)) == [str(place / "renamed/two")]


def test_mounts_made_removed_and_renamed_are_seen(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_sees_changes, args=(tmp_path.resolve(),))
    process.start()
    process.join()
    assert process.exitcode == 0, "its traceback is above"
