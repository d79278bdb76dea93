"""`schedule.jsonl` of a run: every attempt that was planned or started, chained, so that a dropped one shows.

Entries, each a line of the chain:

    {"kind": "planned",  "attempt": "att-1", "at": …, "path": "attempts/att-1", "parent": null}
    {"kind": "started",  "attempt": "att-1", "at": …}
    {"kind": "finished", "attempt": "att-1", "at": …, "index_sha256": …}
    {"kind": "closed",   "at": …, "planned": 1}

A retry is a new attempt that names its `parent`. `finished` pins the attempt's committed index; an attempt that never
got that far stays without one. `closed` is last, and says how many were planned: a schedule without it was cut short.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.documents import declare
from proofbox.errors import UsageError
from proofbox.evidence.bundle.log import BundleLog
from proofbox.evidence.bundle.paths import is_artifact_path
from proofbox.evidence.documents import shape
from proofbox.evidence.documents.shape import ShapeError

PATH = "schedule.jsonl"

_CHAIN = {
    "seq": shape.count.meaning("The line's number in the log, from 0."),
    "prev": shape.sha256.meaning("Of the line before; of the first, the chain's origin."),
}
_NAME = shape.text(200)
_AT = shape.moment.meaning("When; that of the writing, where the writer gave no other.")
_ATTEMPT = _NAME.meaning("The attempt's id.")
_KINDS = {
    "planned": shape.record(
        {
            "kind": _NAME.meaning("`planned`: there is to be such an attempt."),
            "attempt": _ATTEMPT,
            "at": _AT,
            "path": shape.text().meaning("Where its bundle is to be, relative to the run's."),
            "parent": shape.or_null(_NAME).meaning("The attempt that this one tries again; null: none."),
        },
        _CHAIN,
    ),
    "started": shape.record(
        {"kind": _NAME.meaning("`started`: the attempt was begun."), "attempt": _ATTEMPT, "at": _AT}, _CHAIN
    ),
    "finished": shape.record(
        {
            "kind": _NAME.meaning("`finished`: the attempt's bundle is committed."),
            "attempt": _ATTEMPT,
            "at": _AT,
            "index_sha256": shape.sha256.meaning("Of the file of that bundle's index."),
        },
        _CHAIN,
    ),
    "closed": shape.record(
        {
            "kind": _NAME.meaning("`closed`: no line follows."),
            "at": _AT,
            "planned": shape.count.meaning("How many attempts the lines before plan."),
        },
        _CHAIN,
    ),
}
declare(
    PATH,
    at="RUN/schedule.jsonl, one of these a line",
    meaning="Every attempt that was planned or started, so that a dropped one shows. `closed` is the last line.",
    shape={"anyOf": [{"title": kind, **check.json_schema} for kind, check in _KINDS.items()]},
)


@dataclass(frozen=True, slots=True)
class ScheduledAttempt:
    """One attempt as the schedule has it. `index_sha256` is None unless it finished with a committed bundle."""

    attempt: str
    path: str
    parent: str | None
    started: bool = False
    index_sha256: str | None = None


class ScheduleLog:
    """Writes a run's schedule into a log of its bundle: `ScheduleLog(bundle.open_log("schedule.jsonl"))`.

    `at` is when it happened, where that is not now: a schedule may be written from a ledger.
    """

    def __init__(self, log: BundleLog, clock: Clock | None = None) -> None:
        self._log = log
        self._clock: Clock = clock or SystemClock()
        self._told = _Told()

    def planned(self, attempt: str, path: str, *, parent: str | None = None, at: datetime | None = None) -> None:
        """Before it starts. `path` is where its bundle will be, relative to the run's."""
        self._add({"kind": "planned", "attempt": attempt, "path": path, "parent": parent}, at)

    def started(self, attempt: str, *, at: datetime | None = None) -> None:
        self._add({"kind": "started", "attempt": attempt}, at)

    def finished(self, attempt: str, index_sha256: str, *, at: datetime | None = None) -> None:
        """After its bundle committed, with the digest of that bundle's index file."""
        self._add({"kind": "finished", "attempt": attempt, "index_sha256": index_sha256}, at)

    def close(self) -> None:
        """The schedule is complete, whatever became of its attempts."""
        if not self._told.closed:
            self._add({"kind": "closed", "planned": len(self._told.attempts)}, None)
            self._log.flush()

    def _add(self, entry: dict[str, Any], at: datetime | None) -> None:
        entry["at"] = isoformat(at or self._clock.now())
        try:
            self._told.hear(entry, "schedule")
        except ShapeError as error:
            raise UsageError(
                str(error), op="schedule", fix_hints=["plan, start, finish, close: in this order"]
            ) from error
        self._log.append(entry)


