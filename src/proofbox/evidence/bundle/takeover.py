"""Going on with a bundle whose writer died, and seeing that somebody else went on with ours.

What is there stays and is covered as it is found. A writer may be taken for dead and live on: the status names who
writes the bundle now, and whoever it does not name has lost it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from proofbox.errors import BundleCorrupt, BundleExists, BundleInProgress
from proofbox.evidence.bundle.paths import INDEX, MAX_STATUS_BYTES, STATUS, above, read_bounded, tidy
from proofbox.evidence.bundle.status import RunStatus, parse_status
from proofbox.evidence.documents.shape import ShapeError

UNFINISHED = "unfinished"
"""Where a bundle that was taken over has what its first writer did not live to stand by."""


def last_status(directory: Path, run_id: str) -> RunStatus | None:
    """What its writer said last. None: it died before it said anything, and what it left of that is gone now."""
    try:
        return parse_status(read_bounded(directory / STATUS, MAX_STATUS_BYTES))
    except FileNotFoundError:
        _clear_unborn(directory, run_id)
        return None
    except (OSError, ShapeError) as error:
        raise BundleCorrupt(f"{run_id} has no status to go on from: {error}", op="bundle open") from error


def require_left(directory: Path, before: RunStatus, *, abandoned: bool) -> None:
    """A bundle that is committed, or not `abandoned` by its writer, is nobody's to take."""
    if (directory / INDEX).exists() or not abandoned:
        raise BundleInProgress(
            f"{before.run_id} is committed, or its writer still lives",
            op="bundle open",
            fix_hints=["wait until its writer has died: it can be taken over then"],
        )


def continued(before: RunStatus, taker: RunStatus) -> RunStatus:
    """The status of who goes on: begun when the first writer began, with all that either said of it."""
    return replace(
        taker,
        run_id=before.run_id,
        started_at=before.started_at,
        expected=tuple(dict.fromkeys((*before.expected, *taker.expected))),
        dry=taker.dry or before.dry,  # a rehearsal does not become the real thing by a second writer
        partial_reasons=before.partial_reasons,
    )


def set_aside(directory: Path, paths: Iterable[str]) -> None:
    """Keep what is there of `paths` below `unfinished/`: words that nobody stands by any more."""
    for path in paths:
        if os.path.lexists(directory / path):
            target = directory / UNFINISHED / path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(directory / path, target)


def left_behind(directory: Path) -> set[str]:
    """The files that its writer left, but for those of nested bundles, each of which is to be taken over by itself."""
    own, interrupted = tidy(directory).split()
    torn = {os.path.dirname(index) for index in interrupted}
    return {path for path in own - {STATUS} if torn.isdisjoint(above(path))}


def require_ours(directory: Path, mine: RunStatus, op: str) -> None:
    """What another writer has committed, or taken over, is not ours any more."""
    if os.path.lexists(directory / INDEX):
        raise BundleExists(
            f"{mine.run_id} is committed already",
            op=op,
            fix_hints=["look at what another writer has committed: an index is never written over"],
        )
    try:
        stated = parse_status(read_bounded(directory / STATUS, MAX_STATUS_BYTES))
    except (OSError, ShapeError):
        return  # it is about to be written anew
    if stated.writer != mine.writer:
        raise BundleExists(
            f"{mine.run_id} was taken over by another writer: process {stated.writer['pid']}",
            op=op,
            fix_hints=["leave the bundle to it"],
        )


def _clear_unborn(directory: Path, run_id: str) -> None:
    """Who dies before there is a status leaves an empty directory, or a document on its way to its name."""
    try:
        tidy(directory)
        os.rmdir(directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise BundleCorrupt(f"{run_id} has files and no status: {error}", op="bundle open") from error
