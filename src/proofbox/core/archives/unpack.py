"""Unpack untrusted archives.

Names stay below the destination directory, links are created but never followed, owners and set-uid bits are dropped,
and limits apply to the bytes written, not to the sizes that the archive states. A hostile or damaged archive raises
`ArchiveRefused`; the caller then discards the files that were already unpacked.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import IO, NamedTuple

from proofbox.core.archives.tar import TarReader, TornArchive
from proofbox.core.files.overlaying import PIECE, OverlayWriter
from proofbox.core.files.plain import open_plain

_UNIX = 3
_LONGEST_NAME = 4096
_DEEPEST = 256
_XZ_MEMORY = 256 << 20  # bytes: `xz -9` needs 65 MiB
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
_TORN = (
    TornArchive,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    ValueError,
    OverflowError,
    RuntimeError,  # an encrypted zip
)


class ArchiveRefused(Exception):
    """The archive can't be read or is not safe to unpack. The message is a clause for the caller's own message."""


class ArchiveLimits(NamedTuple):
    """Limits on the unpacked content of one archive."""

    files: int
    """Maximum number of files, links and directories, including directories that no member names."""
    size: int
    """Maximum total size of all files, in bytes."""


MAX_ARCHIVE = ArchiveLimits(files=1_000_000, size=64 << 30)


def unpack(source: Path, dest: Path, limits: ArchiveLimits = MAX_ARCHIVE) -> None:
    """Unpack a tar (plain, gz, bz2, xz) or zip archive over the directory `dest`."""
    with open_plain(source) as archive:
        # Check the first bytes, since a tar whose last member is a wheel or a jar ends like a zip.
        zipped = archive.read(4) in (b"PK\3\4", b"PK\5\6")
        archive.seek(0)
        (unpack_zip if zipped else unpack_tar)(archive, dest, limits)


def unpack_tar(
    archive: IO[bytes], dest: Path, limits: ArchiveLimits = MAX_ARCHIVE, *, skip_devices: bool = False
) -> None:
    into = _Unpacking(dest, limits)
    with _reading():
        reader = TarReader(_decompressed(archive))
        for member in reader:
            place = into.take(member.name)
            if place is None:
                continue
            if member.kind == "directory":
                into.directory(place, member.mode)
            elif member.kind == "file":
                into.file(place, reader.content(), member.mode)
            elif member.kind == "link":
                into.link(place, member.target)
            elif member.kind == "hard link":
                into.copy(place, member.target)
            elif not skip_devices:
                raise ArchiveRefused(f"{member.name!r} is a device or a pipe")


def members(archive: IO[bytes]) -> list[str]:
    """Return the checked names of a tar's members, relative to its root, without unpacking it.

    A member that leads outside the directory is refused, whether by its name, as a hard link, or through a link.
    """
    found: list[str] = []
    checking = _Unpacking(Path(), MAX_ARCHIVE)
    with _reading():
        for member in TarReader(_decompressed(archive)):
            place = checking.take(member.name)
            if place is None:
                continue
            if member.kind == "link":
                checking.check_link(place, member.target)
            elif member.kind == "hard link":
                checking.original(place, member.target)
            found.append(place)
    return found


def unpack_zip(archive: IO[bytes], dest: Path, limits: ArchiveLimits = MAX_ARCHIVE) -> None:
    into = _Unpacking(dest, limits)
    with _reading(), zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            place = into.take(member.orig_filename)  # `filename` is cut at a NUL
            if place is None:
                continue
            if member.compress_type not in ZIP_METHODS:
                raise ArchiveRefused(f"{member.filename!r} uses an unsupported compression method")
            mode = member.external_attr >> 16 if member.create_system == _UNIX else 0
            kind = stat.S_IFMT(mode)
            if member.is_dir() or kind == stat.S_IFDIR:
                into.directory(place, mode or 0o755)
                continue
            with packed.open(member) as stream:
                if kind == stat.S_IFLNK:
                    into.link(place, os.fsdecode(stream.read(_LONGEST_NAME + 1)))
                elif kind in (0, stat.S_IFREG):
                    into.file(place, _pieces(stream), mode or 0o644)
                else:
                    raise ArchiveRefused(f"{member.filename!r} is a device, a pipe or a socket")


def _decompressed(archive: IO[bytes]) -> Iterator[bytes]:
    head = archive.read(6)
    archive.seek(0)
    if head[:2] == b"\x1f\x8b":
        return _pieces(gzip.GzipFile(fileobj=archive))
    if head[:3] == b"BZh":
        return _pieces(bz2.BZ2File(archive))
    if head == b"\xfd7zXZ\0":
        return _unxz(archive)
    return _pieces(archive)


def _unxz(archive: IO[bytes]) -> Iterator[bytes]:
    """Decompress xz with a memory limit: the archive itself states how much memory it needs."""
    data = archive.read(PIECE)
    while data:
        stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        while not stream.eof:
            yield stream.decompress(data, PIECE)
            data = b"" if stream.eof or not stream.needs_input else archive.read(PIECE)
            if stream.needs_input and not data and not stream.eof:
                raise EOFError("it is truncated")
        # An xz file may hold several streams, with zeros between them.
        data = stream.unused_data.lstrip(b"\0") or archive.read(PIECE).lstrip(b"\0")


def _pieces(stream: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    return iter(lambda: stream.read(PIECE), b"")


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except _TORN as error:
        raise ArchiveRefused(f"it can't be read ({str(error)[:100] or type(error).__name__})") from error
    except OSError as error:
        if error.errno in (None, errno.EINVAL):  # from a decompressor; a seek before the start
            raise ArchiveRefused(f"it can't be read ({str(error)[:100]})") from error
        if error.errno == errno.ENAMETOOLONG:
            raise ArchiveRefused("a name in it is too long") from error
        raise


class _Unpacking:
    """Unpacks one archive into one directory. A repeated name replaces the earlier member."""

    def __init__(self, dest: Path, limits: ArchiveLimits) -> None:
        self._over = OverlayWriter(dest)
        self._limits = limits
        self._count = 0
        self._bytes = 0
        self._links: set[str] = set()
        self._folders: set[str] = set()

    def take(self, name: str) -> str | None:
        """Count the next member and return its path below the directory; None for the directory itself."""
        place = self._below(name)
        self._counts(1)
        for above in _above(place or ""):
            if above not in self._folders:
                self._folders.add(above)
                self._counts(1)
        self._links.discard(place or "")
        return place

    def directory(self, place: str, mode: int) -> None:
        self._over.chmod(place, mode & 0o755 | 0o700)

    def file(self, place: str, pieces: Iterable[bytes], mode: int) -> None:
        self._over.write(place, self._counted(pieces), mode & 0o755 | 0o600)

    def link(self, place: str, target: str) -> None:
        self.check_link(place, target)
        self._over.link(place, target)

    def check_link(self, place: str, target: str) -> None:
        """Check a symbolic link, and remember it, because no other member may go through it."""
        if not target or "\0" in target or len(os.fsencode(target)) >= _LONGEST_NAME:
            raise ArchiveRefused(f"{place!r} is a link without a valid target")
        self._links.add(place)

    def copy(self, place: str, name: str) -> None:
        """Unpack a hard link as a copy. It counts twice, since a copy of the directory would also store it twice."""
        folder, _, last = self.original(place, name).rpartition("/")
        with self._over.folder(folder) as fd:
            try:
                found = os.stat(last, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                raise ArchiveRefused(f"{place!r} is a link to {name!r}, which does not exist") from None
            if stat.S_ISLNK(found.st_mode):
                self.link(place, os.readlink(last, dir_fd=fd))
            elif stat.S_ISREG(found.st_mode):
                with open(os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd), "rb") as stream:
                    self.file(place, _pieces(stream), found.st_mode)
            else:
                raise ArchiveRefused(f"{place!r} is a link to {name!r}, which is not a file")

    def original(self, place: str, name: str) -> str:
        """Return the path of the file that a hard link stands for."""
        original = self._below(name)
        if original is None or original == place:
            raise ArchiveRefused(f"{place!r} is a link to {name!r}")
        return original

    def _below(self, name: str) -> str | None:
        if len(os.fsencode(name)) >= _LONGEST_NAME or any(len(os.fsencode(part)) > 255 for part in name.split("/")):
            raise ArchiveRefused(f"a name in it is too long: {name[:60]!r}…")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise ArchiveRefused(f"{name!r} leads outside the directory")
        if len(parts) > _DEEPEST:
            raise ArchiveRefused(f"{name[:60]!r}… is more than {_DEEPEST} directories deep")
        place = "/".join(parts)
        for above in _above(place):
            if above in self._links:
                raise ArchiveRefused(f"{name!r} goes through the link {above!r}")
        return place or None

    def _counts(self, more: int) -> None:
        self._count += more
        if self._count > self._limits.files:
            raise ArchiveRefused(f"it has more than {self._limits.files} files and directories")

    def _counted(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._bytes += len(piece)
            if self._bytes > self._limits.size:
                raise ArchiveRefused(f"it unpacks to more than {self._limits.size} bytes")
            yield piece


def _above(place: str) -> Iterator[str]:
    return accumulate(place.split("/")[:-1], lambda above, part: f"{above}/{part}")
