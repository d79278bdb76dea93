"""Content by digest, and the events of all workspaces that share the store. `pack` describes the file formats.

A store is a directory: `current` names the generation, `pack-N`, `index-N` and `lookup.N` are its files, and `large/`
holds objects that are too large for a pack. `gc` writes a new generation and updates `current`; a process with the old
one open notices this at its next use. `append.lock` is held while writing. `use.lock` is held shared from the first
write of an object until the event that references it is written. `gc` takes it exclusively, and so never sees objects
whose event is still missing.

Data is synced only on request: killing a process loses nothing, and after a power failure the store is in the last
synced state or a later one. Sealed snapshots, named references and `close` sync the store.
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
    """An object store. Not thread-safe; any number of processes may open the same store."""

    def __init__(self, directory: Path, files: Generation | None = None) -> None:
        """`files` is the current generation, if it is open already."""
        self.directory = directory
        # Used several times per snapshot; building a path costs more than opening the file.
        self._append_lock, self._use_lock = directory / "append.lock", directory / "use.lock"
        self._pointer = f"{directory}/current"
        self._pending: dict[bytes, Record] = {}
        self._pending_size = 0
        self._large = LargeObjects(directory)
        if files is not None:
            self._files = files
            return
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

    def duplicate(self) -> ObjectStore:
        """Return another object for the same store, without reading again what this one knows of it."""
        return ObjectStore(self.directory, self._files.duplicate())

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

    def __len__(self) -> int:
        """Return the number of objects that are written."""
        return len(self._files)

    def size(self, digest: bytes) -> int:
        pending = self._pending.get(digest)
        return len(pending[2]) if pending else self._files.size(digest)

    def get(self, digest: bytes) -> bytes:
        """Return the object's bytes. Raises WorkspaceCorrupt if they are missing or damaged."""
        pending = self._pending.get(digest)
        return pending[2] if pending else self._files.get(digest)

    def chunks(self, digest: bytes) -> Iterator[bytes]:
        """Yield the object in chunks. Raises at the end if the content does not match the digest."""
        return self._files.chunks(digest)

    def events(self, *, newest_first: bool = False, since: int = 0) -> Iterator[bytes]:
        """Yield the events of all workspaces that share this store, skipping the first `since`."""
        return self._files.events(newest_first=newest_first, since=since)

    @property
    def events_position(self) -> tuple[int, int]:
        """Return the generation and its number of events."""
        return self._files.number, self._files.event_count

    @property
    def position(self) -> tuple[int, int, int]:
        """Return a token for `still_has` that stands for everything stored now."""
        return self._files.number, pack.this_boot(), self._files.index_end

    def still_has(self, position: tuple[int, int, int]) -> bool:
        """Return whether everything stored at `position` is still there. `gc` and power failures may remove objects."""
        number, boot, end = position
        return number == self._files.number and boot == pack.this_boot() != 0 and end <= self._files.index_end

    @property
    def generation(self) -> int:
        """A number that changes when objects may have been removed."""
        return self._files.number

    @contextmanager
    def use(self) -> Iterator[None]:
        """Hold this from the first `put` until the event that references the object, and while restoring files."""
        with locked(self._use_lock, shared=True):
            with self._appending():
                pass
            yield

    def put(self, kind: bytes, data: bytes) -> bytes:
        """Add an object. It is written no later than the next event."""
        digest = hashlib.sha256(data).digest()
        if digest not in self:
            self._pending[digest] = (kind, digest, data)
            self._pending_size += len(data)
            if self._pending_size >= LARGE:
                self._write(())
        return digest

    def put_stream(self, chunks: Iterable[bytes]) -> bytes:
        """Add an object that is too large for memory. Other processes may write in the meantime."""
        digest, length = self._large.write(chunks)
        with self._appending():
            self._files.append_large(digest, length)
        return digest

    def large_file(self, digest: bytes) -> Path | None:
        """Return the file that holds an object if it is stored separately."""
        return self._large.path(digest) if digest not in self._pending and self._files.is_large(digest) else None

    def tables(self) -> list[bytes]:
        """Return where the objects are in the file `pack_fd`, as `treewrite` reads it."""
        return self._files.tables()

    @property
    def pack_fd(self) -> int:
        """The descriptor of the file with the objects. Its content has to be checked; see `get`."""
        return self._files.pack_fd

    def commit(self, event: bytes, *, sync: bool = False) -> None:
        """Write the pending objects and the event that references them in one step."""
        self._write([(pack.EVENT, hashlib.sha256(event).digest(), event)], sync=sync)

    def flush(self) -> None:
        """Write the pending objects before their event. Until the event is written, `gc` may remove them."""
        if self._pending:
            self._write(())

    def sync(self) -> None:
        with self._appending():
            self._files.sync()

    def make_durable(self) -> None:
        """Sync everything that is not on disk yet."""
        if not self._files.synced:
            self.sync()

    def forget_pending(self) -> None:
        """Discard pending objects whose event will not be written."""
        self._pending.clear()
        self._pending_size = 0

    def damage(self) -> list[str]:
        """Read everything again, and return the problems found."""
        with self.use():
            return self._files.damage()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Exclude all users of `use()`: required for `keep_only`."""
        with locked(self._use_lock), self._appending():
            yield

    def keep_only(self, live: set[bytes], events: Iterable[bytes]) -> tuple[int, int]:
        """Write a new generation with only these objects and events. Return the number of removed objects and bytes."""
        old = self._files
        for path in _generations(self.directory):
            if path not in old.paths:
                path.unlink()  # left by an earlier collection that was killed
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
        removed = (len(old) - len(fresh), freed)
        for path in old.paths:
            path.unlink(missing_ok=True)
        old.close()
        self._files = fresh
        return removed

    def _write(self, more: Iterable[Record], *, sync: bool = False) -> None:
        with self._appending():
            self._files.append([*(each for each in self._pending.values() if each[1] not in self._files), *more])
            self.forget_pending()
            if sync:
                self._files.sync()

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
            text = _read_short(self._pointer)
            number = int(text)
        except (OSError, ValueError) as error:
            raise WorkspaceCorrupt("the store's `current` file is missing or malformed", op="store") from error
        if text != b"%d\n" % number or (number != 1 and not os.path.exists(f"{self.directory}/pack-{number}")):
            raise WorkspaceCorrupt(f"the files of the store's generation {number} are missing", op="store")
        return number


def _read_short(path: str) -> bytes:
    """Read a file of one line. It is read before every write, and a file object costs more than the read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 64)
    finally:
        os.close(fd)


def _generations(directory: Path) -> Iterator[Path]:
    for pattern in ("pack-*", "index-*", "lookup.*"):
        yield from directory.glob(pattern)
