"""The threads of a session. In a home that is kept, they outlive it: one JSON document per thread."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from proofbox.core.documents import require_version
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import RuntimeProtocolError, UsageError


class StoredThread(Protocol):
    @property
    def id(self) -> str: ...


S = TypeVar("S", bound=StoredThread)


class StoredThreads(Generic[S]):
    """The threads of one runtime. `is_id` decides whether a string can be the id of a thread, and thus a file name.

    Without a home, threads are kept in memory: a turn need not wait for a busy disk.
    """

    def __init__(self, home: Path | None, kind: type[S], schema: str, is_id: Callable[[str], bool]) -> None:
        self._kind = kind
        self._schema = schema
        self._is_id = is_id
        self._in_memory: dict[str, S] = {}
        self._directory = home / "threads" if home is not None else None
        if self._directory is not None:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def save(self, thread: S) -> None:
        """Write the thread atomically. No fsync: a thread is the agent's memory, not evidence."""
        if self._directory is None:
            self._in_memory[thread.id] = thread
            return
        path = self._directory / f"{thread.id}.json"
        temporary = path.with_suffix(".tmp")  # a thread has one session at a time
        temporary.write_bytes(msgspec.json.encode(thread))
        os.replace(temporary, path)

    def load(self, id: str) -> S:
        """Load a thread. Raises `UsageError` if it does not exist, `RuntimeProtocolError` if it can't be read.

        Raises `VersionUnknown` if another version of proofbox wrote it.
        """
        if id in self._in_memory:
            return self._in_memory[id]
        path = self._directory / f"{id}.json" if self._directory is not None and self._is_id(id) else None
        if path is None or not path.is_file():
            raise UsageError(f"thread {id[:80]!r} does not exist in this home", op="thread")
        try:
            data = path.read_bytes()
            require_version(data, self._schema, path)
            return parse_json(data, self._kind)
        except (OSError, msgspec.DecodeError) as error:
            raise RuntimeProtocolError(f"can't read thread {id}: {error}", op="thread") from None
