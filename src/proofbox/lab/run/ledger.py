"""The ledger of a run's attempts: one SQLite file next to the run's directory, shared by all its processes.

An attempt is *planned*, then *claimed* by a worker that holds a lease on it, then *ended*. It is claimed only once: a
worker that dies leaves a torn attempt, which is ended as an infrastructure failure. Its retry is planned as a new
attempt that names the old one as its parent. Nothing is ever undone or deleted.

A bundle is committed before the ledger records it. If a worker is killed in between, the next process finds a committed
bundle for a claimed attempt and records it. Each conductor of a run (its start, and every resume) begins a new *epoch*.
Workers of an earlier epoch get no more attempts, and their updates to attempts that were taken from them are refused
with `LeaseLost`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sqlite3
import stat
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from shlex import quote
from typing import Literal, Self

import msgspec

from proofbox.core.clock import Clock, SystemClock
from proofbox.core.documents import declare, require_version
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import AttemptUnknown, CorruptError, IoFailed, LeaseLost, RunUnknown
from proofbox.lab.attempt.result import AttemptResult

SCHEMA = "proofbox.ledger/1"
Standing = Literal["planned", "claimed", "ended"]
BUSY_SECONDS = 30.0
SHOWN = 10
"""Maximum number of attempts that an error names."""

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
    meaning="The attempts of a run and their results: SQLite, with the tables below. The plan is in `about`.",
    shape={"type": "string", "contentMediaType": "application/vnd.sqlite3", "description": _TABLES.strip()},
)


# Errors that do not mean a damaged ledger: it cannot be reached or written, or is locked.
_ENVIRONMENT_ERRORS = (
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM),
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM),
)


class PlannedAttempt(msgspec.Struct, frozen=True):
    """An attempt to add to the ledger."""

    id: str
    mission: str
    replicate: int
    parent: str | None = None
    not_before: float = 0.0
    """Seconds since the epoch; a retry waits until then without occupying a worker."""
    lane: str = ""
    """Names of its lanes, separated by spaces; see `bound_lane`."""
    interrupt: bool = False
    """End it without starting it, because an interrupt was requested for the attempt that it retries."""


class Ended(AttemptResult, frozen=True, kw_only=True):
    """What the ledger records about an ended attempt. The evidence is in its bundle."""

    index_sha256: str
    """Digest of the bundle's index, which ties this record to the evidence."""
    retry_after: float | None = None
    """Seconds after which to retry an infrastructure failure; None if it is not retried."""
    reset_named: bool = False
    """Whether a usage limit named a reset time, even one in the past."""
    stopped: bool = False
    """Whether the worker was lost because the whole run was stopped, and did not die by itself."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the ledger."""

    number: int
    id: str
    mission: str
    replicate: int
    parent: str | None = None
    state: Standing
    epoch: int = 0
    worker: str | None = None
    phase: str = "planned"
    interrupt: bool = False
    not_before: float = 0.0
    lane: str = ""
    planned_at: float = 0.0
    """Seconds since the epoch, like the two below."""
    claimed_at: float | None = None
    ended_at: float | None = None
    result: Ended | None = None

    @property
    def given_up(self) -> bool:
        """Whether its worker, which is alive, gave it up and writes no more of it."""
        return self.worker == ""

    @property
    def path(self) -> str:
        """The path of its bundle relative to the run's directory; it includes the epoch that claimed it."""
        return f"attempts/{self.id}.e{self.epoch}"


