"""Unpacking an archive that somebody else made.

It is done here and not by `tarfile` and `zipfile`, whose care differs from one Python to the next. Names stay below the
directory, links are made and never followed, nobody's owner or set-uid bit comes along, and limits are of what is
written, not of what the archive says. What is wrong with an archive, be it hostile or torn, is `ArchiveRefused`.
"""

from __future__ import annotations

import errno
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import IO, NamedTuple

from proofbox.core.overlaying import PIECE, Overlaid

_UNIX = 3
_LONGEST_LINK = 4096
_TORN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    ValueError,
    OverflowError,
    RuntimeError,  # a password, or a compression that is not known
)


class ArchiveRefused(Exception):
    """It can't be read, or it is not safe to unpack. The message says why, for a sentence of the caller's."""


class Limits(NamedTuple):
    files: int
    size: int
    """Bytes, of all files together."""


def unpack(source: Path, dest: Path, limits: Limits) -> None:
    """Lay what a tar or a zip archive holds over the directory `dest`."""
    with source.open("rb") as archive:
        if zipfile.is_zipfile(archive):
            archive.seek(0)
            unpack_zip(archive, dest, limits)
        else:
            archive.seek(0)
            unpack_tar(archive, dest, limits)


def unpack_tar(archive: IO[bytes], dest: Path, limits: Limits, *, skip_devices: bool = False) -> None:
    """Compressed or not."""
    into = _Unpacking(dest, limits)
    with _reading(), tarfile.open(fileobj=archive) as tar:
        for member in tar:
            place = into.take(member.name)
            if member.size < 0:
                raise ArchiveRefused(f"{member.name!r} has a size below zero")
            if place is None:
                continue
            if member.isdir():
                into.directory(place, member.mode)
            elif member.isreg() and (stream := tar.extractfile(member)) is not None:
                into.file(place, stream, member.mode)
            elif member.issym():
                into.link(place, member.linkname)
            elif member.islnk():
                into.copy(place, member.linkname)
            elif not skip_devices:
                raise ArchiveRefused(f"{member.name!r} is a device, a pipe or a socket")


def unpack_zip(archive: IO[bytes], dest: Path, limits: Limits) -> None:
    into = _Unpacking(dest, limits)
    with _reading(), zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            place = into.take(member.filename)
            if place is None:
                continue
            mode = member.external_attr >> 16 if member.create_system == _UNIX else 0
            kind = stat.S_IFMT(mode)
            if member.is_dir() or kind == stat.S_IFDIR:
                into.directory(place, mode or 0o755)
                continue
            with packed.open(member) as stream:
                if kind == stat.S_IFLNK:
                    into.link(place, os.fsdecode(stream.read(_LONGEST_LINK)))
                elif kind in (0, stat.S_IFREG):
                    into.file(place, stream, mode or 0o644)
                else:
                    raise ArchiveRefused(f"{member.filename!r} is a device, a pipe or a socket")


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except _TORN as error:
        raise ArchiveRefused(f"it can't be read ({str(error)[:100] or type(error).__name__})") from error
    except OSError as error:
        if error.errno is None:  # a decompressor's
            raise ArchiveRefused(f"it can't be read ({str(error)[:100]})") from error
        if error.errno == errno.ENAMETOOLONG:
            raise ArchiveRefused("a name in it is too long") from error
        raise


class _Unpacking:
    """One archive on its way into one directory. A name that comes again replaces what it was."""

    def __init__(self, dest: Path, limits: Limits) -> None:
        self._over = Overlaid(dest)
        self._limits = limits
        self._files = 0
        self._bytes = 0
        self._links: set[str] = set()

    def take(self, name: str) -> str | None:
        """Where the next member goes, below the directory; None where it is the directory itself."""
        self._files += 1
        if self._files > self._limits.files:
            raise ArchiveRefused(f"it has more than {self._limits.files} members")
        place = self._below(name)
        self._links.discard(place or "")
        return place

    def directory(self, place: str, mode: int) -> None:
        self._over.chmod(place, mode & 0o755 | 0o700)

    def file(self, place: str, stream: IO[bytes], mode: int) -> None:
        self._over.write(place, self._counted(stream), mode & 0o755 | 0o600)

    def link(self, place: str, target: str) -> None:
        if not target or "\0" in target:
            raise ArchiveRefused(f"{place!r} is a link to nowhere")
        self._over.link(place, target)
        self._links.add(place)

    def copy(self, place: str, name: str) -> None:
        """A hard link: the same file again. Whoever copies the directory would pay for it twice, so it counts twice."""
        original = self._below(name)
        if original is None or original == place:
            raise ArchiveRefused(f"{place!r} is a link to {name!r}")
        folder, _, last = original.rpartition("/")
        with self._over.folder(folder) as fd:
            try:
                found = os.stat(last, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                raise ArchiveRefused(f"{place!r} is a link to {name!r}, which is not there") from None
            if stat.S_ISLNK(found.st_mode):
                self.link(place, os.readlink(last, dir_fd=fd))
            elif stat.S_ISREG(found.st_mode):
                with open(os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd), "rb") as stream:
                    self.file(place, stream, found.st_mode)
            else:
                raise ArchiveRefused(f"{place!r} is a link to {name!r}, which is no file")

    def _below(self, name: str) -> str | None:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise ArchiveRefused(f"{name!r} is not a name below its directory")
        for through in accumulate(parts[:-1], lambda above, part: f"{above}/{part}"):
            if through in self._links:
                raise ArchiveRefused(f"{name!r} goes through the link {through!r}")
        return "/".join(parts) or None

    def _counted(self, stream: IO[bytes]) -> Iterator[bytes]:
        while piece := stream.read(PIECE):
            self._bytes += len(piece)
            if self._bytes > self._limits.size:
                raise ArchiveRefused(f"it unpacks to more than {self._limits.size} bytes")
            yield piece
