"""Take over a bundle whose writer died, and detect that another writer took over this one.

Existing files are kept and indexed as they are. A writer that was declared dead may still be running: the status names
the current writer, and any other writer has lost the bundle.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from proofbox.errors import BundleCorrupt, BundleExists, BundleInProgress
from proofbox.evidence.bundle.paths import INDEX, MAX_STATUS_BYTES, STATUS, above, read_bounded, tidy
from proofbox.evidence.bundle.status import RunStatus, parse_status
from proofbox.evidence.documents.shape import ShapeError

UNFINISHED = "unfinished"
"""The directory for unfinished artifacts of the dead writer."""


def last_status(directory: Path, run_id: str) -> RunStatus | None:
    """Return the writer's last status. If it died before writing one, remove its leftovers and return None."""
    try:
        return parse_status(read_bounded(directory / STATUS, MAX_STATUS_BYTES))
    except FileNotFoundError:
        _remove_uncreated(directory, run_id)
        return None
    except (OSError, ShapeError) as error:
        raise BundleCorrupt(f"the status of {run_id} can't be read: {error}", op="bundle open") from error


def require_left(directory: Path, before: RunStatus, *, abandoned: bool) -> None:
    """Raise BundleInProgress unless the bundle is uncommitted and `abandoned` by its writer."""
    if (directory / INDEX).exists() or not abandoned:
        raise BundleInProgress(
            f"{before.run_id} is committed, or its writer is still alive",
            op="bundle open",
            fix_hints=["wait until its writer has exited, then take it over"],
        )


def continued(before: RunStatus, taker: RunStatus) -> RunStatus:
    """Return the new writer's status, with the original start time and the settings of both writers combined."""
    return taker._replace(
        run_id=before.run_id,
        started_at=before.started_at,
        expected=tuple(dict.fromkeys((*before.expected, *taker.expected))),
        dry=taker.dry or before.dry,  # a second writer does not turn a dry run into a real one
        partial_reasons=before.partial_reasons,
    )


def set_aside(directory: Path, paths: Iterable[str]) -> None:
    """Move existing files of `paths` below `unfinished/`, because their writer never finished them."""
    for path in paths:
        if os.path.lexists(directory / path):
            target = directory / UNFINISHED / path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(directory / path, target)


def left_behind(directory: Path) -> set[str]:
    """Return the files of the dead writer, except those of nested bundles, which are taken over separately."""
    own, interrupted = tidy(directory).split()
    torn = {os.path.dirname(index) for index in interrupted}
    return {path for path in own - {STATUS} if torn.isdisjoint(above(path))}


def require_ours(directory: Path, mine: RunStatus, op: str) -> None:
    """Raise BundleExists if another writer has committed or taken over the bundle."""
    if os.path.lexists(directory / INDEX):
        raise BundleExists(
            f"{mine.run_id} is already committed",
            op=op,
            fix_hints=["check the bundle that another writer committed: an index is never overwritten"],
        )
    try:
        stated = parse_status(read_bounded(directory / STATUS, MAX_STATUS_BYTES))
    except (OSError, ShapeError):
        return  # the commit rewrites it
    if stated.writer != mine.writer:
        raise BundleExists(
            f"{mine.run_id} was taken over by another writer: process {stated.writer['pid']}",
            op=op,
            fix_hints=["leave the bundle to that process"],
        )


def _remove_uncreated(directory: Path, run_id: str) -> None:
    """Remove the leftovers of a writer that died before its first status: a directory, maybe a temporary file."""
    try:
        tidy(directory)
        os.rmdir(directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise BundleCorrupt(f"{run_id} has files but no status: {error}", op="bundle open") from error