class Ledger:
    """An open ledger. Many processes can have it open; the threads of a process may share one object."""

    def __init__(self, path: Path, *, clock: Clock | None = None, read_only: bool = False) -> None:
        if not os.path.lexists(path):
            raise RunUnknown(f"no ledger at {path}", op="ledger", fix_hints=["name the directory of a run"])
        _refuse_planted(path)
        self.path = path
        self._clock: Clock = clock or SystemClock()
        self._mutex = threading.RLock()
        with contextlib.ExitStack() as undo:
            try:
                self._db = _connect_to_read(path) if read_only else _connect(path)
                undo.callback(self._db.close)
                self._refuse_other_schema()
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode & 0xFF in _ENVIRONMENT_ERRORS:
                    raise IoFailed(f"{path} cannot be opened: {error}", op="ledger") from None
                raise CorruptError(f"{path} is not a ledger: {error}", op="ledger") from None
            undo.pop_all()

    def _refuse_other_schema(self) -> None:
        """Refuse another version, and everything that SQLite would run when a table is used: views and triggers."""
        objects = _objects_in(self._db)
        if not any(kind in ("view", "trigger") or "VIRTUAL" in sql.upper() for kind, _, sql in objects):
            require_version({"schema_version": self.get_value("schema_version")}, SCHEMA, self.path)
        if objects != _own_objects():
            raise CorruptError(f"the tables of {self.path} do not match {SCHEMA}", op="ledger")

    @classmethod
    def create(
        cls, path: Path, about: dict[str, str], attempts: Iterable[PlannedAttempt], *, clock: Clock | None = None
    ) -> Ledger:
        """Create a ledger under a temporary name, then rename it, so that a ledger never exists without its plan."""
        clock = clock or SystemClock()
        now = clock.now().timestamp()
        temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
        temporary.unlink(missing_ok=True)
        db = _connect(temporary)
        try:
            with db:
                db.executescript(_TABLES)
                db.executemany("INSERT INTO about VALUES (?, ?)", {**about, "schema_version": SCHEMA}.items())
                db.executemany(_PLAN, [_row(each, now) for each in attempts])
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            db.close()
        os.rename(temporary, path)
        return cls(path, clock=clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._mutex:
            self._db.close()

    # The run

    def get_value(self, key: str) -> str:
        with self._mutex:
            row = self._db.execute("SELECT value FROM about WHERE key = ?", (key,)).fetchone()
        return row[0] if row else ""

    def set_value(self, key: str, value: str) -> None:
        with self._writing() as db:
            db.execute(
                "INSERT INTO about VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value)
            )

    def attempts(self, first: int = 0, count: int = -1) -> list[Attempt]:
        """Return attempts in the order they were planned: all, or `count` of them after the first `first`."""
        rows = "SELECT * FROM attempt ORDER BY number LIMIT ? OFFSET ?"
        with self._mutex:
            return [_attempt(row) for row in self._db.execute(rows, (count, first))]

    def attempt(self, id: str) -> Attempt:
        """Return an attempt by its id or an unambiguous prefix of it."""
        with self._mutex:
            rows = self._db.execute("SELECT * FROM attempt WHERE id = ?", (id,)).fetchall()
            if not rows:
                begins = "SELECT * FROM attempt WHERE substr(id, 1, ?) = ? ORDER BY number LIMIT ?"
                rows = self._db.execute(begins, (len(id), id, SHOWN + 1)).fetchall()
        if len(rows) != 1 or not id:
            found = [str(row["id"]) for row in rows]
            listed = ", ".join(found[:SHOWN]) + (", …" if len(found) > SHOWN else "")
            message = f"several attempts begin with {id[:80]!r}: {listed}" if rows else f"no attempt {id[:80]!r}"
            hints = [f"list the attempts: proofbox attempt list {quote(str(self.path.with_suffix('')))}"]
            raise AttemptUnknown(message, op="attempt", fix_hints=hints, details={"attempts": found[:SHOWN]})
        return _attempt(rows[0])

    def to_retry(self) -> list[Attempt]:
        """Return the attempts whose result asks for a retry that is not planned yet."""
        asks = (
            "SELECT * FROM attempt AS ended WHERE json_extract(result, '$.retry_after') IS NOT NULL"
            " AND NOT EXISTS (SELECT 1 FROM attempt WHERE parent = ended.id) ORDER BY number"
        )
        with self._mutex:
            return [_attempt(row) for row in self._db.execute(asks)]

    def counts(self) -> dict[Standing, int]:
        # Attempts are numbered from 1 and never deleted. A conductor asks after every attempt, so those that have ended
        # are not counted one by one.
        counted = (
            "SELECT (SELECT count(*) FROM attempt WHERE state = 'planned'),"
            " (SELECT count(*) FROM attempt WHERE state = 'claimed'), (SELECT coalesce(max(number), 0) FROM attempt)"
        )
        with self._mutex:
            planned, claimed, total = self._db.execute(counted).fetchone()
        return {"planned": planned, "claimed": claimed, "ended": total - planned - claimed}

    def next_time(self) -> float | None:
        """Return when the earliest planned attempt may start; None if none is planned."""
        with self._mutex:
            row = self._db.execute("SELECT min(not_before) FROM attempt WHERE state = 'planned'").fetchone()
        return None if row[0] is None else float(row[0])

    # Changes of attempts

    def plan(self, attempt: PlannedAttempt) -> None:
        """Add an attempt. Adding it again has no effect, so a conductor killed in between can repeat it."""
        with self._writing() as db:
            db.execute(_PLAN, _row(attempt, self._now()))

    def begin_epoch(self) -> int:
        """Begin the epoch of a new conductor. Claimed attempts stay claimed until they are ended or taken over."""
        with self._writing() as db:
            (epoch,) = db.execute(
                "INSERT INTO about VALUES ('epoch', '1')"
                " ON CONFLICT (key) DO UPDATE SET value = CAST(value AS INTEGER) + 1 RETURNING value"
            ).fetchone()
        return int(epoch)

    def bound_lane(self, lane: str, limit: int) -> None:
        """Limit the number of concurrent attempts in a lane, over all workers."""
        self.set_value(f"lane {lane}", str(limit))

    def claim(self, worker: str, epoch: int, lease: float) -> Attempt | None:
        """Claim the first planned attempt that is due, or return None."""
        which = (
            "SELECT number FROM attempt WHERE state = 'planned' AND not_before <= :now"
            " AND NOT EXISTS (SELECT 1 FROM json_each(:full) WHERE instr(' ' || lane || ' ', ' ' || value || ' '))"
            " ORDER BY not_before, number LIMIT 1"
        )
        return self._claim(worker, epoch, lease, which)

    def claim_interrupted(self, worker: str, epoch: int, lease: float) -> Attempt | None:
        """Claim a planned attempt that is to be interrupted, in order to end it, regardless of its time and lanes."""
        which = "SELECT number FROM attempt WHERE state = 'planned' AND interrupt = 1 LIMIT 1"
        with self._mutex:
            if self._db.execute(which).fetchone() is None:  # the usual case, without a lock on the file
                return None
        return self._claim(worker, epoch, lease, which)

    def _claim(self, worker: str, epoch: int, lease: float, which: str) -> Attempt | None:
        now = self._now()
        with self._writing() as db:
            if int(self.get_value("epoch") or 0) != epoch:
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
        """Return the lanes that have reached their limit."""
        bounds = self._db.execute("SELECT substr(key, 6), value FROM about WHERE key GLOB 'lane *'").fetchall()
        claimed = self._db.execute("SELECT lane FROM attempt WHERE state = 'claimed'") if bounds else ()
        used = Counter(lane for row in claimed for lane in row["lane"].split())
        return [lane for lane, limit in bounds if used[lane] >= int(limit)]

    def heartbeat(self, worker: str, lease: float) -> list[str]:
        """Renew the leases of this worker's attempts; return the ids of those to interrupt."""
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
        """Record the phase for observers. Raises `LeaseLost` if the attempt no longer belongs to this worker."""
        with self._writing() as db:
            changed = db.execute(
                "UPDATE attempt SET phase = ? WHERE id = ? AND worker = ? AND state = 'claimed'",
                (phase, attempt.id, attempt.worker),
            )
        _held(changed, attempt)

    def end(self, attempt: Attempt, result: Ended) -> None:
        """Record the result of an attempt whose bundle is committed. Recording the same result again has no effect."""
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

    def reopen(self, attempt: Attempt, worker: str, lease: float) -> Attempt:
        """Claim an ended attempt again, to end it with another result. Until then it is torn if its worker dies."""
        with self._writing() as db:
            row = db.execute(
                "UPDATE attempt SET state = 'claimed', worker = ?, lease_until = ?, result = NULL"
                " WHERE id = ? AND state = 'ended' RETURNING *",
                (worker, self._now() + lease, attempt.id),
            ).fetchone()
        return _attempt(row)

    def give_up(self, attempt: Attempt) -> None:
        """Release an attempt that a living worker could not end and writes no more of. It is torn from then on."""
        with self._writing() as db:
            db.execute(
                "UPDATE attempt SET worker = '', lease_until = 0 WHERE id = ? AND worker = ? AND state = 'claimed'",
                (attempt.id, attempt.worker),
            )

    def interrupt(self, id: str) -> Attempt:
        """Request that a running attempt is stopped, or that an ended one is not retried."""
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
        """Return claimed attempts whose lease has expired, or whose worker is not in `alive`."""
        living = set(alive)
        with self._mutex:
            rows = self._db.execute("SELECT * FROM attempt WHERE state = 'claimed' ORDER BY number").fetchall()
        now = self._now()
        return [_attempt(row) for row in rows if row["lease_until"] < now or row["worker"] not in living]

    def take_over(self, attempt: Attempt, worker: str, lease: float) -> Attempt:
        """Take a torn attempt from its worker, whose later updates are refused.

        The caller must have made sure that the worker is dead: two processes must not write to one bundle.
        """
        with self._writing() as db:
            row = db.execute(
                "UPDATE attempt SET worker = ?, lease_until = ? WHERE id = ? AND worker = ? AND state = 'claimed'"
                " RETURNING *",
                (worker, self._now() + lease, attempt.id, attempt.worker),
            ).fetchone()
        if row is None:
            raise LeaseLost(f"{attempt.id} was taken over by another process", op="ledger")
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
            except sqlite3.OperationalError as error:  # a full disk, or a lock held for longer than the timeout
                raise IoFailed(f"{self.path} cannot be written: {error}", op="ledger") from error
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
            f"{attempt.id} no longer belongs to this worker",
            op="ledger",
            fix_hints=["resume the run; the machine may have been suspended, or too busy to renew the lease"],
        )