def read_schedule(entries: Iterable[Mapping[str, Any]], *, cut_short: bool = False) -> dict[str, ScheduledAttempt]:
    """The attempts of a schedule, or ShapeError if it contradicts itself or was never closed.

    With `cut_short` it need not be closed: a run that failed may have ended anywhere.
    """
    told = _Told()
    for number, entry in enumerate(entries):
        told.hear(entry, f"schedule[{number}]")
    if not told.closed and not cut_short:
        raise ShapeError("the schedule was never closed: attempts may be lacking")
    return told.attempts


def coverage_gaps(
    planned: Mapping[str, ScheduledAttempt], committed: Mapping[str, str], *, failed: bool
) -> Iterator[tuple[str, str, str]]:
    """Where the bundles in a run are not those of its schedule: the finding's code, the attempt's path, and a detail.

    `committed` has the digest of each nested bundle's index by its place. A run that `failed` may have ended anywhere,
    so it is only held to what its schedule says was finished.
    """
    for each in planned.values():
        digest = committed.get(each.path)
        if each.index_sha256 is not None and digest is None:
            yield "attempt_absent", each.path, f"the schedule says that {each.attempt} finished, and it is not there"
        elif each.index_sha256 is not None and digest != each.index_sha256:
            yield "attempt_replaced", each.path, f"the index is not the one that the schedule has for {each.attempt}"
        elif each.index_sha256 is None and digest is not None and not failed:
            yield "attempt_unplanned", each.path, f"the schedule does not say that {each.attempt} finished"
    places = {each.path for each in planned.values()}
    for place in committed:
        if place not in places and not failed:
            yield "attempt_unplanned", place, "no attempt of the schedule is to be here"


class _Told:
    """What a schedule has said so far."""

    def __init__(self) -> None:
        self.attempts: dict[str, ScheduledAttempt] = {}
        self.closed = False
        self._paths: set[str] = set()

    def hear(self, entry: Any, where: str) -> None:
        """Take in one entry, or raise ShapeError and change nothing."""
        kind = entry.get("kind") if isinstance(entry, dict) else None
        if type(kind) is not str or kind not in _KINDS:
            raise ShapeError(f"{where} is of no kind that is known")
        _KINDS[kind](entry, where)
        if self.closed:
            raise ShapeError(f"{where} comes after the end")
        if kind == "closed":
            if entry["planned"] != len(self.attempts):
                raise ShapeError(f"{where} says {entry['planned']} were planned, and {len(self.attempts)} are there")
            self.closed = True
        elif kind == "planned":
            self._plan(entry, where)
        else:
            name = entry["attempt"]
            planned = self.attempts.get(name)
            if planned is None or planned.started != (kind == "finished") or planned.index_sha256 is not None:
                raise ShapeError(f"{where}: {kind} does not follow for {name[:80]!r}")
            index = entry["index_sha256"] if kind == "finished" else None
            self.attempts[name] = replace(planned, started=True, index_sha256=index)

    def _plan(self, entry: dict[str, Any], where: str) -> None:
        name, path, parent = entry["attempt"], entry["path"], entry["parent"]
        if name in self.attempts or path in self._paths:
            raise ShapeError(f"{where}: an attempt or a path is planned twice")
        if not is_artifact_path(path) or not (parent is None or parent in self.attempts):
            raise ShapeError(f"{where} has a path that leads out of the bundle, or a parent nobody planned")
        self.attempts[name] = ScheduledAttempt(name, path, parent)
        self._paths.add(path)
