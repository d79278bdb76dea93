r"""The store's two append-only files: a pack of records, and the index that says which of them are valid.

    pack    record*   record = kind[1] digest[32] length[8] crc32[4] payload
    index   batch*    batch  = "PBIX" flags[1] boot[4] count[4] pack_end[8] entries_crc32[4] crc32[4] entry*
                      entry  = kind[1] digest[32] offset[8] length[8]

Numbers are little-endian. A record's kind is `b` (bytes of a file or link), `t` (a tree) or `e` (an event of a
workspace, in JSON). Its digest is the SHA-256 of the payload, and its crc32 covers the 41 bytes before it. The offset
in an entry points to the payload; offset 0 marks a large object, which has a separate file (`large_objects`). A batch's
crc32 covers the 25 bytes before it. If that crc32 is correct, a batch that extends past the end of the index is an
unfinished write and not a damaged count.

A writer takes the append lock and writes records, then one batch. Records that the index does not cover are ignored,
and the next writer truncates them. A writer killed at any point therefore leaves the old state or the new one.

Power failures: a batch that was not synced contains the id of the boot it was written in. After a reboot its records
are read again and checked. If a digest does not match, that batch and all later ones are dropped, which restores an
earlier state. A batch with the flag SYNCED states that everything before it has reached the disk. In all other cases a
record or batch that does not match its digest is corruption, which is reported and never repaired by dropping it.
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
"""Kind, digest, offset and length. A plain tuple for speed: every open may read an index of 100,000 entries."""


class Batch(NamedTuple):
    flags: int
    boot: int
    pack_end: int
    entries: list[Entry]


@functools.cache
def this_boot() -> int:
    """Return a number that identifies the current boot, or 0, which matches no boot, if the kernel provides no id."""
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
    """Yield each complete batch of an index and its end position. Skips an unfinished batch at the end."""
    position = 0
    while position + _BATCH.size <= len(data):
        magic, flags, boot, count, pack_end, body_crc, crc = _BATCH.unpack_from(data, position)
        body = position + _BATCH.size
        end = body + count * _ENTRY.size
        if magic != _MAGIC or zlib.crc32(data[position : body - 4]) != crc:
            if not any(data[position:]):
                return  # unwritten space after a power failure
            raise WorkspaceCorrupt(f"the index is damaged at byte {position}", op="store")
        if end > len(data):
            return
        if zlib.crc32(data[body:end]) != body_crc:
            raise WorkspaceCorrupt(f"the index is damaged between bytes {body} and {end}", op="store")
        yield Batch(flags, boot, pack_end, list(_ENTRY.iter_unpack(data[body:end]))), end
        position = end


def check_record(pack: int, large: LargeObjects, entry: Entry) -> str:
    """Read one record again. Return a problem, or an empty string if it matches the index and its digest."""
    kind, digest, offset, length = entry
    if offset and os.pread(pack, _RECORD.size, offset - _RECORD.size) != record_header(kind, digest, length):
        return "its header is damaged"
    found, position = hashlib.sha256(), 0
    for chunk in read(pack, large, entry):
        found.update(chunk)
        position += len(chunk)
    if position != length:
        return "it is truncated" if position < length else "it is too long"
    return "" if found.digest() == digest else "its content does not match its digest"


def read(pack: int, large: LargeObjects, entry: Entry) -> Iterator[bytes]:
    """Yield a record's payload in chunks, unchecked. Yields less than the full length if data is missing."""
    _, digest, offset, length = entry
    if not offset:
        yield from large.chunks(digest)
        return
    for start in range(offset, offset + length, _CHUNK):
        chunk = os.pread(pack, min(_CHUNK, offset + length - start), start)
        if not chunk:
            return
        yield chunk
