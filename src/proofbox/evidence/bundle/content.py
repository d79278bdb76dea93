"""Write the bytes of artifacts to disk, hashing them and searching them for secrets."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from proofbox.core.files.atomic import sync_directory
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import NotFoundError, UsageError
from proofbox.evidence.bundle.paths import above, shown
from proofbox.evidence.pool import in_threads
from proofbox.evidence.secrets import SecretScan

_CHUNK = 1 << 20
_SYNCING = 16
_SYNCED_IN_TURN = 8
"""Files that one thread syncs: starting a thread takes longer than the second sync of a journal commit."""
_Path = str | os.PathLike[str]


class ContentMeter:
    """Measures size and digest of a stream, and detects exact secrets of the redactor."""

    def __init__(self, redactor: Redactor | None) -> None:
        self._digest = hashlib.sha256()
        self._scan = SecretScan(redactor) if redactor is not None else None
        self.size = 0

    def feed(self, piece: bytes) -> None:
        self._digest.update(piece)
        self.size += len(piece)
        if self._scan is not None:
            self._scan.feed(piece)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    @property
    def secret(self) -> bool:
        return self._scan is not None and self._scan.found


def write_new(target: str, pieces: Iterable[bytes], redactor: Redactor | None) -> ContentMeter:
    """Write the pieces to a new file. On failure the file is removed."""
    meter = ContentMeter(redactor)
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with open(fd, "wb", buffering=0) as stream:
            for piece in pieces:
                meter.feed(piece)
                view = memoryview(piece)
                while view:
                    view = view[stream.write(view) or 0 :]
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(target)
        raise
    return meter


def read_again(path: Path, redactor: Redactor | None, keep: int = 0) -> tuple[ContentMeter, bytes]:
    """Measure an existing file. Also return its bytes if there are at most `keep`."""
    meter = ContentMeter(redactor)
    kept = b""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as stream:
        for piece in _pieces(stream):
            meter.feed(piece)
            if meter.size <= keep:
                kept += piece
    return meter, kept


@contextlib.contextmanager
def pieces_of(source: _Path | BinaryIO) -> Iterator[Iterator[bytes]]:
    """Yield the pieces of a file, or of the rest of a binary stream."""
    if not isinstance(source, str | os.PathLike):
        yield _pieces(source)
        return
    try:
        # Not O_NOFOLLOW: the caller chose this file. O_NONBLOCK: a FIFO must not block the run.
        fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NotFoundError(
            f"{shown(os.fspath(source))} can't be read: {error.strerror}",
            op="bundle add_file",
            fix_hints=["check the path"],
        ) from error
    with open(fd, "rb", buffering=0) as stream:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UsageError(f"{shown(os.fspath(source))} is not a regular file", op="bundle add_file")
        yield _pieces(stream)


def sync_all(root: Path, paths: Iterable[str]) -> None:
    """Sync every file and all of its parent directories to disk."""
    files = list(paths)
    # Syncs wait for the disk, not for a core, and concurrent syncs share a journal commit.
    in_threads(lambda path: _sync_file(root / path), files, threads=_SYNCING, batch=_SYNCED_IN_TURN)
    directories = {os.path.dirname(path) for path in files}
    for directory in sorted({"", *directories, *(place for each in directories for place in above(each))}):
        sync_directory(root / directory)


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    while piece := stream.read(_CHUNK):
        yield piece


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
