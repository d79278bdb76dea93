"""Read untrusted tar archives as a stream, with bounded memory.

`tarfile` is for trusted archives: it stops silently at a damaged header, reads extended headers of any size into memory
and differs between Python versions. This reader supports the formats in use today (ustar, GNU long names, pax) and
refuses everything else: sparse files, volumes, malformed sizes and truncated archives.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal, NamedTuple

Kind = Literal["file", "directory", "link", "hard link", "device"]

BLOCK = 512
LONGEST_HEADER = 1 << 20
"""Maximum bytes of one member's extended headers (names and attributes)."""
MAX_PADDING = 100
"""Maximum pieces of the stream after the end of the archive."""
_NOT_TAR = "it is not a tar archive"
_ZEROS = bytes(BLOCK)
_KINDS: dict[bytes, Kind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",  # contiguous file, obsolete
    b"1": "hard link",
    b"2": "link",
    b"3": "device",
    b"4": "device",
    b"5": "directory",
    b"6": "device",
}
_LONG_NAME, _LONG_LINK, _PAX, _GLOBAL_PAX, _SOLARIS_PAX = b"L", b"K", b"x", b"g", b"X"
_USED_ATTRIBUTES = (b"path", b"linkpath", b"size")
_SPARSE = b"GNU.sparse"
_EXTENDED = (_LONG_NAME, _LONG_LINK, _PAX, _GLOBAL_PAX, _SOLARIS_PAX)


class TornArchive(Exception):
    """The data is not a tar archive, or the archive is damaged or unsupported. The message gives the position."""


class Member(NamedTuple):
    """The header of the next member. The content of a file is read with `TarReader.content`."""

    name: str
    kind: Kind
    mode: int
    size: int
    target: str
    """The target of a link; for a hard link, the name of another member."""


class TarReader:
    """Iterator over members: `for member in reader: … for piece in reader.content(): …`. Unread content is skipped."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._piece = b""
        self._used = 0
        self._at = 0
        self._left = 0
        """Unread bytes of the current member's content."""
        self._padding = 0
        self._global_attributes: dict[str, bytes] = {}

    def __iter__(self) -> Iterator[Member]:
        while (member := self._next()) is not None:
            yield member
            for _ in self.content():
                pass
        # The rest is padding. It is read because a decompressor checks its checksum only at the end of its stream.
        if sum(map(len, islice(self._pieces, MAX_PADDING))) and next(self._pieces, b""):
            raise TornArchive(f"it has more data after its end at byte {self._at}")

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
                    raise TornArchive("it ends after an extended header")
                return None
            _check(header, place)
            kind, size = header[156:157], _number(header[124:136], place)
            if kind not in _EXTENDED:
                return self._member(header, kind, size, {**self._global_attributes, **names}, place)
            extended += size + BLOCK
            if extended > LONGEST_HEADER:
                raise TornArchive(f"the header at byte {place} is longer than {LONGEST_HEADER} bytes")
            content = self._exactly(size)
            self._exactly(-size % BLOCK)
            if kind in (_LONG_NAME, _LONG_LINK):
                names["path" if kind == _LONG_NAME else "linkpath"] = content.split(b"\0")[0]
            elif kind == _GLOBAL_PAX:
                self._global_attributes.update(_attributes(content, place))
            else:
                names.update(_attributes(content, place))

    def _member(self, header: bytes, kind: bytes, size: int, attributes: dict[str, bytes], place: int) -> Member:
        name = attributes.get("path") or _name(header)
        if kind not in _KINDS or any(key.startswith(_SPARSE.decode()) for key in attributes):
            raise TornArchive(f"the member at byte {place} has an unsupported type (such as a sparse file or a volume)")
        found = _KINDS[kind]
        if found == "file" and name.endswith(b"/"):  # old archives have no directory type
            found = "directory"
        if "size" in attributes:
            if not attributes["size"].isdigit() or len(attributes["size"]) > 18:
                raise TornArchive(f"the header at byte {place} has a malformed size")
            size = int(attributes["size"])
        # The header of a directory or link may state a size, but only files have content.
        self._left = size if found == "file" else 0
        self._padding = -self._left % BLOCK
        target = attributes.get("linkpath") or _text(header[157:257])
        mode = _number(header[100:108], place) & 0o7777
        return Member(os.fsdecode(name), found, mode, self._left, os.fsdecode(target))

    def _some(self, most: int) -> bytes:
        if self._used == len(self._piece):
            self._piece, self._used = next(filter(None, self._pieces), b""), 0
            if not self._piece:
                raise TornArchive(f"it is truncated at byte {self._at}" if self._at >= BLOCK else _NOT_TAR)
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
    # The sum of the header's bytes, with blanks for the checksum itself. Some old programs summed signed bytes.
    rest = header[:148] + b" " * 8 + header[156:]
    if stated != sum(rest) and stated != sum(byte - 256 if byte > 127 else byte for byte in rest):
        raise TornArchive(f"malformed header at byte {place}" if place else _NOT_TAR)


def _number(field: bytes, place: int) -> int:
    """Parse a number field: octal digits, or GNU's binary form for larger numbers."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0")[0].strip()
    if digits.strip(b"01234567"):
        raise TornArchive(f"the header at byte {place} has a malformed number")
    return int(digits or b"0", 8)


def _text(field: bytes) -> bytes:
    return field.split(b"\0")[0]


def _name(header: bytes) -> bytes:
    name, prefix = _text(header[:100]), _text(header[345:500])
    # GNU's format stores times where ustar stores the prefix of a long name.
    return prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name


def _attributes(content: bytes, place: int) -> dict[str, bytes]:
    """Parse `LENGTH KEY=VALUE\\n` records and return the attributes used here. LENGTH counts the whole record."""
    found = {}
    at = 0
    while at < len(content):
        digits, _, _ = content[at : at + 8].partition(b" ")
        end = at + int(digits) if digits.isdigit() else at
        key, equals, value = content[at + len(digits) + 1 : end - 1].partition(b"=")
        if not equals or content[end - 1 : end] != b"\n":
            raise TornArchive(f"malformed extended header at byte {place}")
        at = end
        if key in _USED_ATTRIBUTES or key.startswith(_SPARSE):
            found[key.decode("ascii", "replace")] = value
    return found
