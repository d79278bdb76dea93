"""Reading a tar archive of somebody else's, from beginning to end, in memory that does not depend on what it says.

`tarfile` is for archives that one trusts: it ends without a word at a header that is damaged, holds extended headers of
any size, and differs from one Python to the next. This reads what is written today (ustar, GNU's long names, pax), and
refuses the rest: sparse files, volumes, sizes that are none, and an archive that has no end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal, NamedTuple

Kind = Literal["file", "directory", "link", "hard link", "device"]

BLOCK = 512
LONGEST_HEADER = 1 << 20
"""Of the extended headers of one member: names and attributes."""
MOST_PADDING = 100
"""Pieces of the stream after the archive's end."""
_ZEROS = bytes(BLOCK)
_KINDS: dict[bytes, Kind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",  # contiguous, which nobody is any more
    b"1": "hard link",
    b"2": "link",
    b"3": "device",
    b"4": "device",
    b"5": "directory",
    b"6": "device",
}
_LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_ALL, _PAX_OF_SOLARIS = b"L", b"K", b"x", b"g", b"X"
_HEARD = (b"path", b"linkpath", b"size")
_SPARSE = b"GNU.sparse"
_EXTENDED = (_LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_ALL, _PAX_OF_SOLARIS)


class TornArchive(Exception):
    """It is no tar archive, or not one that can be read to its end. The message says where."""


class Member(NamedTuple):
    """What the next thing in the archive is. Its content, where it is a file, is read from the reader."""

    name: str
    kind: Kind
    mode: int
    size: int
    target: str
    """Where a link leads; a hard link's is a name in the archive."""


class TarReader:
    """`for member in reader: … for piece in reader.content(): …`. Content that is not asked for is passed over."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._piece = b""
        self._used = 0
        self._at = 0
        self._left = 0
        """Bytes of the current member's content that were not read yet."""
        self._padding = 0
        self._of_all: dict[str, bytes] = {}

    def __iter__(self) -> Iterator[Member]:
        while (member := self._next()) is not None:
            yield member
            for _ in self.content():
                pass
        # What follows is padding; who decompresses it knows only at its own end whether all was well.
        if sum(map(len, islice(self._pieces, MOST_PADDING))) and next(self._pieces, b""):
            raise TornArchive(f"it goes on after its end at byte {self._at}")

    def content(self) -> Iterator[bytes]:
        while self._left:
            piece = self._some(self._left)
            self._left -= len(piece)
            yield piece
        self._exactly(self._padding)
        self._padding = 0

    def _next(self) -> Member | None:
        names: dict[str, bytes] = {}
        extended = 0
        while True:
            place = self._at
            header = self._exactly(BLOCK)
            if header == _ZEROS:
                if names:
                    raise TornArchive("it ends after a header that belongs to another")
                return None
            _check(header, place)
            kind, size = header[156:157], _number(header[124:136], place)
            if kind not in _EXTENDED:
                return self._member(header, kind, size, {**self._of_all, **names}, place)
            extended += size + BLOCK
            if extended > LONGEST_HEADER:
                raise TornArchive(f"the header at byte {place} is longer than {LONGEST_HEADER} bytes")
            content = self._exactly(size)
            self._exactly(-size % BLOCK)
            if kind in (_LONG_NAME, _LONG_LINK):
                names["path" if kind == _LONG_NAME else "linkpath"] = content.split(b"\0")[0]
            elif kind == _PAX_OF_ALL:
                self._of_all.update(_attributes(content, place))
            else:
                names.update(_attributes(content, place))

    def _member(self, header: bytes, kind: bytes, size: int, said: dict[str, bytes], place: int) -> Member:
        name = said.get("path") or _name(header)
        if kind not in _KINDS or any(key.startswith(_SPARSE.decode()) for key in said):
            raise TornArchive(f"what is at byte {place} is of a kind that is not known here (a sparse file, a volume)")
        found = _KINDS[kind]
        if found == "file" and name.endswith(b"/"):  # as directories were before they had a kind
            found = "directory"
        if "size" in said:
            if not said["size"].isdigit() or len(said["size"]) > 18:
                raise TornArchive(f"the header at byte {place} has a size that is none")
            size = int(said["size"])
        # A directory and a link may state a size, and have no content; a device has none either way.
        self._left = size if found == "file" else 0
        self._padding = -self._left % BLOCK
        target = said.get("linkpath") or _text(header[157:257])
        mode = _number(header[100:108], place) & 0o7777
        return Member(os.fsdecode(name), found, mode, self._left, os.fsdecode(target))

    def _some(self, most: int) -> bytes:
        if self._used == len(self._piece):
            self._piece, self._used = next(filter(None, self._pieces), b""), 0
            if not self._piece:
                why = (
                    f"it ends at byte {self._at}, and has more to say" if self._at >= BLOCK else "it is no tar archive"
                )
                raise TornArchive(why)
        piece = self._piece[self._used : self._used + most]
        self._used += len(piece)
        self._at += len(piece)
        return piece

    def _exactly(self, size: int) -> bytes:
        got = []
        while size:
            got.append(self._some(size))
            size -= len(got[-1])
        return b"".join(got)


def _check(header: bytes, place: int) -> None:
    stated = _number(header[148:156], place)
    # The sum of its bytes, with its own field as blanks. Some old programs took them for signed.
    rest = header[:148] + b" " * 8 + header[156:]
    if stated != sum(rest) and stated != sum(byte - 256 if byte > 127 else byte for byte in rest):
        raise TornArchive(f"what is at byte {place} is no header" if place else "it is no tar archive")


def _number(field: bytes, place: int) -> int:
    """Octal digits; or, where that is too short, GNU's binary."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0")[0].strip()
    if digits.strip(b"01234567"):
        raise TornArchive(f"the header at byte {place} has a number that is none")
    return int(digits or b"0", 8)


def _text(field: bytes) -> bytes:
    return field.split(b"\0")[0]


def _name(header: bytes) -> bytes:
    name, prefix = _text(header[:100]), _text(header[345:500])
    # GNU's own format has times where ustar has the beginning of a long name.
    return prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name


def _attributes(content: bytes, place: int) -> dict[str, bytes]:
    """`LENGTH KEY=VALUE\\n`, one after the other; the length is of all of it. What counts here is kept."""
    found = {}
    at = 0
    while at < len(content):
        digits, _, _ = content[at : at + 8].partition(b" ")
        end = at + int(digits) if digits.isdigit() else at
        key, equals, value = content[at + len(digits) + 1 : end - 1].partition(b"=")
        if not equals or content[end - 1 : end] != b"\n":
            raise TornArchive(f"the extended header at byte {place} can't be read")
        at = end
        if key in _HEARD or key.startswith(_SPARSE):
            found[key.decode("ascii", "replace")] = value
    return found
