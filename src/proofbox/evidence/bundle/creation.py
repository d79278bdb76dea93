"""How a bundle's directory comes to be: with a status in it before any reader looks, and where nothing was."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from proofbox.core.files.atomic import TEMPORARY_PREFIX, sweep_temporaries, sync_directory, write_document
from proofbox.errors import BundleExists, BundlePathRefused
from proofbox.evidence.bundle.paths import LATEST, RUN_ID, STATUS, shown
from proofbox.evidence.bundle.status import RunStatus


def checked_run_id(run_id: str) -> str:
    """`run_id` as a name the caller may give to a run, or BundlePathRefused."""
    if type(run_id) is not str or not RUN_ID.fullmatch(run_id) or run_id == LATEST:
        raise BundlePathRefused(
            f"not a run id: {str(run_id)[:200]!r}",
            op="bundle open",
            fix_hints=["use letters, digits, dots, hyphens and underscores, at most 128, or leave it out"],
        )
    return run_id


def create_run(out: str, status: RunStatus) -> None:
    """Under a name that no reader looks at, until there is a status to read. Whoever calls holds the lock of `out`."""
    directory = Path(out) / status.run_id
    if os.path.lexists(directory):
        raise _taken(directory)
    sweep_temporaries(out)
    for name in os.listdir(out):
        if name.startswith(TEMPORARY_PREFIX):  # a directory: its maker died, since we hold the lock
            shutil.rmtree(os.path.join(out, name))
    unborn = os.path.join(out, f"{TEMPORARY_PREFIX}{status.run_id}")
    os.mkdir(unborn)
    write_document(os.path.join(unborn, STATUS), status.to_bytes())
    os.rename(unborn, directory)
    sync_directory(out)


def create_nested(directory: Path, status: RunStatus) -> None:
    """In place: as long as the bundle around it is in progress, so is everything in it."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.mkdir()
    except FileExistsError:
        raise _taken(directory) from None
    write_document(directory / STATUS, status.to_bytes(), sync=False)  # the commit writes and syncs it anew


def _taken(directory: Path) -> BundleExists:
    return BundleExists(
        f"{shown(os.fspath(directory))} is already there",
        op="bundle open",
        fix_hints=["leave run_id out: a new one is made for each run"],
    )
