"""A sorted table of the objects in a pack, so that opening a store does not read the whole index into memory.

    lookup.N   "PBLK" index_end[8] pack_end[8] objects[8] events[8] crc32[4] fan[4 × 65537] object* event*
               object, event = digest[32] offset[8] length[8]

The table is derived from the index up to `index_end`, and rebuilt if it is missing or its crc32 does not match. It only
covers synced data. Objects are sorted by digest; `fan` gives the position of the first object for each possible value
of the first two bytes. Events keep their order.
"""

from __future__ import annotations

import itertools
import os
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

_MAGIC = b"PBLK"
_HEAD = struct.Struct("<4sQQQQI")
_ITEM = struct.Struct("<32sQQ")
_FAN = 1 << 16
_FAN_BYTES = 4 * (_FAN + 1)

Item = tuple[bytes, int, int]
"""Digest, offset and length."""


class Lookup:
    """An immutable table. Empty for a pack without a table."""

    def __init__(self, data: bytes = b"") -> None:
        self.index_end = self.pack_end = self._count = 0
        self.data = data
        if data:
            _, self.index_end, self.pack_end, self._count, _, _ = _HEAD.unpack_from(data)
            self._fan = memoryview(data)[_HEAD.size : _HEAD.size + _FAN_BYTES].cast("I")
        self._body = _HEAD.size + _FAN_BYTES

    @classmethod
    def read(cls, path: Path) -> Lookup:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return cls()
        if len(data) < _HEAD.size + _FAN_BYTES:
            return cls()
        magic, *_, objects, events, crc = _HEAD.unpack_from(data)
        whole = _HEAD.size + _FAN_BYTES + (objects + events) * _ITEM.size == len(data)
        if magic != _MAGIC or not whole or _crc(data) != crc:
            return cls()
        return cls(data)

    def __len__(self) -> int:
        return self._count

    def find(self, digest: bytes) -> tuple[int, int] | None:
        """Return the offset and length."""
        if not self._count:
            return None
        first = digest[0] << 8 | digest[1]
        start = self._body + self._fan[first] * _ITEM.size
        end = self._body + self._fan[first + 1] * _ITEM.size
        data = self.data
        while start < end:
            if data[start : start + 32] == digest:
                found: tuple[int, int] = _ITEM.unpack_from(data, start)[1:]
                return found
            start += _ITEM.size
        return None

    def items(self) -> Iterator[Item]:
        return _ITEM.iter_unpack(memoryview(self.data)[self._body : self._body + self._count * _ITEM.size])

    def events(self) -> Iterator[Item]:
        return _ITEM.iter_unpack(memoryview(self.data)[self._body + self._count * _ITEM.size :])

    @classmethod
    def of(cls, index_end: int, pack_end: int, objects: Iterable[Item], events: Iterable[Item]) -> Lookup:
        rows = sorted([_ITEM.pack(*each) for each in objects])
        counts = array("I", bytes(_FAN_BYTES))
        for row in rows:
            counts[(row[0] << 8 | row[1]) + 1] += 1
        fan = array("I", itertools.accumulate(counts))
        more = [_ITEM.pack(*each) for each in events]
        head = _HEAD.pack(_MAGIC, index_end, pack_end, len(rows), len(more), 0)
        data = b"".join([head, fan.tobytes(), *rows, *more])
        return cls(data[: _HEAD.size - 4] + _crc(data).to_bytes(4, "little") + data[_HEAD.size :])

    def write(self, path: Path) -> None:
        """Write the table without syncing it: a table that a power failure left damaged fails its checksum."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
        temporary.write_bytes(self.data)
        temporary.replace(path)


def _crc(data: bytes) -> int:
    view = memoryview(data)
    return zlib.crc32(view[_HEAD.size :], zlib.crc32(view[: _HEAD.size - 4]))
