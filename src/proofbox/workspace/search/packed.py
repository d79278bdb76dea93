"""A packed copy of the text below a directory, for searches that would otherwise open every file.

The scanner of snapshots keeps it up to date: it decides which files are unchanged by their times, and reads the others
(`scanning/scanner.py`). Where it would keep the digest of a file, it keeps the number of the file's text in the copy.
The copy is in unnamed files, which end with the process and which no other program can open by a path. Replaced text
stays in it until the copy is recreated.

A search of the copy finds candidates only. They are read again and matched through the caller's own descriptors, so an
outdated or damaged copy never adds a line to a result.
"""

from __future__ import annotations

import errno
import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from tempfile import TemporaryFile

from proofbox.core.clock import Clock
from proofbox.core.dirs import cache_dir
from proofbox.core.files.nofollow import opened_directory
from proofbox.errors import UsageError
from proofbox.workspace.scanning.ignore import Ignore
from proofbox.workspace.scanning.scanner import Scanner
from proofbox.workspace.scanning.writeback import protects_on_writeback
from proofbox.workspace.search.finder import MAX_FILE_SIZE, is_text
from proofbox.workspace.store import pack
from proofbox.workspace.tree import Directory

MAX_SIZE = 1 << 29
"""The maximum number of bytes in a copy."""
MIN_FREE = 4 << 30
"""The copy is not made on a file system with less free space."""
_MOST_SHARDS = 8
_BLOCK = 1 << 20
"""The unit that is divided between the shards."""
_MOST_LINES = 50_000
"""With more matching lines in a shard, the copy does not save time."""
_NUMBER = struct.Struct("<Q24x")
_NO_TEXT = _NUMBER.pack(0)
_NEVER_MATCHES = frozenset(
    {os.strerror(errno.EACCES), "not a file, directory or symbolic link", f"larger than {MAX_FILE_SIZE} bytes"}
)
"""Reasons to skip a file that no search would read either."""


class PackingStopped(Exception):
    """The copy can't be brought up to date: it takes too long, is too large, or can't be written."""


FindOffsets = Callable[[list[int], int], list[list[int]] | None]
"""Returns for each open file the offsets of the first matching lines, at most as many as given; None on failure."""


class PackedTree:
    """The packed text below a directory. Close it after use."""

    def __init__(self, root: str, ignore: Ignore, clock: Clock) -> None:
        """Raises PackingStopped if the file system does not support a copy, or has no room for it."""
        self._directory = Directory()
        self._first_steps = 0
        with opened_directory(root, None) as fd:
            if not protects_on_writeback(fd):
                raise PackingStopped("every scan of this file system reads every file")
        self._text = _PackedText(clock)
        self._scanner = Scanner(root, self._text, ignore, max_file_size=MAX_FILE_SIZE)

    def close(self) -> None:
        self._text.close()

    def update(self, end: float) -> float:
        """Add the files that changed. Return the work, as a part of that of the first call.

        Raises OSError, and PackingStopped, at the latest at the time `end`.
        Close it after an error: it may have missed changes.
        """
        self._text.end = end
        self._scanner.all(self._directory)
        self._text.flush()
        reasons = {reason for reason in self._scanner.skipped.values() if reason not in _NEVER_MATCHES}
        if reasons:  # for example, a directory that is too deep for the scanner
            raise PackingStopped(reasons.pop())
        self._first_steps = self._first_steps or self._scanner.steps
        return self._scanner.steps / max(1, self._first_steps)

    def candidates(self, find: FindOffsets, top: str) -> list[str] | None:
        """Return the files below `top` that may match, or None if only a search of all files can tell.

        Raises PackingStopped if `find` fails.
        """
        below = self._directory
        for name in top.split("/") if top else ():
            if name not in below.dirs:
                return None
            below = below.dirs[name]
        numbers = self._text.numbers(find)
        if numbers is None:
            return None
        return [*_paths(below, top, numbers), *self._scanner.unstable]


def _paths(below: Directory, top: str, numbers: set[tuple[bytes]]) -> Iterator[str]:
    for folder, each in below.walk(top) if numbers else ():
        for name in each.with_digests(numbers):
            yield f"{folder}/{name}" if folder else name


class _Shard:
    """A part of the copy: a file, where each text in it begins, and the numbers of the texts."""

    def __init__(self) -> None:
        self.file = TemporaryFile("wb", buffering=_BLOCK, dir=cache_dir())  # noqa: SIM115
        self.begins = array("Q")
        self.numbers = array("Q")
        self._size = 0

    def add(self, number: int, text: bytes) -> None:
        self.begins.append(self._size)
        self.numbers.append(number)
        self._size += self.file.write(text)
        if not text.endswith(b"\n"):
            self._size += self.file.write(b"\n")


class _PackedText:
    """Stores text for the scanner, in several files, so that ripgrep searches them in parallel."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0
        self._size = 0
        self.end = 0.0
        self._shards: list[_Shard] = []
        try:
            for _ in range(max(1, min(_MOST_SHARDS, os.cpu_count() or 1))):
                self._shards.append(_Shard())
            free = os.fstatvfs(self._shards[0].file.fileno())
        except (OSError, UsageError) as error:
            self.close()
            raise PackingStopped(str(error)) from None
        if free.f_bavail * free.f_frsize < MIN_FREE:
            self.close()
            raise PackingStopped("the disk is almost full")

    def close(self) -> None:
        for shard in self._shards:
            shard.file.close()

    def __contains__(self, digest: bytes) -> bool:
        return False

    def put(self, kind: bytes, data: bytes) -> bytes:
        """Add the text of a file. Return its number in place of its digest."""
        if self._clock.monotonic() > self.end:
            raise PackingStopped("it takes too long")
        if kind != pack.BLOB or not is_text(data):
            return _NO_TEXT
        if self._size + len(data) >= MAX_SIZE:
            raise PackingStopped("it is too large")
        self._count += 1
        shard = self._shards[self._size // _BLOCK % len(self._shards)]
        try:
            shard.add(self._count, data)
        except OSError as error:  # the scanner would only skip this file
            raise PackingStopped(str(error)) from None
        self._size += len(data) + 1
        return _NUMBER.pack(self._count)

    def put_stream(self, chunks: Iterable[bytes]) -> bytes:
        return self.put(pack.BLOB, b"".join(chunks))

    def flush(self) -> None:
        for shard in self._shards:
            shard.file.flush()

    def numbers(self, find: FindOffsets) -> set[tuple[bytes]] | None:
        """Return the numbers of the texts with a match, as `Directory.with_digests` takes them."""
        found = find([shard.file.fileno() for shard in self._shards], _MOST_LINES)
        if found is None:
            raise PackingStopped("it can't be searched")
        if any(len(offsets) == _MOST_LINES for offsets in found):
            return None
        return {
            (_NUMBER.pack(shard.numbers[bisect_right(shard.begins, offset) - 1]),)
            for shard, offsets in zip(self._shards, found, strict=True)
            for offset in offsets
        }
