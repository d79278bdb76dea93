"""An open pack with its index in memory. `pack` describes the file formats."""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from proofbox.errors import WorkspaceCorrupt
from proofbox.workspace.store import pack
from proofbox.workspace.store.large_objects import LargeObjects
from proofbox.workspace.store.lookup import Lookup

_UNSORTED = 4096
_SMALL = 1 << 20
_OFFSET_BITS = 64
_OFFSET = (1 << _OFFSET_BITS) - 1
_TABLES = struct.Struct("=QQ")

Record = tuple[bytes, bytes, bytes]
"""Kind, digest, payload."""


class Generation:
    """One generation of the store. Before calling a method that writes, take the append lock and call `catch_up`."""

    def __init__(self, directory: Path, number: int) -> None:
        self.number = number
        self.paths = (directory / f"pack-{number}", directory / f"index-{number}", directory / f"lookup.{number}")
        self._large = LargeObjects(directory)
        self._lookup = Lookup.read(self.paths[2])
        # Objects added later. Offset and length share one integer: 100,000 tuples would take ten times the memory.
        self._places: dict[bytes, int] = {}
        self._events = [(digest, _packed(offset, length)) for digest, offset, length in self._lookup.events()]
        self._end, self._index_end = self._lookup.pack_end, self._lookup.index_end
        self.synced = True
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._pack, self._index = (os.open(path, flags, 0o600) for path in self.paths[:2])
        if os.fstat(self._index).st_size < self._index_end:  # a different index: indexes never lose synced data
            self._lookup, self._events, self._end, self._index_end = Lookup(), [], 0, 0

    def duplicate(self) -> Generation:
        """Return a second object for the same files, with everything that this one has read of them."""
        other = copy.copy(self)
        other._places, other._events = self._places.copy(), self._events.copy()
        other._pack = os.dup(self._pack)
        try:
            other._index = os.dup(self._index)
        except BaseException:
            os.close(other._pack)
            raise
        return other

    def close(self) -> None:
        pack, index = self._pack, self._index
        self._pack = self._index = -1  # the descriptor numbers may be reused
        os.close(pack)
        os.close(index)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._places or self._lookup.find(digest) is not None

    def __len__(self) -> int:
        return len(self._places) + len(self._lookup)

    @property
    def bytes_used(self) -> int:
        return self._end + self._index_end

    @property
    def pack_fd(self) -> int:
        return self._pack

    def size(self, digest: bytes) -> int:
        return self.place(digest)[1]

    def is_large(self, digest: bytes) -> bool:
        """Return whether the object is stored in a separate file."""
        return self.place(digest)[0] == 0

    def get(self, digest: bytes) -> bytes:
        """Return the object's bytes after checking their digest. Damaged content is never returned."""
        offset, length = self.place(digest)
        if not offset or length > _SMALL:
            return b"".join(self._checked(digest, offset, length))
        data = os.pread(self._pack, length, offset)
        if hashlib.sha256(data).digest() != digest:
            raise _damaged(digest)
        return data

    def chunks(self, digest: bytes) -> Iterator[bytes]:
        """Yield the object in chunks. Raises at the end if the content does not match the digest."""
        offset, length = self.place(digest)
        yield from self._checked(digest, offset, length)

    @property
    def event_count(self) -> int:
        return len(self._events)

    @property
    def index_end(self) -> int:
        return self._index_end

    def events(self, *, newest_first: bool = False, since: int = 0) -> Iterator[bytes]:
        found = self._events[since:]
        for digest, place in found[::-1] if newest_first else found:
            yield b"".join(self._checked(digest, *_unpacked(place)))

    def _checked(self, digest: bytes, offset: int, length: int) -> Iterator[bytes]:
        found = hashlib.sha256()
        for chunk in pack.read(self._pack, self._large, (pack.BLOB, digest, offset, length)):
            found.update(chunk)
            yield chunk
        if found.digest() != digest:
            raise _damaged(digest)

    def place(self, digest: bytes) -> tuple[int, int]:
        """Return the object's offset in the pack, or 0 for a large object, and its length."""
        place = self._places.get(digest)
        found = self._lookup.find(digest) if place is None else _unpacked(place)
        if found is None:
            raise WorkspaceCorrupt(f"object {digest.hex()} is missing", op="store")
        return found

    def tables(self) -> list[bytes]:
        """Return the places of all objects for `treewrite`: the sorted table, and those of objects added later."""
        added = [digest + place.to_bytes(16, "little") for digest, place in self._places.items()]
        return [_TABLES.pack(len(self._lookup.data), len(added)), self._lookup.data, *added]

    # Writing

    def catch_up(self) -> None:
        """Read what other processes appended, and truncate an unfinished write of a killed process."""
        base, size = self._index_end, os.fstat(self._index).st_size
        if size != base:
            batches = list(pack.decode_batches(os.pread(self._index, size - base, base)))
            for batch, end in batches[: self._first_lost(batches)]:
                self._add_entries(batch, base + end)
            os.ftruncate(self._index, self._index_end)
        if os.fstat(self._pack).st_size > self._end:
            os.ftruncate(self._pack, self._end)

    def append(self, records: Iterable[Record]) -> None:
        """Write records, followed by the batch that makes them valid."""
        pieces: list[bytes] = []
        entries: list[pack.Entry] = []
        position = self._end
        for kind, digest, data in records:
            pieces += (pack.record_header(kind, digest, len(data)), data)
            entries.append((kind, digest, position + pack.RECORD_HEADER_SIZE, len(data)))
            position += pack.RECORD_HEADER_SIZE + len(data)
        _write_all(self._pack, b"".join(pieces), self._end)
        self._add_batch(pack.Batch(0, pack.this_boot(), position, entries))

    def append_large(self, digest: bytes, length: int) -> None:
        """Add the index entry of a large object whose file is already in place."""
        if digest not in self:
            self._add_batch(pack.Batch(0, pack.this_boot(), self._end, [(pack.BLOB, digest, 0, length)]))

    def sync(self) -> None:
        os.fdatasync(self._pack)
        self._add_batch(pack.Batch(pack.SYNCED, pack.this_boot(), self._end, []))
        os.fdatasync(self._index)
        self.synced = True

    @property
    def unsorted(self) -> bool:
        """Return whether many objects are missing from the lookup table."""
        return len(self._places) >= max(_UNSORTED, len(self._lookup) // 4)

    def sort(self) -> None:
        """Write a new lookup table of the synced objects if many are missing from the old one."""
        if not self.synced or not self.unsorted:
            return
        fresh = [(digest, *_unpacked(place)) for digest, place in self._places.items()]
        events = [(digest, *_unpacked(place)) for digest, place in self._events]
        objects = itertools.chain(self._lookup.items(), fresh)
        self._lookup = Lookup.of(self._index_end, self._end, objects, events)
        self._places.clear()
        self._lookup.write(self.paths[2])

    def entries(self) -> Iterator[pack.Entry]:
        """Yield every valid record, as listed in the index on disk."""
        for batch, _ in pack.decode_batches(os.pread(self._index, self._index_end, 0)):
            yield from batch.entries

    def damage(self) -> list[str]:
        """Read everything again, and return the problems found."""
        found = []
        expected = 0
        for entry in self.entries():
            if entry[2]:
                if entry[2] - pack.RECORD_HEADER_SIZE != expected:
                    found.append(f"the index points to byte {entry[2]}, where no record starts")
                expected = entry[2] + entry[3]
            if entry[0] != pack.EVENT and entry[1] not in self:
                found.append(f"record {entry[1].hex()} can't be found by its digest")
            if problem := pack.check_record(self._pack, self._large, entry):
                found.append(f"record {entry[1].hex()} at byte {entry[2]}: {problem}")
        return found

    def _add_batch(self, batch: pack.Batch) -> None:
        data = pack.encode_batch(batch)
        _write_all(self._index, data, self._index_end)
        self._add_entries(batch, self._index_end + len(data))

    def _add_entries(self, batch: pack.Batch, index_end: int) -> None:
        for kind, digest, offset, length in batch.entries:
            if kind == pack.EVENT:
                self._events.append((digest, _packed(offset, length)))
            elif digest not in self:
                self._places[digest] = _packed(offset, length)
        self._end = batch.pack_end
        self._index_end = index_end
        self.synced = bool(batch.flags & pack.SYNCED)

    def _first_lost(self, batches: list[tuple[pack.Batch, int]]) -> int:
        """Return the number of leading batches that are intact. All of them, except after a power failure."""
        boot = pack.this_boot()
        synced = max((place for place, (batch, _) in enumerate(batches) if batch.flags & pack.SYNCED), default=-1)
        for place in range(synced + 1, len(batches)):
            batch = batches[place][0]
            if (batch.boot != boot or not boot) and any(
                pack.check_record(self._pack, self._large, each) for each in batch.entries
            ):
                return place
        return len(batches)


def _damaged(digest: bytes) -> WorkspaceCorrupt:
    return WorkspaceCorrupt(f"object {digest.hex()} is damaged", op="store")


def _packed(offset: int, length: int) -> int:
    return length << _OFFSET_BITS | offset


def _unpacked(place: int) -> tuple[int, int]:
    return place & _OFFSET, place >> _OFFSET_BITS


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
