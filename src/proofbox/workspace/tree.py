r"""What a directory is made of, and its id.

A tree is the sorted list of a directory's entries, each written as

    <mode in octal> SP <name> NUL <32 bytes of SHA-256>

and its id is the SHA-256 of that. The digest of an entry is the tree id of a directory, the SHA-256 of a file's bytes
(so `sha256sum` agrees), or that of a symbolic link's target. Names are bytes, in byte order. The mode holds the type
and all twelve permission bits, but for a symbolic link, whose bits mean nothing. An empty directory is the empty tree.

Not part of a tree: owners, times, extended attributes, which names are hard links of each other, and the mode of the
workspace's own root. In memory names are `str` as Python gives file names, undecodable bytes as surrogate escapes.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import NamedTuple

import msgspec

DIGEST_SIZE = 32
EMPTY_TREE = hashlib.sha256(b"").digest()
UNSETTLED = -1
"""In place of a ctime: what is on disk may change without its times changing, so look again."""


class Known(NamedTuple):
    """A file or symbolic link as it was when its content was read."""

    mode: int
    digest: bytes
    size: int
    mtime_ns: int
    ctime_ns: int
    ino: int


class Directory(msgspec.Struct):
    """A directory in memory. `tree_id` is empty while something below is not accounted for."""

    mode: int = 0
    files: dict[str, Known] = {}
    dirs: dict[str, Directory] = {}
    tree_id: bytes = b""
    ctime_ns: int = UNSETTLED
    ino: int = 0


class Entry(NamedTuple):
    """One entry of a stored tree."""

    mode: int
    digest: bytes

    @property
    def kind(self) -> str:
        return {stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}.get(stat.S_IFMT(self.mode), "file")


def encode_tree(directory: Directory) -> bytes:
    """The bytes of a directory whose children all have their ids."""
    rows = [(os.fsencode(name), b"%o" % known.mode, known.digest) for name, known in directory.files.items()]
    rows += [(os.fsencode(name), b"%o" % child.mode, child.tree_id) for name, child in directory.dirs.items()]
    rows.sort()
    return b"".join([b"%b %b\0%b" % (mode, name, digest) for name, mode, digest in rows])


def decode_tree(data: bytes) -> dict[str, Entry]:
    """The entries of a stored tree. Raises ValueError for bytes that `encode_tree` would not write."""
    entries: dict[str, Entry] = {}
    start, end = 0, len(data)
    before = b""
    while start < end:
        space = data.index(b" ", start)
        nul = data.index(b"\0", space)
        after = nul + 1 + DIGEST_SIZE
        name = data[space + 1 : nul]
        # A stored tree names files to be written: one that leaves its directory must not get that far.
        if after > end or name <= before or b"/" in name or name in (b".", b".."):
            raise ValueError("not a tree")
        entries[os.fsdecode(name)] = Entry(int(data[start:space], 8), data[nul + 1 : after])
        start, before = after, name
    return entries
