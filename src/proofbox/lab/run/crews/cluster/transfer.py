"""Moves templates and images from the conductor to the nodes, and bundles back.

A parcel is a directory as a tar, or the archive of an image, named by its digest. A node keeps parcels in its cache, up
to a total size, so each is sent once per node. An interrupted transfer continues where it ended. Ray moves the pieces.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from proofbox.core.archives.packing import without_owner_and_time
from proofbox.core.digest import sha256_file
from proofbox.core.files.locks import locked
from proofbox.core.files.removal import remove_tree
from proofbox.errors import IoFailed
from proofbox.lab.run.resources import size_of
from proofbox.sandbox.images.unused_files import YOUNG

PIECE_SIZE = 4 << 20
CACHE_BYTES = 10 << 30
"""Parcels that a node keeps, in total. The least recently used are removed first."""
ABANDONED = 86400.0


class ParcelMissing(Exception):
    """A parcel is not in the node's cache any more: it was evicted, or deleted by a person."""


class Parcel(msgspec.Struct, frozen=True):
    """A directory or an image that travels to nodes."""

    sha256: str
    size: int
    is_image: bool = False
    """Boxes use an image where it is, next to its unpacked files. It stays as long as a worker may use it."""


class Parcels:
    """The parcels of one run. Directories are packed when they are first needed, images are sent as they are."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._made: dict[Path, tuple[Parcel, Path]] = {}
        self._lock = threading.Lock()

    def pack(self, source: Path) -> Parcel:
        with self._lock:
            if source not in self._made:
                is_image, path = source.is_file(), source
                if not is_image:
                    self._place.mkdir(parents=True, exist_ok=True)
                    path = self._place / f"{len(self._made)}.tar"
                    _pack(source, path)
                self._made[source] = Parcel(*sha256_file(path), is_image), path
            return self._made[source][0]

    def read(self, source: Path, offset: int) -> bytes:
        with open(self._made[source][1], "rb") as stream:
            stream.seek(offset)
            return stream.read(PIECE_SIZE)


class ParcelCache:
    """The parcels that a node keeps."""

    def __init__(self, place: Path, owner: str, limit: int = CACHE_BYTES) -> None:
        """`owner` names the run and the node: nodes may share a home directory."""
        self._place = place
        self._owner = owner
        self._limit = limit
        self._kept: set[str] = set()
        self._locks = contextlib.ExitStack()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)

    def size_of(self, parcel: Parcel) -> int:
        """Return how many bytes of a parcel are here, complete or from an interrupted transfer of this run.

        An image that a worker has asked for is not evicted before the worker ends.
        """
        if parcel.is_image and parcel.sha256 not in self._kept:
            self._locks.enter_context(locked(self._use(parcel.sha256), shared=True))
            self._kept.add(parcel.sha256)
        with contextlib.suppress(OSError):
            os.utime(self._path(parcel))
            return parcel.size
        with contextlib.suppress(OSError):
            size = self._part(parcel).stat().st_size
            return size if size < parcel.size else 0  # all of it is here, but was not checked
        return 0

    def receive(self, parcel: Parcel, offset: int, data: bytes) -> int:
        """Append a piece, and return how many bytes are here. A parcel whose digest differs is discarded."""
        part = self._part(parcel)
        with open(part, "r+b" if part.exists() else "wb") as stream:
            stream.truncate(offset)
            stream.seek(offset)
            stream.write(data)
        if offset + len(data) < parcel.size:
            return offset + len(data)
        if sha256_file(part)[0] != parcel.sha256:
            part.unlink()
            raise IoFailed(f"{parcel.sha256[:12]} arrived with another digest", op="transfer")
        os.replace(part, self._path(parcel))
        self._evict(parcel)
        return parcel.size

    def unpack(self, parcel: Parcel, dest: Path) -> None:
        """Create `dest` with the files of a parcel. It appears complete or not at all. Raises `ParcelMissing`."""
        making = dest.with_name(f".{dest.name}.new")
        remove_tree(making)
        making.mkdir(parents=True)
        try:
            archive = tarfile.open(self._path(parcel))  # noqa: SIM115
        except FileNotFoundError:
            raise ParcelMissing(parcel.sha256) from None
        with archive:
            # As it was packed, with all modes. An attribute, because Python 3.11.0 to 3.11.3 have no such argument.
            archive.extraction_filter = lambda member, _: member
            archive.extractall(making)  # noqa: S202 (by digest, from the run's conductor)
        os.rename(making, dest)

    def close(self) -> None:
        """Let images be evicted again."""
        self._locks.close()

    def _path(self, parcel: Parcel) -> Path:
        return self._place / f"{parcel.sha256}.tar"

    def _part(self, parcel: Parcel) -> Path:
        return self._place / f"{parcel.sha256}.{self._owner}.part"

    def _use(self, sha256: str) -> Path:
        return self._place / f"{sha256}.use"

    def _evict(self, kept: Parcel) -> None:
        """Remove the least recently used parcels above the limit, and transfers without progress for a day."""
        remove_abandoned(self._place)
        found = sorted(parcels_in(self._place))
        total = sum(size for _, size, _ in found)
        for _, size, path in found:
            if total > self._limit and path.stem != kept.sha256 and remove_parcel(path):
                total -= size


def parcels_in(place: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield the parcels of a cache: when each was last used, its size with the files made from it, and its path."""
    for path in place.glob("*.tar"):
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            info, tree = path.stat(), path.with_suffix(".tree")
            yield info.st_mtime, info.st_size + (size_of(tree, sys.maxsize) if tree.exists() else 0), path


def remove_parcel(path: Path) -> bool:
    """Remove a parcel with the files made from it; return False if a worker may be using it."""
    with contextlib.suppress(BlockingIOError), locked(path.with_suffix(".use"), wait=False):
        for suffix in (".tar", ".tree", ".lock", ".use"):
            remove_tree(path.with_suffix(suffix))
        return True
    return False


def remove_abandoned(place: Path) -> None:
    """Remove transfers without progress for a day."""
    for path in place.glob("*.part"):
        with contextlib.suppress(FileNotFoundError):  # another worker on this node removed or completed it
            if path.stat().st_mtime < time.time() - ABANDONED:
                path.unlink()


def sweep_parcels(place: Path, *, remove: bool) -> Iterator[tuple[str, int, bool, str]]:
    """Yield the parcels of a cache: path, size, whether it is free, and why. Remove the free ones, if asked."""
    if remove:
        remove_abandoned(place)
    for used, size, path in sorted(parcels_in(place)):
        if used > time.time() - YOUNG:
            yield str(path), size, False, "used within the last hour"
        elif _is_used(path) or (remove and not remove_parcel(path)):
            yield str(path), size, False, "in use by a worker"
        else:
            yield str(path), size, True, "not used for an hour; sent again when needed"


def _is_used(path: Path) -> bool:
    use = path.with_suffix(".use")
    try:
        if use.exists():
            with locked(use, wait=False):
                return False
    except BlockingIOError:
        return True
    return False


def _pack(directory: Path, dest: Path) -> None:
    """Pack a directory, so that equal directories have equal digests."""
    with tarfile.open(dest, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(directory, arcname=".", filter=without_owner_and_time)  # names are sorted


def bundle_pieces(bundle: Path, scratch: Path) -> Iterator[bytes]:
    """Yield a committed bundle as a tar, in pieces."""
    _pack(bundle, scratch)
    try:
        with open(scratch, "rb") as stream:
            while piece := stream.read(PIECE_SIZE):
                yield piece
    finally:
        scratch.unlink()
