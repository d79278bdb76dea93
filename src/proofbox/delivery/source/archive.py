"""Read a zip archive as a source, without unpacking it to disk.

An archive's metadata is not trusted, so every member's declared and actual name, type, size and compression ratio are
checked. A single unsafe or unreadable member makes the whole archive unsafe.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator

from proofbox.core.archives.unpack import ZIP_METHODS
from proofbox.core.files.modes import git_mode
from proofbox.delivery.source import names
from proofbox.delivery.source.tree import FoundFile, Pieces, SourceLimits, refused

_CHUNK = 3 << 16
_UNIX = 3
_ENCRYPTED = 0x1
_RATIO_FROM = 1 << 20
_DIRECTORY_ENTRY = 200  # bytes, assuming a name of typical length
_TAIL = (1 << 16) + 200  # the end record, with the longest possible comment
_HINT = "do not use this archive, or create it again"


@contextlib.contextmanager
def archive_files(place: str, limits: SourceLimits) -> Iterator[Iterator[FoundFile]]:
    try:
        if _directory_size(place) > limits.files * _DIRECTORY_ENTRY:
            raise refused(f"its list of members is too long for {limits.files} members", place, _HINT)
        archive = zipfile.ZipFile(place)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise refused(f"it is not a readable zip archive ({error})"[:200], place, "check --source") from error
    with archive:
        yield _members(archive, limits)


def _directory_size(place: str) -> int:
    """Return the declared size of the member list, which is checked before the whole list is read into memory."""
    with open(place, "rb") as stream:
        end = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, end - _TAIL))
        tail = stream.read(_TAIL)
    found = [0]
    for signature, form, offset in ((b"PK\5\6", "<L", 12), (b"PK\6\6", "<Q", 40)):
        at = tail.rfind(signature)
        if at >= 0 and len(tail) >= at + offset + 8:
            (size,) = struct.unpack_from(form, tail, at + offset)
            found.append(0 if form == "<L" and size == 0xFFFFFFFF else size)
    return max(found)


def _members(archive: zipfile.ZipFile, limits: SourceLimits) -> Iterator[FoundFile]:
    members = archive.infolist()
    if len(members) > limits.files:
        raise refused(f"the archive has more than {limits.files} members", "", _HINT)
    if sum(member.file_size for member in members) > limits.total_bytes:
        raise refused(f"the archive's unpacked size is larger than {limits.total_bytes} bytes", "", _HINT)
    for member in members:
        # The name as stored: `filename` ends at a NUL byte and would hide the rest.
        path = member.orig_filename
        kind = stat.S_IFMT(member.external_attr >> 16) if member.create_system == _UNIX else 0
        if path.endswith("/") or kind == stat.S_IFDIR:
            _check_name(path.rstrip("/"))
            continue
        _check_name(path)
        _check_member(member, limits)
        if kind == stat.S_IFLNK:
            target = b"".join(_read(archive, member)())
            if names.leads_out(path, target.decode("utf-8", "surrogateescape")):
                raise refused("a link that points outside the archive", path, _HINT)
            yield FoundFile(path, "120000", lambda target=target: iter((target,)), member.file_size)  # type: ignore[misc]
        elif kind in (0, stat.S_IFREG):
            bits = member.external_attr >> 16 if member.create_system == _UNIX else 0
            yield FoundFile(path, git_mode(bits), _read(archive, member), member.file_size)
        else:
            raise refused("a device, a pipe or a socket", path, _HINT)


def _check_name(path: str) -> None:
    if wrong := names.problem(path) or names.archive_problem(path):
        raise refused(f"the archive is not safe: {wrong}", path, _HINT)


def _check_member(member: zipfile.ZipInfo, limits: SourceLimits) -> None:
    if member.flag_bits & _ENCRYPTED:
        raise refused("it is encrypted", member.orig_filename, "create the archive without a password")
    if member.compress_type not in ZIP_METHODS:  # LZMA may need gigabytes of memory
        raise refused(
            "its compression method is not supported", member.orig_filename, "create the archive with deflate"
        )
    if member.file_size > limits.file_bytes:
        raise refused(f"it is larger than {limits.file_bytes} bytes", member.orig_filename, _HINT)
    if member.file_size > _RATIO_FROM and member.file_size > limits.ratio * max(1, member.compress_size):
        raise refused(f"its compression ratio is above {limits.ratio}", member.orig_filename, _HINT)


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Pieces:
    def pieces() -> Iterator[bytes]:
        try:
            with archive.open(member) as stream:
                while piece := stream.read(_CHUNK):
                    yield piece
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error, OSError) as error:
            # The file cannot be skipped: a tree without it is a different tree.
            reason = f"it cannot be read ({str(error)[:100]})"
            raise refused(reason, member.orig_filename, "create the archive again") from error

    return pieces
