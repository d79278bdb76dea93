r"""The store's two files: a pack of records, and the index that says which of them count. Both only ever grow.

    pack    record*   record = kind[1] digest[32] length[8] crc32[4] payload
    index   batch*    batch  = "PBIX" flags[1] boot[4] count[4] pack_end[8] entries_crc32[4] crc32[4] entry*
                      entry  = kind[1] digest[32] offset[8] length[8]

Numbers are little-endian. A record's kind is `b` (a file's or link's bytes), `t` (a tree) or `e` (an event of some
workspace, JSON); its digest is the SHA-256 of the payload, its crc32 that of the 41 bytes before it. An entry's offset
is that of the payload; an entry at offset 0 is of a large object, which is a file of its own (`large`). A batch's crc32
covers the 25 bytes before it; with it right, a batch that ends past the end of the index is an unfinished write and not
a damaged count.

A writer, holding the append lock, writes records, then one batch. What the index doesn't cover doesn't exist: the next
writer cuts it off. So killed at any instant, a writer leaves the old state or the new one.

Power cuts. A batch that was not synced bears the boot it was written in. After another boot its records are read again
and compared with their digests, and it is dropped with all that follow where they differ: an earlier state. A batch
with the flag SYNCED says that everything before it has reached the disk. In any other case a record or batch that is
not what its digest says is corruption, which is reported and never repaired by dropping it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from proofbox.errors import WorkspaceCorrupt
from proofbox.workspace.store.large_objects import LargeObjects

BLOB, TREE, EVENT = b"b", b"t", b"e"
SYNCED = 1
_MAGIC = b"PBIX"
_RECORD = struct.Struct("<c32sQI")
_BATCH = struct.Struct("<4sBIIQII")
_ENTRY = struct.Struct("<c32sQQ")
_CHUNK = 1 << 20


Entry = tuple[bytes, bytes, int, int]
"""Kind, digest, offset and length. A plain tuple, because an index of 100,000 is read in one go at every open."""


class Batch(NamedTuple):
    flags: int
    boot: int
    pack_end: int
    entries: list[Entry]


@functools.cache
def this_boot() -> int:
    """A number for the time since the machine started; 0, which equals no boot, where the kernel doesn't tell."""
    try:
        return zlib.crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes())
    except OSError:
        return 0


def record_header(kind: bytes, digest: bytes, length: int) -> bytes:
    head = _RECORD.pack(kind, digest, length, 0)[:-4]
    return head + zlib.crc32(head).to_bytes(4, "little")


RECORD_HEADER_SIZE = _RECORD.size


def encode_batch(batch: Batch) -> bytes:
    body = b"".join([_ENTRY.pack(*entry) for entry in batch.entries])
    head = _BATCH.pack(_MAGIC, batch.flags, batch.boot, len(batch.entries), batch.pack_end, zlib.crc32(body), 0)[:-4]
    return head + zlib.crc32(head).to_bytes(4, "little") + body


def decode_batches(data: bytes) -> Iterator[tuple[Batch, int]]:
    """Each whole batch of an index, and where it ends. An unfinished one at the end is passed over."""
    position = 0
    while position + _BATCH.size <= len(data):
        magic, flags, boot, count, pack_end, body_crc, crc = _BATCH.unpack_from(data, position)
        body = position + _BATCH.size
        end = body + count * _ENTRY.size
        if magic != _MAGIC or zlib.crc32(data[position : body - 4]) != crc:
            if not any(data[position:]):
                return  # space that a power cut left unwritten
            raise WorkspaceCorrupt(f"the index is damaged at byte {position}", op="store")
        if end > len(data):
            return
        if zlib.crc32(data[body:end]) != body_crc:
            raise WorkspaceCorrupt(f"the index is damaged between bytes {body} and {end}", op="store")
        yield Batch(flags, boot, pack_end, list(_ENTRY.iter_unpack(data[body:end]))), end
        position = end


def check_record(pack: int, large: LargeObjects, entry: Entry) -> str:
    """Read one record again: empty if it is what the index and its digest say, else what is wrong."""
    kind, digest, offset, length = entry
    if offset and os.pread(pack, _RECORD.size, offset - _RECORD.size) != record_header(kind, digest, length):
        return "its header is damaged"
    found, position = hashlib.sha256(), 0
    for chunk in read(pack, large, entry):
        found.update(chunk)
        position += len(chunk)
    if position != length:
        return "it is cut short" if position < length else "it is too long"
    return "" if found.digest() == digest else "its content is not what its digest says"


def read(pack: int, large: LargeObjects, entry: Entry) -> Iterator[bytes]:
    """A record's payload, piece by piece, as it is; less than it should be where something is missing."""
    _, digest, offset, length = entry
    if not offset:
        yield from large.chunks(digest)
        return
    for start in range(offset, offset + length, _CHUNK):
        chunk = os.pread(pack, min(_CHUNK, offset + length - start), start)
        if not chunk:
            return
        yield chunk
