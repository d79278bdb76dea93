"""Create a bundle's directory. A new directory becomes visible only together with its status."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from proofbox.core.files.atomic import TEMPORARY_PREFIX, sweep_temporaries, sync_directory, write_document
from proofbox.errors import BundleExists, BundlePathRefused
from proofbox.evidence.bundle.paths import LATEST, RUN_ID, STATUS, shown
from proofbox.evidence.bundle.status import RunStatus


def checked_run_id(run_id: str) -> str:
    """Return `run_id` if it is a valid run id; otherwise raise BundlePathRefused."""
    if type(run_id) is not str or not RUN_ID.fullmatch(run_id) or run_id == LATEST:
        raise BundlePathRefused(
            f"not a run id: {str(run_id)[:200]!r}",
            op="bundle open",
            fix_hints=["use at most 128 letters, digits, dots, hyphens and underscores, or omit the run id"],
        )
    return run_id


def create_run(out: str, status: RunStatus) -> None:
    """Create a run under a temporary name until its status is written. The caller holds the lock of `out`."""
    directory = Path(out) / status.run_id
    if os.path.lexists(directory):
        raise _taken(directory)
    sweep_temporaries(out)
    for name in os.listdir(out):
        if name.startswith(TEMPORARY_PREFIX):  # a directory of a dead process, since this one holds the lock
            shutil.rmtree(os.path.join(out, name))
    temporary = os.path.join(out, f"{TEMPORARY_PREFIX}{status.run_id}")
    os.mkdir(temporary)
    write_document(os.path.join(temporary, STATUS), status.to_bytes())
    os.rename(temporary, directory)
    sync_directory(out)


def create_nested(directory: Path, status: RunStatus) -> None:
    """Create a nested bundle in place: it is in progress as long as the outer bundle is."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.mkdir()
    except FileExistsError:
        raise _taken(directory) from None
    write_document(directory / STATUS, status.to_bytes(), sync=False)  # the commit rewrites and syncs it


def _taken(directory: Path) -> BundleExists:
    return BundleExists(
        f"{shown(os.fspath(directory))} already exists",
        op="bundle open",
        fix_hints=["omit run_id: each run then gets a new id"],
    )
