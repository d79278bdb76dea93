"""Killing a process or a power failure at any point leaves the old state or the new one, and loses no snapshot."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from powercut import Disk, calls_of

from proofbox.core.dirs import state_dir


def test_killing_during_snapshot_or_rollback_loses_nothing(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    count, seed = rounds(60, 500), random.randrange(1 << 30)  # noqa: S311
    root = tmp_path / "work"
    root.mkdir()
    driver = Path(__file__).with_name("killing.py")
    done = subprocess.run(
        [sys.executable, str(driver), str(root), str(count), str(seed)], stdout=subprocess.PIPE, text=True, check=True
    )
    report = json.loads(done.stdout)
    assert not report["wrong"], f"seed {seed}: {report['wrong']}"
    assert report["snapshots"] > count // 4
    # The test would prove nothing about rollbacks if it never interrupted one.
    assert min(report["seen"].values()) > 0, report


ROLLBACK = """if True:
    import sys
    from pathlib import Path
    from proofbox import Workspace
    root = Path(sys.argv[1])
    (root / "below").mkdir()
    (root / "below/file").write_text("one")
    (root / "other").write_text("one")
    with Workspace.init(root) as ws:
        first = ws.snapshot("first")
        (root / "below/file").write_text("two, in no snapshot yet")
        (root / "other").unlink()
        ws.rollback(first.id)
"""


@pytest.mark.needs("strace")
def test_rollback_syncs_in_an_order_that_survives_power_failure(tmp_path: Path) -> None:
    """The current files are stored and the journal is synced before the first change. Every file is in place before the
    journal is removed."""
    root = tmp_path / "work"
    root.mkdir()
    disk = Disk()
    touched: list[str] = []
    began = ended = False
    state = str(state_dir() / "workspaces")
    for _, name, arguments, result in calls_of([sys.executable, "-c", ROLLBACK, str(root)], tmp_path):
        unsynced = disk.dirty_files | disk.dirty_directories
        moved = disk.happened(name, arguments, result)
        if moved and moved[1].endswith("rollback.json"):
            began = True
            store = {path for path in unsynced if "/stores/" in path and not path.endswith((".lock", ".new"))}
            assert not {path for path in store if path.rpartition("/")[2].startswith(("pack", "index"))}, store
        elif began and not ended and moved and moved[1].startswith(str(root)):
            if not touched:
                assert not {path for path in unsynced if path.startswith(f"{state}/ws-")}, unsynced
            touched.append(moved[1])
        elif began and name in ("unlink", "unlinkat") and "rollback.json" in arguments:
            ended = True
            assert not {path for path in unsynced if path.startswith(str(root))}, unsynced
    assert sorted(path.rpartition("/")[2] for path in touched) == ["file", "other"]
    assert ended
