"""A committed bundle in one file, which every reader accepts in place of the directory.

A run of a few thousand attempts has tens of thousands of small files. Packed, it is one tar archive, compressed with
gzip, with the same bytes under the same paths, so indexes, digests, packets and signatures stay as they are. Readers
unpack it into a private temporary directory, and check that like any other bundle. So an archive proves nothing by
itself, and every check of a directory applies to it.
"""

from __future__ import annotations

import atexit
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from proofbox.core.digest import sha256_hex
from proofbox.core.files.atomic import create_only
from proofbox.core.files.removal import remove_tree
from proofbox.errors import BundleCorrupt, BundleExists, BundleNotFound, UsageError
from proofbox.evidence.bundle.paths import INDEX, MAX_INDEX_BYTES, PACKED_SUFFIX, RUN_ID, enclosing, resolve, shown
from proofbox.evidence.bundle.reader import Bundle, load_bundle

MAX_UNPACKED_FILES: Final = 1_000_000
MAX_UNPACKED_BYTES: Final = 64 << 30
"""Maximum size of an unpacked bundle. It also never takes more than half of the free space."""
MAX_RATIO: Final = 100
"""Maximum size of an unpacked bundle relative to its archive, so that a small archive can't fill the disk."""
SMALL: Final = 1 << 30
"""The ratio is not checked below this size."""
_GZIP: Final = 16 + zlib.MAX_WBITS


class PackedBundle(NamedTuple):
    """A bundle that was packed."""

    run_id: str
    file: Path
    size: int


def pack_bundle(path: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> PackedBundle:
    """Write a committed bundle to a new file, by default beside it.

    Every byte is compared with the index while it is packed. The same bundle always gives the same file.
    """
    bundle = load_bundle(path)
    directory = os.path.abspath(bundle.path)
    if enclosing(directory) != os.path.realpath(directory):
        raise UsageError(
            f"{shown(directory)} is inside another bundle",
            op="bundle pack",
            fix_hints=["pack the run that contains it"],
        )
    target = Path(f"{directory}{PACKED_SUFFIX}" if output is None else output)
    if not target.name.endswith(PACKED_SUFFIX):
        raise UsageError(
            f"{shown(str(target))} does not end with {PACKED_SUFFIX}",
            op="bundle pack",
            fix_hints=[f"--out {target.name}{PACKED_SUFFIX}"],
        )
    files = sorted(_files(bundle, f"{bundle.run_id}/"), key=lambda each: each[0])
    try:
        create_only(target, _compressed(_archive(files)))
    except FileExistsError:
        raise BundleExists(
            f"{shown(str(target))} already exists", op="bundle pack", fix_hints=["choose another --out"]
        ) from None
    packed = target.stat().st_size
    if sum(size for _, size, _ in files) > _max_unpacked(packed):
        target.unlink()
        raise UsageError(
            f"{shown(directory)} takes only {packed} bytes packed; readers refuse to unpack so much from so little",
            op="bundle pack",
            fix_hints=["keep its directory, or copy it to a store: proofbox bundle push"],
        )
    return PackedBundle(bundle.run_id, target, packed)


def _archive(files: Iterable[tuple[str, int, Iterable[bytes]]]) -> Iterator[bytes]:
    for path, size, pieces in files:
        about = tarfile.TarInfo(path)
        about.size = size
        yield about.tobuf(tarfile.PAX_FORMAT)
        yield from pieces
        yield bytes(-size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _files(bundle: Bundle, place: str) -> Iterator[tuple[str, int, Iterable[bytes]]]:
    index = bundle.directory.read(INDEX, MAX_INDEX_BYTES)
    if sha256_hex(index) != bundle.index_sha256:
        raise BundleCorrupt(f"{shown(bundle.path)} has changed since it was checked", op="bundle pack")
    yield place + INDEX, len(index), (index,)
    for artifact in bundle.index.artifacts.values():
        if not artifact.is_nested_index:
            yield place + artifact.path, artifact.file_size, bundle.read_pieces(artifact.path)
    for name, inner in bundle.nested.items():
        yield from _files(inner, f"{place}{name}/")


def _compressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield pieces compressed with gzip, without a time or a name in its header."""
    packer = zlib.compressobj(wbits=_GZIP)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _max_unpacked(packed: int) -> int:
    """Return the maximum size of the files in an archive of `packed` bytes."""
    return min(MAX_UNPACKED_BYTES, max(SMALL, MAX_RATIO * packed))


def unpacked(path: str) -> str:
    """Return a temporary directory with the bundle of an archive. It is removed when the process ends."""
    from proofbox.core.archives.unpack import ArchiveLimits, ArchiveRefused, unpack_tar
    from proofbox.core.files.plain import open_plain

    try:
        with open_plain(Path(path)) as archive:
            info = os.fstat(archive.fileno())
            key = info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns
            if key not in _unpacked:
                place = Path(tempfile.mkdtemp(prefix="proofbox-bundle-"))
                atexit.register(remove_tree, place)
                disk = os.statvfs(place)
                size = min(_max_unpacked(info.st_size), disk.f_bavail * disk.f_frsize // 2)
                unpack_tar(archive, place, ArchiveLimits(MAX_UNPACKED_FILES, size))
                _unpacked[key] = place
    except (ArchiveRefused, OSError) as error:
        raise BundleCorrupt(f"{shown(path)} cannot be unpacked: {error}", op="bundle resolve") from error
    names = os.listdir(_unpacked[key])
    if len(names) != 1 or not RUN_ID.fullmatch(names[0]):
        raise BundleNotFound(f"{shown(path)} does not contain exactly one run", op="bundle resolve")
    return str(_unpacked[key] / names[0])


_unpacked: dict[tuple[int, ...], Path] = {}
"""Temporary directories by the identity of their archive."""


def require_directory(path: str | os.PathLike[str], op: str) -> str:
    """Return the bundle directory for `path`, for commands that write to it or beside it. Refuses an archive."""
    if os.fspath(path).endswith(PACKED_SUFFIX):
        raise UsageError(
            f"{shown(os.fspath(path))} is a packed bundle, which can't be changed",
            op=op,
            fix_hints=[f"unpack it first: tar -xzf {os.path.basename(os.fspath(path))}"],
        )
    return resolve(path)
