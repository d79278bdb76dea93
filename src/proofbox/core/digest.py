"""SHA-256, the only digest in stored documents, always as 64 lower-case hexadecimal digits.

SHA-256 is not the fastest, but every auditor has it: `sha256sum` gives the recorded digests.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from typing import Any

from proofbox.core.canonical import canonical_bytes

_CHUNK = 1 << 18


def sha256_hex(data: bytes | bytearray | memoryview) -> str:
    """Return the digest of bytes in memory."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(
    source: str | os.PathLike[str] | int, *, limit: int | None = None, info: os.stat_result | None = None
) -> tuple[str, int]:
    """Return the digest and size of a regular file, read in chunks. `source` is a path or an open descriptor.

    With `limit`, at most one byte beyond it is read: a returned size above the limit means that the file is larger.
    `info` is the status of an open descriptor, if it is known already.

    The size is the number of bytes hashed, so the pair is consistent even while the file grows. Of a file that grows,
    at most one byte beyond its first size is read, so that a writer can't keep the reader busy forever. A descriptor is
    read from the start without changing its position, so two threads can share one. Anything but a regular file raises
    OSError (EINVAL): a FIFO left behind by an agent must not block the reader.
    """
    if isinstance(source, int):
        return _hash_descriptor(source, limit, info or os.fstat(source))
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return _hash_descriptor(fd, limit, os.fstat(fd))
    except OSError as error:
        error.filename = os.fspath(source)
        raise
    finally:
        os.close(fd)


def _hash_descriptor(fd: int, limit: int | None, info: os.stat_result) -> tuple[str, int]:
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    digest = hashlib.sha256()
    size = 0
    # Request no more than the file's size: allocating a whole chunk for each small file costs more than hashing it. The
    # one extra byte detects a file that has grown.
    most = info.st_size if limit is None else min(info.st_size, limit)
    while chunk := os.pread(fd, asked := min(_CHUNK, max(0, most - size) + 1), size):
        digest.update(chunk)
        size += len(chunk)
        if size > most or (size == most and len(chunk) < asked):  # it has grown, or ends here
            break
    return digest.hexdigest(), size


def digest_of(value: Any) -> str:
    """Return the digest of a JSON value's canonical bytes; key order and white space don't matter."""
    return sha256_hex(canonical_bytes(value))
