"""List the runs of an output directory from their documents, without verification."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from proofbox.errors import BundleNotFound
from proofbox.evidence.bundle.identity import is_alive
from proofbox.evidence.bundle.index import Index, parse_index
from proofbox.evidence.bundle.paths import (
    INDEX,
    LATEST,
    MAX_INDEX_BYTES,
    MAX_STATUS_BYTES,
    STATUS,
    list_runs,
    read_bounded,
    read_latest,
    shown,
)
from proofbox.evidence.bundle.status import RunStatus, parse_status
from proofbox.evidence.documents.shape import ShapeError


class ListedRun(NamedTuple):
    """A run of an output directory, as its documents describe it."""

    run_id: str
    path: str
    state: str
    """in_progress, complete, failed, interrupted (in progress, but its writer is dead) or unreadable."""
    status: str | None
    started_at: str | None
    latest: bool
    repairs: int
    dry: bool

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


def list_bundles(out: str | os.PathLike[str]) -> list[ListedRun]:
    """Return every run, oldest first."""
    place = os.fspath(out)
    if not os.path.isdir(place):
        hints = ["name the directory of your runs: proofbox bundle list DIR"]
        raise BundleNotFound(f"there is no directory {shown(place)}", op="bundle list", fix_hints=hints)
    found = [describe(os.path.join(place, name)) for name in list_runs(place)]
    return sorted(found, key=lambda run: (run.started_at or "", run.run_id))


def describe(directory: str) -> ListedRun:
    status, index = _status(directory), _index(directory)
    out, name = os.path.split(os.path.abspath(directory))
    try:
        latest = os.path.lexists(os.path.join(out, LATEST)) and read_latest(out) == name
    except BundleNotFound:
        latest = False
    return ListedRun(
        run_id=status.run_id if status else name,
        path=shown(directory),
        state=_state(status, index),
        status=index.status if index else None,
        started_at=status.started_at if status else None,
        latest=latest,
        repairs=index.repairs if index else 0,
        dry=status.dry if status else False,
    )


def notes_on_latest(requested: str | os.PathLike[str], directory: str | os.PathLike[str]) -> list[str]:
    """Return notes for a user who named an output directory: which run LATEST names, and which are newer."""
    if os.path.realpath(directory) == os.path.realpath(requested):
        return []
    out, chosen = os.path.split(os.path.realpath(directory))
    notes, statuses = [f"LATEST names {chosen}"], {}
    for run in list_runs(out):
        status = _status(os.path.join(out, run))
        if status is None:
            notes.append(f"{run} has no readable status")
        else:
            statuses[run] = status
    if chosen in statuses:
        for run, status in statuses.items():
            if status.started_at > statuses[chosen].started_at and (status.state != "complete" or status.dry):
                how = "dry" if status.state == "complete" else status.state
                notes.append(f"the newer run {run} is {how}")
    return notes


def _state(status: RunStatus | None, index: Index | None) -> str:
    if status is None:
        return "unreadable"
    if index is not None:
        return status.state
    return "interrupted" if is_alive(status.writer) is False else "in_progress"


def _status(directory: str) -> RunStatus | None:
    try:
        return parse_status(read_bounded(os.path.join(directory, STATUS), MAX_STATUS_BYTES))
    except (OSError, ShapeError):
        return None


def _index(directory: str) -> Index | None:
    try:
        return parse_index(read_bounded(os.path.join(directory, INDEX), MAX_INDEX_BYTES))
    except (OSError, ShapeError):
        return None
