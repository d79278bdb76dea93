r"""The format of directory trees, and their ids.

A tree is the sorted list of a directory's entries, each written as

    <mode in octal> SP <name> NUL <32 bytes of SHA-256>

and its id is the SHA-256 of that list. The digest of an entry is the tree id of a directory, the SHA-256 of a file's
bytes (the same as `sha256sum`), or the SHA-256 of a symbolic link's target. Names are bytes, in byte order. The mode
holds the type and the permission bits. Two things are left out: the permissions of symbolic links, which mean nothing,
and the set-user-id and set-group-id bits of files, which would apply to the user who restores the file instead of the
user who set them. An empty directory is the empty tree.

A directory with more than PAGED entries is split into pages, so that a change costs one page instead of the whole list.
A page contains the entries whose names have the same CRC-32 modulo PAGES, encoded as above. The tree is then the list
of non-empty pages, each written as an entry of mode 1 whose name is the page's number in two hexadecimal digits.

Not part of a tree: owners, times, extended attributes, hard-link relationships, and the mode of the workspace's root.
In memory names are `str` as Python represents file names, with undecodable bytes as surrogate escapes.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

DIGEST_SIZE = 32
EMPTY_TREE = EMPTY_FILE = hashlib.sha256(b"").digest()
PAGED = 1024
PAGES = 256
PAGE_MODE = b"1"
UNSETTLED = -1
"""Used in place of a ctime: the file may change without its times changing, so read it again."""

_RECORD = struct.Struct("<I32sQqqQ")
RECORD_SIZE = _RECORD.size
_DIGEST_OF_RECORD = struct.Struct("<4x32s32x")
_CTIME_OF_RECORD = struct.Struct("<52xq8x")
_ROW = re.compile(rb"([1-7][0-7]{0,6}) ([^\0/]+)\0([\0-\xff]{32})")

_INT64 = 1 << 63

Record = tuple[int, bytes, int, int, int, int]
"""The fields of a `KnownFile` as a plain tuple."""
Row = tuple[bytes, bytes, bytes]
"""A stored entry: name, mode in octal, digest."""


class KnownFile(NamedTuple):
    """A file or symbolic link at the time its content was read."""

    mode: int
    digest: bytes
    size: int
    mtime_ns: int
    ctime_ns: int
    ino: int


def int64(time_ns: int) -> int:
    """Return a time as stored and compared: the lower 64 bits, because files may have times after the year 2262."""
    return time_ns if -_INT64 <= time_ns < _INT64 else (time_ns + _INT64) % (2 * _INT64) - _INT64


def times_of(info: os.stat_result) -> tuple[int, int, int, int]:
    """Return the values to compare with the last fields of a `KnownFile`."""
    return info.st_size, int64(info.st_mtime_ns), int64(info.st_ctime_ns), info.st_ino


def kept_mode(mode: int) -> int:
    """Return the type and permission bits that a tree stores."""
    return mode & ~(stat.S_ISUID | stat.S_ISGID) if stat.S_ISREG(mode) else mode


class Directory:
    """A directory in memory. `tree_id` is empty while a change below it has not been processed.

    `files` stay packed until they are needed: a snapshot of 100,000 files touches only a few, and as Python objects
    they would take 50 MB.
    """

    __slots__ = ("_files", "_names", "_pages", "_records", "_touched", "ctime_ns", "dirs", "ino", "mode", "tree_id")

    def __init__(
        self,
        mode: int = 0,
        tree_id: bytes = b"",
        ctime_ns: int = UNSETTLED,
        ino: int = 0,
        packed: tuple[bytes, bytes] = (b"", b""),
    ) -> None:
        self.mode = mode
        self.dirs: dict[str, Directory] = {}
        self.tree_id = tree_id
        self.ctime_ns = ctime_ns
        self.ino = ino
        self._names, self._records = packed
        self._files: dict[str, KnownFile] | None = None
        self._touched: set[str] = set()
        self._pages: list[tuple[bytes, set[str]]] = []

    def touch(self, name: str) -> None:
        """Mark the entry `name` as changed. Call this for every change of an entry."""
        self.tree_id = b""
        self._touched.add(name)

    def invalidate(self) -> None:
        """Mark all entries as changed."""
        self.tree_id = b""
        self._pages = []

    @property
    def files(self) -> dict[str, KnownFile]:
        if self._files is None:
            self._files = {name: KnownFile._make(record) for name, record in self.records()}
            self._names = self._records = b""
        return self._files

    def records(self) -> Iterator[tuple[str, Record]]:
        """Iterate over `files` without unpacking them."""
        if self._files is not None:
            return iter(self._files.items())
        names = os.fsdecode(self._names).split("\0") if self._names else []
        return zip(names, _RECORD.iter_unpack(self._records), strict=True)

    def with_digests(self, digests: set[tuple[bytes]]) -> Iterator[str]:
        """Yield the files that have one of these digests, quickly if no file has one."""
        _, records = self.pack()
        if not digests.isdisjoint(_DIGEST_OF_RECORD.iter_unpack(records)):
            yield from (name for name, record in self.records() if (record[1],) in digests)

    def ctimes(self) -> set[int]:
        """Return the different ctimes of the files."""
        _, records = self.pack()
        return set(itertools.chain.from_iterable(_CTIME_OF_RECORD.iter_unpack(records)))

    def pack(self) -> tuple[bytes, bytes]:
        """Pack `files` again. Return the packed names and the packed records."""
        if self._files is not None:
            self._names = os.fsencode("\0".join(self._files))
            self._records = b"".join([_RECORD.pack(*known) for known in self._files.values()])
            self._files = None
        return self._names, self._records

    @property
    def weight(self) -> int:
        """Return the number of files."""
        return len(self._records) // _RECORD.size if self._files is None else len(self._files)

    def encode(self, keep: Callable[[bytes], bytes]) -> bytes:
        """Encode the tree. All child directories must have tree ids. `keep` stores a page and returns its digest."""
        if self.weight + len(self.dirs) <= PAGED:
            self._pages = []
            rows = [(os.fsencode(name), b"%o" % record[0], record[1]) for name, record in self.records()]
            rows += [(os.fsencode(name), b"%o" % child.mode, child.tree_id) for name, child in self.dirs.items()]
            data = _encode(rows)
        else:
            data = self._encode_pages(keep)
        self._touched.clear()
        return data

    def _encode_pages(self, keep: Callable[[bytes], bytes]) -> bytes:
        stale = {_page(name) for name in self._touched}
        if not self._pages:
            self._pages = [(b"", set()) for _ in range(PAGES)]
            self._touched = {*self.files, *self.dirs}
            stale = set(range(PAGES))
        for name in self._touched:
            names = self._pages[_page(name)][1]
            names.add(name) if name in self.files or name in self.dirs else names.discard(name)
        for number in stale:
            names = self._pages[number][1]
            self._pages[number] = (keep(_encode(self._rows(names))) if names else b"", names)
        pages = [(b"%02x" % number, PAGE_MODE, digest) for number, (digest, _) in enumerate(self._pages) if digest]
        return _encode(pages)

    def _rows(self, names: Iterable[str]) -> list[Row]:
        files, dirs = self.files, self.dirs
        rows = []
        for name in names:
            known = files.get(name)
            mode, digest = known[:2] if known is not None else (dirs[name].mode, dirs[name].tree_id)
            rows.append((os.fsencode(name), b"%o" % mode, digest))
        return rows

    def copy(self) -> Directory:
        """Return an independent copy. Packed files are shared, because they are replaced and never changed."""
        made = Directory(self.mode, self.tree_id, self.ctime_ns, self.ino, self.pack())
        made.dirs = {name: child.copy() for name, child in self.dirs.items()}
        return made

    def walk(self, path: str = "") -> Iterator[tuple[str, Directory]]:
        """Yield this directory and all directories below it, parents first."""
        yield path, self
        for name, child in self.dirs.items():
            yield from child.walk(f"{path}/{name}" if path else name)


class StoredEntry(NamedTuple):
    """One entry of a stored tree."""

    mode: int
    digest: bytes

    @classmethod
    def of_row(cls, row: Row) -> StoredEntry:
        # Applies to modes that were stored with all bits as well.
        return cls(kept_mode(int(row[1], 8)), row[2])

    @property
    def kind(self) -> str:
        return {stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}.get(stat.S_IFMT(self.mode), "file")


def _page(name: str) -> int:
    return zlib.crc32(os.fsencode(name)) % PAGES


def _encode(rows: list[tuple[bytes, bytes, bytes]]) -> bytes:
    """Encode (name, mode, digest) rows."""
    rows.sort()
    return b"".join([b"%b %b\0%b" % (mode, name, digest) for name, mode, digest in rows])


def decode_rows(data: bytes) -> list[Row]:
    """Parse the entries of a stored tree or page. Raises ValueError if the bytes are not a valid tree."""
    rows = [(name, mode, digest) for mode, name, digest in _ROW.findall(data)]
    before = b""
    length = 0
    for name, mode, _ in rows:
        # Entries become files on disk: refuse a name that would escape the directory.
        if name <= before or name in (b".", b".."):
            raise ValueError("malformed tree")
        before = name
        length += len(mode) + len(name)
    if length + len(rows) * (2 + DIGEST_SIZE) != len(data):
        raise ValueError("malformed tree")
    return rows
