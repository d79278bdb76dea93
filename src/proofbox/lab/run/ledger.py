"""The truth about a run's attempts: one SQLite file beside the run's directory, shared by all who work on it.

An attempt is *planned*, then *claimed* by a worker that holds it by a lease, then *ended*. It is claimed once: a worker
that dies leaves a torn attempt, which is ended as an infra failure, and what was lacking is planned anew as an attempt
that names it as its parent. Nothing is ever taken back or deleted.

A bundle commits before the ledger hears of it. Killed in between, the next to look finds a committed bundle for a
claimed attempt, and enters it. Each conductor of a run (its start, and every resume) begins a new *epoch*: workers of
an earlier one get no more attempts, and what they say of those that were taken from them is refused with `LeaseLost`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, Self

import msgspec

from proofbox.core.clock import Clock, SystemClock
from proofbox.core.documents import declare
from proofbox.errors import AttemptUnknown, CorruptError, IoFailed, LeaseLost, RunUnknown

SCHEMA = "proofbox.ledger/1"
Standing = Literal["planned", "claimed", "ended"]
BUSY_SECONDS = 30.0

_TABLES = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE attempt (
    number    INTEGER PRIMARY KEY,
    id        TEXT NOT NULL UNIQUE,
    mission   TEXT NOT NULL,
    replicate INTEGER NOT NULL,
    parent    TEXT REFERENCES attempt (id),
    state     TEXT NOT NULL DEFAULT 'planned' CHECK (state IN ('planned', 'claimed', 'ended')),
    not_before REAL NOT NULL DEFAULT 0,
    lane      TEXT NOT NULL DEFAULT '',
    epoch     INTEGER NOT NULL DEFAULT 0,
    worker    TEXT,
    lease_until REAL,
    phase     TEXT NOT NULL DEFAULT 'planned',
    interrupt INTEGER NOT NULL DEFAULT 0,
    planned_at REAL NOT NULL,
    claimed_at REAL,
    ended_at  REAL,
    result    TEXT
) STRICT;
CREATE INDEX attempt_state ON attempt (state, not_before, number);
CREATE INDEX attempt_parent ON attempt (parent) WHERE parent IS NOT NULL;
CREATE INDEX attempt_interrupt ON attempt (state) WHERE interrupt = 1;
CREATE INDEX attempt_again ON attempt (number) WHERE json_extract(result, '$.retry_after') IS NOT NULL;
"""
declare(
    SCHEMA,
    at="OUT/RUN.ledger",
    meaning="Which attempts a run has, and what became of each: SQLite, with the tables below. The plan is in `about`.",
    shape={"type": "string", "contentMediaType": "application/vnd.sqlite3", "description": _TABLES.strip()},
)


# What says nothing of the ledger: that it can't be reached or written, or that somebody holds it.
_OF_THE_MACHINE = (
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM),
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM),
)


class PlannedAttempt(msgspec.Struct, frozen=True):
    """An attempt to be made."""

    id: str
    mission: str
    replicate: int
    parent: str | None = None
    not_before: float = 0.0
    """Seconds since the epoch: a retry after a reset waits for it, without a worker."""
    lane: str = ""
    """What it shares bounds with, `bound_lane`: names of lanes with spaces between."""
    interrupt: bool = False
    """It is to be ended, and not begun: as the try before it was to be."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger knows of an attempt that has ended. The evidence is in its bundle."""

    claimed: Literal["success", "failure", "none"]
    verified: Literal["passed", "failed", "none"]
    infra: str | None
    """The code of what failed in the machinery; None: nothing did."""
    reason: str
    strategy: str
    index_sha256: str
    """Of the bundle's index: what makes this record more than a word."""
    retry_after: float | None = None
    """For an infra failure that is worth another try: in how many seconds."""
    reset_named: bool = False
    """Of a usage limit: it was told when it resets, be that past."""
    stopped: bool = False
    """Of one whose worker was lost: the whole run was stopped, and it did not die by itself."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One row."""

    number: int
    id: str
    mission: str
    replicate: int
    parent: str | None
    state: Standing
    epoch: int
    worker: str | None
    phase: str
    interrupt: bool
    not_before: float
    lane: str
    planned_at: float
    """Seconds since the epoch, as the two below."""
    claimed_at: float | None
    ended_at: float | None
    result: Ended | None

    @property
    def given_up(self) -> bool:
        """By a worker that lives, and writes no more of it."""
        return self.worker == ""

    @property
    def path(self) -> str:
        """Where its bundle is, relative to the run's directory: named after the epoch that claimed it."""
        return f"attempts/{self.id}.e{self.epoch}"


