"""The backend's state in SQLite: specs, repositories, pull requests, and responses by idempotency key.

An operation of several steps first writes a row in an intermediate state (`pending`, `merging`), so that after a crash
the next process can finish or undo it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

_TABLES = """
CREATE TABLE IF NOT EXISTS specs (enterprise TEXT, app TEXT, document BLOB, PRIMARY KEY (enterprise, app));
CREATE TABLE IF NOT EXISTS repositories (
    app TEXT PRIMARY KEY, full_name TEXT UNIQUE, directory TEXT, state TEXT, created_at TEXT);
CREATE TABLE IF NOT EXISTS pulls (
    app TEXT, number INTEGER, branch TEXT, title TEXT, body TEXT, base TEXT, head TEXT, state TEXT, user TEXT,
    created_at TEXT, merge TEXT, evidence BLOB, PRIMARY KEY (app, number), UNIQUE (app, branch));
CREATE TABLE IF NOT EXISTS answers (
    app TEXT, op TEXT, key TEXT, request TEXT, body BLOB, PRIMARY KEY (app, op, key));
CREATE TABLE IF NOT EXISTS blobs (oid TEXT PRIMARY KEY, sha256 TEXT, size INTEGER) WITHOUT ROWID;
"""


class Repository(msgspec.Struct, frozen=True):
    app: str
    full_name: str
    directory: str
    state: Literal["pending", "ready"]
    created_at: str


class Pull(msgspec.Struct, frozen=True):
    app: str
    number: int
    branch: str
    title: str
    body: str
    base: str
    head: str
    state: Literal["pending", "open", "merging", "merged", "closed"]
    user: str
    created_at: str
    merge: str | None = None
    evidence: bytes | None = None


class BackendDatabase:
    """The database, shared by threads. Each method is one transaction; `together` combines several."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._lock = threading.RLock()
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_TABLES)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._lock:
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _do(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    # Specs

    def put_spec(self, enterprise: str, app: str, document: bytes) -> None:
        self._do("INSERT OR REPLACE INTO specs VALUES (?, ?, ?)", enterprise, app, document)

    def specs(self, enterprise: str) -> list[bytes]:
        rows = self._do("SELECT document FROM specs WHERE enterprise = ? ORDER BY app", enterprise)
        return [row[0] for row in rows]

    def specs_of_app(self, app: str) -> list[tuple[str, bytes]]:
        return [(row[0], row[1]) for row in self._do("SELECT enterprise, document FROM specs WHERE app = ?", app)]

    # Repositories

    def add_repository(self, repository: Repository) -> None:
        self._do("INSERT INTO repositories VALUES (?, ?, ?, ?, ?)", *msgspec.structs.astuple(repository))

    def repository_is_ready(self, app: str) -> None:
        self._do("UPDATE repositories SET state = 'ready' WHERE app = ?", app)

    def drop_repository(self, app: str) -> None:
        self._do("DELETE FROM repositories WHERE app = ?", app)

    def repository(self, app: str) -> Repository | None:
        rows = self._do("SELECT * FROM repositories WHERE app = ?", app)
        return Repository(*rows[0]) if rows else None

    def named(self, full_name: str) -> Repository | None:
        rows = self._do("SELECT * FROM repositories WHERE full_name = ? AND state = 'ready'", full_name)
        return Repository(*rows[0]) if rows else None

    def repositories(self) -> list[Repository]:
        return [Repository(*row) for row in self._do("SELECT * FROM repositories ORDER BY full_name")]

    # Pull requests

    def add_pull(self, pull: Pull) -> None:
        self._do("INSERT INTO pulls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", *msgspec.structs.astuple(pull))

    def update_pull(self, pull: Pull) -> Pull:
        """Store the state and the merge commit; nothing else of a pull request ever changes."""
        change = "UPDATE pulls SET state = ?, merge = ? WHERE app = ? AND number = ?"
        self._do(change, pull.state, pull.merge, pull.app, pull.number)
        return pull

    def drop_pull(self, pull: Pull, answer: bytes) -> None:
        """Delete a pull request that could not be opened, and its stored response."""
        with self.transaction():
            self._do("DELETE FROM pulls WHERE app = ? AND number = ?", pull.app, pull.number)
            self._do("DELETE FROM answers WHERE app = ? AND op = 'pull' AND body = ?", pull.app, answer)

    def pulls(self, app: str) -> list[Pull]:
        return [Pull(*row) for row in self._do("SELECT * FROM pulls WHERE app = ? ORDER BY number DESC", app)]

    # Answers

    def put_answer(self, app: str, op: str, key: str, request: str, body: bytes) -> None:
        self._do("INSERT INTO answers VALUES (?, ?, ?, ?, ?)", app, op, key, request, body)

    def answer(self, app: str, op: str, key: str) -> tuple[str, bytes] | None:
        rows = self._do("SELECT request, body FROM answers WHERE app = ? AND op = ? AND key = ?", app, op, key)
        return (rows[0][0], rows[0][1]) if rows else None

    # SHA-256 of git's blobs

    def put_blobs(self, rows: Iterable[tuple[str, str, int]]) -> None:
        with self.transaction():
            self._db.executemany("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)", rows)

    def blobs(self, oids: Iterable[str]) -> dict[str, tuple[str, int]]:
        found = {}
        with self._lock:
            for oid in oids:
                row = self._db.execute("SELECT sha256, size FROM blobs WHERE oid = ?", (oid,)).fetchone()
                if row:
                    found[oid] = (row[0], row[1])
        return found