def _row(attempt: PlannedAttempt, now: float) -> tuple[object, ...]:
    return (*msgspec.structs.astuple(attempt), now)


def _attempt(row: sqlite3.Row) -> Attempt:
    values = {name: row[name] for name in Attempt.__struct_fields__}
    if values["result"] is not None:
        try:
            values["result"] = parse_json(values["result"], Ended)
        except msgspec.DecodeError as error:
            raise CorruptError(f"the ledger's result of {row['id']} is malformed: {error}", op="ledger") from None
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
    """Connect without changing anything: evidence may be on read-only storage.

    Readers of a WAL share memory through a file next to it. If that file cannot be created, the ledger is opened as
    immutable, unless its WAL contains data.
    """
    if os.access(path.parent, os.W_OK) and os.access(path, os.W_OK):
        return _connect(path)  # `mode=ro` would leave the WAL and its shared memory file behind
    log = Path(f"{path}-wal")
    still = not (log.exists() and log.stat().st_size)
    place = f"{path.absolute().as_uri()}?mode=ro" + ("&immutable=1" if still else "")
    db = sqlite3.connect(place, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    return db


def _refuse_planted(path: Path) -> None:
    """Refuse files that SQLite would follow on behalf of the author of the output directory.

    It writes to the write-ahead log and may delete a file that a rollback journal names. A ledger uses no such journal.
    """
    for name in (path, *(Path(f"{path}{suffix}") for suffix in ("-wal", "-shm", "-journal"))):
        try:
            mode = name.lstat().st_mode
        except FileNotFoundError:
            continue
        regular = stat.S_ISREG(mode) or stat.S_ISDIR(mode)  # SQLite cannot open a directory and says so
        if not regular or name.name.endswith("-journal"):
            kind = "a rollback journal" if regular else "not a regular file"
            raise CorruptError(
                f"{name} is {kind}, so the ledger is not opened", op="ledger", fix_hints=[f"inspect it: ls -l {name}"]
            )


def _objects_in(db: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Return the type, name and definition of every table, index, view and trigger."""
    found = db.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_master")
    return {(str(kind), str(name), str(sql)) for kind, name, sql in found}


@functools.cache
def _own_objects() -> set[tuple[str, str, str]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_TABLES)
        return _objects_in(db)