class Ledger:
    """Open in many processes at once. One object is for one process, and may be shared by its threads."""

    def __init__(self, path: Path, *, clock: Clock | None = None, read_only: bool = False) -> None:
        if not path.exists():
            raise RunUnknown(f"there is no ledger at {path}", op="ledger", fix_hints=["name a run's directory"])
        self.path = path
        self._clock: Clock = clock or SystemClock()
        self._mutex = threading.RLock()
        with contextlib.ExitStack() as undo:
            try:
                self._db = _connect_to_read(path) if read_only else _connect(path)
                undo.callback(self._db.close)
                self._refuse_other_schema()
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode & 0xFF in _OF_THE_MACHINE:
                    raise IoFailed(f"{path} can't be opened: {error}", op="ledger") from None
                raise CorruptError(f"{path} is no ledger: {error}", op="ledger") from None
            undo.pop_all()

    def _refuse_other_schema(self) -> None:
        found = self.about("schema_version")
        if found != SCHEMA:
            raise CorruptError(f"{self.path} is of schema {found!r}, and this reads {SCHEMA}", op="ledger")

    @classmethod
    def create(
        cls, path: Path, about: dict[str, str], attempts: Iterable[PlannedAttempt], *, clock: Clock | None = None
    ) -> Ledger:
        """Made whole under another name, then put in place: there is no ledger without its plan."""
        clock = clock or SystemClock()
        now = clock.now().timestamp()
        unborn = path.with_name(f".{path.name}.{os.getpid()}.new")
        unborn.unlink(missing_ok=True)
        db = _connect(unborn)
        try:
            with db:
                db.executescript(_TABLES)
                db.executemany("INSERT INTO about VALUES (?, ?)", {**about, "schema_version": SCHEMA}.items())
                db.executemany(_PLAN, [_row(each, now) for each in attempts])
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            db.close()
        os.rename(unborn, path)
        return cls(path, clock=clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._mutex:
            self._db.close()

    # What the run is

    def about(self, key: str) -> str:
        with self._mutex:
            row = self._db.execute("SELECT value FROM about WHERE key = ?", (key,)).fetchone()
        return row[0] if row else ""

    def set_about(self, key: str, value: str) -> None:
        with self._writing() as db:
            db.execute(
                "INSERT INTO about VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value)
            )

    def attempts(self) -> list[Attempt]:
        """All of them, in the order they were planned."""
        with self._mutex:
            return [_attempt(row) for row in self._db.execute("SELECT * FROM attempt ORDER BY number")]

    def attempt(self, id: str) -> Attempt:
        """By its id, or an unambiguous beginning of it."""
        with self._mutex:
            rows = self._db.execute("SELECT * FROM attempt WHERE id = ?", (id,)).fetchall()
            if not rows:
                begins = "SELECT * FROM attempt WHERE substr(id, 1, ?) = ? LIMIT 2"
                rows = self._db.execute(begins, (len(id), id)).fetchall()
        if len(rows) != 1 or not id:
            what = "several attempts begin with" if rows else "there is no attempt"
            hints = ["list them: proofbox attempt list RUN"]
            raise AttemptUnknown(f"{what} {id[:80]!r}", op="attempt", fix_hints=hints)
        return _attempt(rows[0])

    def to_retry(self) -> list[Attempt]:
        """Those whose result asks for another try, and that none names as its parent yet."""
        asks = (
            "SELECT * FROM attempt AS ended WHERE json_extract(result, '$.retry_after') IS NOT NULL"
            " AND NOT EXISTS (SELECT 1 FROM attempt WHERE parent = ended.id) ORDER BY number"
        )
        with self._mutex:
            return [_attempt(row) for row in self._db.execute(asks)]

    def counts(self) -> dict[Standing, int]:
        with self._mutex:
            found = dict(self._db.execute("SELECT state, count(*) FROM attempt GROUP BY state").fetchall())
        return {"planned": found.get("planned", 0), "claimed": found.get("claimed", 0), "ended": found.get("ended", 0)}

    def next_time(self) -> float | None:
        """When the earliest of the planned attempts may start."""
        with self._mutex:
            row = self._db.execute("SELECT min(not_before) FROM attempt WHERE state = 'planned'").fetchone()
        return None if row[0] is None else float(row[0])

    # What happens to attempts

    def plan(self, attempt: PlannedAttempt) -> None:
        """One more. Planning the same again is no error: who was killed in between does so."""
        with self._writing() as db:
            db.execute(_PLAN, _row(attempt, self._now()))

    def begin_epoch(self) -> int:
        """What a conductor does first. Attempts that are claimed stay so until they are ended or taken over."""
        with self._writing() as db:
            (epoch,) = db.execute(
                "INSERT INTO about VALUES ('epoch', '1')"
                " ON CONFLICT (key) DO UPDATE SET value = CAST(value AS INTEGER) + 1 RETURNING value"
            ).fetchone()
        return int(epoch)

    def bound_lane(self, lane: str, most: int) -> None:
        """No more attempts of that lane are under way at once, whoever works on them."""
        self.set_about(f"lane {lane}", str(most))

    def claim(self, worker: str, epoch: int, lease: float) -> Attempt | None:
        """Take the first planned attempt whose time has come; None where there is none."""
        which = (
            "SELECT number FROM attempt WHERE state = 'planned' AND not_before <= :now"
            " AND NOT EXISTS (SELECT 1 FROM json_each(:full) WHERE instr(' ' || lane || ' ', ' ' || value || ' '))"
            " ORDER BY not_before, number LIMIT 1"
        )
        return self._claim(worker, epoch, lease, which)

    def claim_interrupted(self, worker: str, epoch: int, lease: float) -> Attempt | None:
        """Take a planned attempt that is to be interrupted, to end it: that waits for no time and no lane."""
        which = "SELECT number FROM attempt WHERE state = 'planned' AND interrupt = 1 LIMIT 1"
        with self._mutex:
            if self._db.execute(which).fetchone() is None:  # as nearly always: without a lock on the file
                return None
        return self._claim(worker, epoch, lease, which)

    def _claim(self, worker: str, epoch: int, lease: float, which: str) -> Attempt | None:
        now = self._now()
        with self._writing() as db:
            if int(self.about("epoch") or 0) != epoch:
                raise LeaseLost("another process conducts this run now", op="ledger")
            found = db.execute(which, {"now": now, "full": json.dumps(self._full_lanes())}).fetchone()
            if found is None:
                return None
            row = db.execute(
                "UPDATE attempt SET state = 'claimed', phase = 'claimed', epoch = ?, worker = ?, lease_until = ?,"
                " claimed_at = ? WHERE number = ? RETURNING *",
                (epoch, worker, now + lease, now, found[0]),
            ).fetchone()
        return _attempt(row)

    def _full_lanes(self) -> list[str]:
        """Those with as many attempts under way as their bound."""
        bounds = self._db.execute("SELECT substr(key, 6), value FROM about WHERE key GLOB 'lane *'").fetchall()
        claimed = self._db.execute("SELECT lane FROM attempt WHERE state = 'claimed'") if bounds else ()
        used = Counter(lane for row in claimed for lane in row["lane"].split())
        return [lane for lane, most in bounds if used[lane] >= int(most)]

    def heartbeat(self, worker: str, lease: float) -> list[str]:
        """Keep this worker's attempts; the ids of those that are to be interrupted."""
        with self._writing() as db:
            db.execute(
                "UPDATE attempt SET lease_until = ? WHERE worker = ? AND state = 'claimed'",
                (self._now() + lease, worker),
            )
            rows = db.execute(
                "SELECT id FROM attempt WHERE worker = ? AND state = 'claimed' AND interrupt = 1", (worker,)
            ).fetchall()
        return [row[0] for row in rows]

    def enter_phase(self, attempt: Attempt, phase: str) -> None:
        """For whoever watches. Refused with `LeaseLost` when the attempt is no longer this worker's."""
        with self._writing() as db:
            changed = db.execute(
                "UPDATE attempt SET phase = ? WHERE id = ? AND worker = ? AND state = 'claimed'",
                (phase, attempt.id, attempt.worker),
            )
        _held(changed, attempt)

    def end(self, attempt: Attempt, result: Ended) -> None:
        """Its bundle is committed: this makes it the one that counts. Saying the same again is no error."""
        encoded = msgspec.json.encode(result).decode()
        with self._writing() as db:
            if self.attempt(attempt.id).result == result:
                return
            changed = db.execute(
                "UPDATE attempt SET state = 'ended', phase = 'ended', lease_until = NULL, ended_at = ?, result = ?"
                " WHERE id = ? AND worker = ? AND state = 'claimed'",
                (self._now(), encoded, attempt.id, attempt.worker),
            )
        _held(changed, attempt)

    def give_up(self, attempt: Attempt) -> None:
        """Its worker lives, writes no more of it, and could not end it: it is torn from here on."""
        with self._writing() as db:
            db.execute(
                "UPDATE attempt SET worker = '', lease_until = 0 WHERE id = ? AND worker = ? AND state = 'claimed'",
                (attempt.id, attempt.worker),
            )

    def interrupt(self, id: str) -> Attempt:
        """Ask whoever runs it to stop it; of one that has ended and is to be tried again, that it is not."""
        attempt = self.attempt(id)
        with self._writing() as db:
            db.execute(
                "UPDATE attempt SET interrupt = 1 WHERE id = ?1 AND (state != 'ended'"
                " OR json_extract(result, '$.retry_after') IS NOT NULL"
                " AND NOT EXISTS (SELECT 1 FROM attempt WHERE parent = ?1))",
                (attempt.id,),
            )
        return self.attempt(attempt.id)

    def torn(self, alive: Iterable[str]) -> list[Attempt]:
        """Claimed attempts whose lease has run out, or whose worker is not among those `alive`."""
        living = set(alive)
        with self._mutex:
            rows = self._db.execute("SELECT * FROM attempt WHERE state = 'claimed' ORDER BY number").fetchall()
        now = self._now()
        return [_attempt(row) for row in rows if row["lease_until"] < now or row["worker"] not in living]

    def take_over(self, attempt: Attempt, worker: str, lease: float) -> Attempt:
        """Take a torn attempt away from its worker, whose word counts no more from here on.

        Whoever does so has made sure that the worker is dead: two must not write into one bundle.
        """
        with self._writing() as db:
            row = db.execute(
                "UPDATE attempt SET worker = ?, lease_until = ? WHERE id = ? AND worker = ? AND state = 'claimed'"
                " RETURNING *",
                (worker, self._now() + lease, attempt.id, attempt.worker),
            ).fetchone()
        if row is None:
            raise LeaseLost(f"{attempt.id} was taken by another", op="ledger")
        return _attempt(row)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except sqlite3.OperationalError as error:  # a full disk, or one who holds it for longer than we wait
                raise IoFailed(f"{self.path} can't be written: {error}", op="ledger") from error
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")


_PLAN = (
    "INSERT OR IGNORE INTO attempt (id, mission, replicate, parent, not_before, lane, interrupt, planned_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)


def _held(changed: sqlite3.Cursor, attempt: Attempt) -> None:
    if not changed.rowcount:
        raise LeaseLost(
            f"{attempt.id} is no longer this worker's",
            op="ledger",
            fix_hints=["resume the run: the machine may have slept, or been too busy to renew the lease"],
        )


def _row(attempt: PlannedAttempt, now: float) -> tuple[object, ...]:
    return (*msgspec.structs.astuple(attempt), now)


def _attempt(row: sqlite3.Row) -> Attempt:
    values = {name: row[name] for name in Attempt.__struct_fields__}
    if values["result"] is not None:
        values["result"] = msgspec.json.decode(values["result"], type=Ended)
    return Attempt(**{**values, "interrupt": bool(values["interrupt"])})


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        db.close()
        raise
    return db


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """For one who changes nothing: evidence may be kept where nobody can.

    Readers of a WAL share memory by a file beside it. Where none can be made, the ledger is taken for one that nobody
    changes, unless a log beside it has more than it has.
    """
    if os.access(path.parent, os.W_OK) and os.access(path, os.W_OK):
        return _connect(path)  # and not by `mode=ro`, which leaves the log and the memory behind
    log = Path(f"{path}-wal")
    still = not (log.exists() and log.stat().st_size)
    place = f"{path.absolute().as_uri()}?mode=ro" + ("&immutable=1" if still else "")
    db = sqlite3.connect(place, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    return db
