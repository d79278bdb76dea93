"""Objects larger than LARGE bytes, each in a separate file, so that writing one does not block writers to the pack.

They are stored as `large/<digest>` next to the pack, with runs of zeros as holes. An index entry at offset 0 marks a
large object as valid. The file is synced and renamed into place before its entry is written.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from proofbox.core.files.atomic import TEMPORARY_PREFIX, sync_directory

LARGE = 8 << 20
"""Larger objects are streamed. Also the amount of data that is buffered before a write."""
_CHUNK = 1 << 20


class LargeObjects:
    def __init__(self, store: Path) -> None:
        self._directory = store / "large"

    def path(self, digest: bytes) -> Path:
        return self._directory / digest.hex()

    def write(self, chunks: Iterable[bytes]) -> tuple[bytes, int]:
        """Write an object. Return its digest and length."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        temporary = self._directory / (TEMPORARY_PREFIX + os.urandom(8).hex())
        found = hashlib.sha256()
        out = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            length = write_sparse(out, _hashed(chunks, found))
            os.fsync(out)
            temporary.rename(self.path(found.digest()))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(out)
        sync_directory(self._directory)
        return found.digest(), length

    def chunks(self, digest: bytes) -> Iterator[bytes]:
        """Yield the object in chunks, or nothing if the file does not exist."""
        try:
            with self.path(digest).open("rb", buffering=0) as file:
                while chunk := file.read(_CHUNK):
                    yield chunk
        except FileNotFoundError:
            return

    def keep_only(self, live: set[bytes]) -> int:
        """Remove all other files, and leftovers of killed writers. No writer may be active. Return the bytes freed."""
        freed = 0
        for path in self._directory.iterdir() if self._directory.exists() else ():
            if path.name.startswith(TEMPORARY_PREFIX) or bytes.fromhex(path.name) not in live:
                freed += path.stat().st_blocks * 512
                path.unlink()
        return freed


def chunks_of(fd: int, most: int) -> Iterator[bytes]:
    """Yield the content of a file that may be growing. Reads at most one chunk beyond `most` bytes."""
    position = 0
    while position <= most and (chunk := os.pread(fd, _CHUNK, position)):
        position += len(chunk)
        yield chunk


def write_sparse(out: int, chunks: Iterable[bytes]) -> int:
    """Write to a new file, with holes for runs of zeros. Return its length."""
    for chunk in chunks:
        if not any(chunk):
            os.lseek(out, len(chunk), os.SEEK_CUR)
            continue
        view = memoryview(chunk)
        while view:
            view = view[os.write(out, view) :]
    length = os.lseek(out, 0, os.SEEK_CUR)
    os.ftruncate(out, length)
    return length


def _hashed(chunks: Iterable[bytes], into: hashlib._Hash) -> Iterator[bytes]:
    for chunk in chunks:
        into.update(chunk)
        yield chunk
