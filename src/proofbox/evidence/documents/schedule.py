"""`schedule.jsonl` of a run: every planned or started attempt, hash-chained, so that a dropped attempt is detected.

Entries, each a line of the chain:

    {"kind": "planned",  "attempt": "att-1", "at": …, "path": "attempts/att-1", "parent": null}
    {"kind": "started",  "attempt": "att-1", "at": …}
    {"kind": "finished", "attempt": "att-1", "at": …, "index_sha256": …}
    {"kind": "closed",   "at": …, "planned": 1}

A retry is a new attempt that names its `parent`. `finished` pins the attempt's committed index; an attempt without a
committed bundle has no such entry. `closed` is the last line and states how many attempts were planned: a schedule
without it is truncated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.documents import declare
from proofbox.errors import UsageError
from proofbox.evidence.bundle.paths import is_artifact_path
from proofbox.evidence.documents import shape
from proofbox.evidence.documents.shape import ShapeError

if TYPE_CHECKING:
    from proofbox.evidence.bundle.log import BundleLog

PATH = "schedule.jsonl"

_CHAIN = {
    "seq": shape.count.meaning("The line's number in the log, from 0."),
    "prev": shape.sha256.meaning("SHA-256 of the previous line; on the first line, the chain's origin."),
}
_NAME = shape.text(200)
_AT = shape.moment.meaning("The time of the event; by default the time of writing.")
_ATTEMPT = _NAME.meaning("The attempt's id.")
_KINDS = {
    "planned": shape.record(
        {
            "kind": _NAME.meaning("`planned`: the attempt is planned."),
            "attempt": _ATTEMPT,
            "at": _AT,
            "path": shape.text().meaning("The path of its bundle, relative to the run's."),
            "parent": shape.or_null(_NAME).meaning("The attempt that this one retries; null if it is not a retry."),
        },
        _CHAIN,
    ),
    "started": shape.record(
        {"kind": _NAME.meaning("`started`: the attempt was started."), "attempt": _ATTEMPT, "at": _AT}, _CHAIN
    ),
    "finished": shape.record(
        {
            "kind": _NAME.meaning("`finished`: the attempt's bundle is committed."),
            "attempt": _ATTEMPT,
            "at": _AT,
            "index_sha256": shape.sha256.meaning("SHA-256 of that bundle's index file."),
        },
        _CHAIN,
    ),
    "closed": shape.record(
        {
            "kind": _NAME.meaning("`closed`: no line follows."),
            "at": _AT,
            "planned": shape.count.meaning("The number of planned attempts in the lines before."),
        },
        _CHAIN,
    ),
}
declare(
    PATH,
    at="RUN/schedule.jsonl, one per line",
    meaning="Every planned or started attempt, so that a dropped one is detected. `closed` is the last line.",
    shape={"anyOf": [{"title": kind, **check.json_schema} for kind, check in _KINDS.items()]},
)


class ScheduledAttempt(NamedTuple):
    """One attempt in the schedule. `index_sha256` is None unless it finished with a committed bundle."""

    attempt: str
    path: str
    parent: str | None
    started: bool = False
    index_sha256: str | None = None


class ScheduleLog:
    """Writes a run's schedule into a log of its bundle: `ScheduleLog(bundle.open_log("schedule.jsonl"))`.

    `at` is the time of the event and defaults to now: a schedule may be written later from a ledger.
    """

    def __init__(self, log: BundleLog, clock: Clock | None = None) -> None:
        self._log = log
        self._clock: Clock = clock or SystemClock()
        self._state = _ScheduleState()

    def planned(self, attempt: str, path: str, *, parent: str | None = None, at: datetime | None = None) -> None:
        """Record a planned attempt, before it starts. `path` is its bundle's path, relative to the run's."""
        self._add({"kind": "planned", "attempt": attempt, "path": path, "parent": parent}, at)

    def started(self, attempt: str, *, at: datetime | None = None) -> None:
        self._add({"kind": "started", "attempt": attempt}, at)

    def finished(self, attempt: str, index_sha256: str, *, at: datetime | None = None) -> None:
        """Record a finished attempt after its bundle committed, with the digest of that bundle's index file."""
        self._add({"kind": "finished", "attempt": attempt, "index_sha256": index_sha256}, at)

    def close(self) -> None:
        """Close the schedule. Its attempts need not have finished."""
        if not self._state.closed:
            self._add({"kind": "closed", "planned": len(self._state.attempts)}, None)
            self._log.flush()

    def _add(self, entry: dict[str, Any], at: datetime | None) -> None:
        entry["at"] = isoformat(at or self._clock.now())
        try:
            self._state.add(entry, "schedule")
        except ShapeError as error:
            raise UsageError(
                str(error), op="schedule", fix_hints=["use the order: planned, started, finished, close"]
            ) from error
        self._log.append(entry)


