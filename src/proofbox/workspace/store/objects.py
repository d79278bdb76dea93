"""Content by its digest, and the events of every workspace that shares it. The files' format is in `pack`.

A store is a directory: `current` names the generation, `pack-N`, `index-N` and `lookup.N` are its files, and `large/`
has what is too large for a pack. `gc` writes a new generation and moves `current`; a process that has the old one open
notices at its next use. `append.lock` is held while writing; `use.lock` is shared by whoever is between writing objects
and the event that needs them, so that `gc`, which takes it alone, never sees objects whose event is still to come.

Nothing is synced unless asked: a process that is killed loses nothing, and after a power cut the store is in the last
synced state or a later one. Sealed snapshots, named references and closing sync.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from proofbox.core.files.atomic import write_document
from proofbox.core.files.locks import locked
from proofbox.errors import WorkspaceCorrupt
from proofbox.workspace.store import pack
from proofbox.workspace.store.generation import Generation, Record
from proofbox.workspace.store.large_objects import LARGE, LargeObjects


class ObjectStore:
    """For one thread at a time; any number of processes may have the same store open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # Each is needed several times a snapshot, and making a path costs more than opening it.
        self._append_lock, self._use_lock = directory / "append.lock", directory / "use.lock"
        self._pointer = directory / "current"
        self._pending: dict[bytes, Record] = {}
        self._pending_size = 0
        self._large = LargeObjects(directory)
        self._files = Generation(directory, self._current())
        try:
            with self._appending():
                pass
        except BaseException:
            self._files.close()
            raise

    @classmethod
    def create(cls, directory: Path) -> ObjectStore:
        directory.mkdir(mode=0o700, parents=True)
        write_document(directory / "current", b"1\n", mode=0o600)
        return cls(directory)

    def close(self) -> None:
        try:
            if not self._files.synced or self._files.unsorted:
                with self._appending():
                    if not self._files.synced:
                        self._files.sync()
                    self._files.sort()
        finally:
            self._files.close()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._files or digest in self._pending

    def size(self, digest: bytes) -> int:
        pending = self._pending.get(digest)
        return len(pending[2]) if pending else self._files.size(digest)

    def get(self, digest: bytes) -> bytes:
        """The object's bytes. Raises WorkspaceCorrupt when they are missing or damaged."""
        pending = self._pending.get(digest)
        return pending[2] if pending else self._files.get(digest)

    def chunks(self, digest: bytes) -> Iterator[bytes]:
        """The object piece by piece; raises at the end when the pieces are not what the digest says."""
        return self._files.chunks(digest)

    def events(self, *, newest_first: bool = False, since: int = 0) -> Iterator[bytes]:
        """The events of all workspaces that share this store, but for the first `since`."""
        return self._files.events(newest_first=newest_first, since=since)

    @property
    def events_position(self) -> tuple[int, int]:
        """The generation, and how many events it has."""
        return self._files.number, self._files.event_count

    @property
    def position(self) -> tuple[int, int, int]:
        """What `still_has` understands: everything that was in the store when this was said."""
        return self._files.number, pack.this_boot(), self._files.index_end

    def still_has(self, position: tuple[int, int, int]) -> bool:
        """Whether all that was there is there. A collection takes objects, and a power cut may."""
        number, boot, end = position
        return number == self._files.number and boot == pack.this_boot() != 0 and end <= self._files.index_end

    @property
    def generation(self) -> int:
        """Changes when objects may have gone."""
        return self._files.number

    @contextmanager
    def use(self) -> Iterator[None]:
        """Around everything from the first object that is put to the event that needs it, and around restoring."""
        with locked(self._use_lock, shared=True):
            with self._appending():
                pass
            yield

    def put(self, kind: bytes, data: bytes) -> bytes:
        """Keep an object. It is written at the latest with the next event."""
        digest = hashlib.sha256(data).digest()
        if digest not in self:
            self._pending[digest] = (kind, digest, data)
            self._pending_size += len(data)
            if self._pending_size >= LARGE:
                self._write(())
        return digest

    def put_stream(self, chunks: Iterable[bytes]) -> bytes:
        """Keep an object that is too large for memory. Others may write meanwhile."""
        digest, length = self._large.write(chunks)
        with self._appending():
            self._files.append_large(digest, length)
        return digest

    def large_file(self, digest: bytes) -> Path | None:
        """The file that holds an object, if it has one of its own."""
        return self._large.path(digest) if digest not in self._pending and self._files.is_large(digest) else None

    def commit(self, event: bytes, *, sync: bool = False) -> None:
        """Write what was put, and the event that needs it, in one step."""
        self._write([(pack.EVENT, hashlib.sha256(event).digest(), event)])
        if sync:
            self.sync()

    def flush(self) -> None:
        """Write what was put although no event needs it yet. Until one does, a collection may take it."""
        if self._pending:
            self._write(())

    def sync(self) -> None:
        with self._appending():
            self._files.sync()

    def make_durable(self) -> None:
        """Put on the disk what is not there yet."""
        if not self._files.synced:
            self.sync()

    def forget_pending(self) -> None:
        """Drop what was put for an event that is not going to come."""
        self._pending.clear()
        self._pending_size = 0

    def damage(self) -> list[str]:
        """Read everything again: what is wrong, or nothing."""
        with self.use():
            return self._files.damage()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While nobody is between an object and its event: for `keep_only`."""
        with locked(self._use_lock), self._appending():
            yield

    def keep_only(self, live: set[bytes], events: Iterable[bytes]) -> tuple[int, int]:
        """Write a new generation with these objects and events alone. How many objects and bytes are gone."""
        old = self._files
        for path in _generations(self.directory):
            if path not in old.paths:
                path.unlink()  # of a collection that was killed, before it or after
        fresh = Generation(self.directory, old.number + 1)
        batch: list[Record] = []
        size = 0
        for kind, digest, offset, length in old.entries():
            if kind == pack.EVENT or digest not in live or digest in fresh:
                continue
            if not offset:
                fresh.append_large(digest, length)
                continue
            batch.append((kind, digest, old.get(digest)))
            size += length
            if size >= LARGE:
                fresh.append(batch)
                batch, size = [], 0
        fresh.append([*batch, *((pack.EVENT, hashlib.sha256(event).digest(), event) for event in events)])
        fresh.sync()
        fresh.sort()
        write_document(self.directory / "current", b"%d\n" % fresh.number, mode=0o600)
        freed = old.bytes_used - fresh.bytes_used + self._large.keep_only(live)
        gone = (len(old) - len(fresh), freed)
        for path in old.paths:
            path.unlink(missing_ok=True)
        old.close()
        self._files = fresh
        return gone

    def _write(self, more: Iterable[Record]) -> None:
        with self._appending():
            self._files.append([*(each for each in self._pending.values() if each[1] not in self._files), *more])
        self.forget_pending()

    @contextmanager
    def _appending(self) -> Iterator[None]:
        with locked(self._append_lock):
            number = self._current()
            if number != self._files.number:
                self._files.close()
                self._files = Generation(self.directory, number)
            self._files.catch_up()
            yield

    def _current(self) -> int:
        try:
            text = self._pointer.read_bytes()
            number = int(text)
        except (OSError, ValueError) as error:
            raise WorkspaceCorrupt("the store doesn't say which of its files is current", op="store") from error
        if text != b"%d\n" % number or (number != 1 and not os.path.exists(f"{self.directory}/pack-{number}")):
            raise WorkspaceCorrupt(f"the store's generation {number} is not there", op="store")
        return number


def _generations(directory: Path) -> Iterator[Path]:
    for pattern in ("pack-*", "index-*", "lookup.*"):
        yield from directory.glob(pattern)