def read_schedule(entries: Iterable[Mapping[str, Any]], *, cut_short: bool = False) -> dict[str, ScheduledAttempt]:
    """Return the attempts of a schedule. Raises ShapeError if it is inconsistent or was never closed.

    With `cut_short` it need not be closed: a failed run may have ended at any point.
    """
    state = _ScheduleState()
    for number, entry in enumerate(entries):
        try:
            state.add(entry, "")
        except ShapeError:
            state.add(entry, f"schedule[{number}]")  # which changes nothing, and names the entry in its message
    if not state.closed and not cut_short:
        raise ShapeError("the schedule was never closed: attempts may be missing")
    return state.attempts


def coverage_gaps(
    planned: Mapping[str, ScheduledAttempt], committed: Mapping[str, str], *, failed: bool
) -> Iterator[tuple[str, str, str]]:
    """Yield differences between a run's bundles and its schedule: the finding's code, the attempt's path, and a detail.

    `committed` maps the path of each nested bundle to its index digest. A run that `failed` may have ended at any
    point, so only the attempts that its schedule lists as finished are checked.
    """
    for each in planned.values():
        digest = committed.get(each.path)
        if each.index_sha256 is not None and digest is None:
            yield "attempt_absent", each.path, f"the schedule says that {each.attempt} finished, but it is missing"
        elif each.index_sha256 is not None and digest != each.index_sha256:
            yield "attempt_replaced", each.path, f"the index differs from the one in the schedule for {each.attempt}"
        elif each.index_sha256 is None and digest is not None and not failed:
            yield "attempt_unplanned", each.path, f"{each.attempt} did not finish according to the schedule"
    places = {each.path for each in planned.values()}
    for place in committed:
        if place not in places and not failed:
            yield "attempt_unplanned", place, "the schedule has no attempt at this path"


class _ScheduleState:
    """The state of a schedule after the entries so far."""

    def __init__(self) -> None:
        self.attempts: dict[str, ScheduledAttempt] = {}
        self.closed = False
        self._paths: set[str] = set()

    def add(self, entry: Any, where: str) -> None:
        """Add one entry. Raises ShapeError, and changes nothing, if it is invalid."""
        kind = entry.get("kind") if isinstance(entry, dict) else None
        if type(kind) is not str or kind not in _KINDS:
            raise ShapeError(f"{where} has an unknown kind")
        _KINDS[kind].run(entry, where)
        if self.closed:
            raise ShapeError(f"{where} comes after the closed entry")
        if kind == "closed":
            if entry["planned"] != len(self.attempts):
                raise ShapeError(f"{where} states {entry['planned']} planned attempts, not {len(self.attempts)}")
            self.closed = True
        elif kind == "planned":
            self._plan(entry, where)
        else:
            name = entry["attempt"]
            planned = self.attempts.get(name)
            if planned is None or planned.started != (kind == "finished") or planned.index_sha256 is not None:
                raise ShapeError(f"{where}: {kind} is out of order for {name[:80]!r}")
            index = entry["index_sha256"] if kind == "finished" else None
            self.attempts[name] = ScheduledAttempt(name, planned.path, planned.parent, True, index)

    def _plan(self, entry: dict[str, Any], where: str) -> None:
        name, path, parent = entry["attempt"], entry["path"], entry["parent"]
        if name in self.attempts or path in self._paths:
            raise ShapeError(f"{where}: an attempt or a path is planned twice")
        if not is_artifact_path(path) or not (parent is None or parent in self.attempts):
            raise ShapeError(f"{where} has a path outside the bundle or an unplanned parent")
        self.attempts[name] = ScheduledAttempt(name, path, parent)
        self._paths.add(path)
