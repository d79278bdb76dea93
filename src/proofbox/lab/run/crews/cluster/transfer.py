"""Moves templates from the conductor to the nodes, and bundles back.

A parcel is a directory as a tar, named by its digest. A node keeps parcels in its cache, up to a total size, so each is
sent once per node. An interrupted transfer continues where it ended. Ray moves the pieces.
"""

from __future__ import annotations

import contextlib
import os
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from proofbox.core.archives.packing import without_owner_and_time
from proofbox.core.digest import sha256_file
from proofbox.core.files.removal import remove_tree
from proofbox.errors import IoFailed

PIECE_SIZE = 4 << 20
CACHE_BYTES = 10 << 30
"""Parcels that a node keeps, in total. The least recently used are removed first."""
ABANDONED = 86400.0


class Parcel(msgspec.Struct, frozen=True):
    """A directory that travels to nodes."""

    sha256: str
    size: int


class Parcels:
    """The parcels of one run, packed when they are first needed."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._made: dict[Path, tuple[Parcel, Path]] = {}
        self._lock = threading.Lock()

    def pack(self, directory: Path) -> Parcel:
        with self._lock:
            if directory not in self._made:
                self._place.mkdir(parents=True, exist_ok=True)
                path = self._place / f"{len(self._made)}.tar"
                _pack(directory, path)
                self._made[directory] = Parcel(*sha256_file(path)), path
            return self._made[directory][0]

    def read(self, directory: Path, offset: int) -> bytes:
        with open(self._made[directory][1], "rb") as stream:
            stream.seek(offset)
            return stream.read(PIECE_SIZE)


class ParcelCache:
    """The parcels that a node keeps."""

    def __init__(self, place: Path, owner: str, limit: int = CACHE_BYTES) -> None:
        """`owner` names the run and the node: nodes may share a home directory."""
        self._place = place
        self._owner = owner
        self._limit = limit
        place.mkdir(mode=0o700, parents=True, exist_ok=True)

    def size_of(self, parcel: Parcel) -> int:
        """Return how many bytes of a parcel are here, complete or from an interrupted transfer of this run."""
        with contextlib.suppress(OSError):
            os.utime(self._path(parcel))
            return parcel.size
        with contextlib.suppress(OSError):
            return self._part(parcel).stat().st_size
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
            raise IoFailed("a template arrived with another digest", op="transfer")
        os.replace(part, self._path(parcel))
        self._evict(parcel)
        return parcel.size

    def unpack(self, parcel: Parcel, dest: Path) -> None:
        """Create `dest` with the files of a parcel. It appears complete or not at all."""
        making = dest.with_name(f".{dest.name}.new")
        remove_tree(making)
        making.mkdir(parents=True)
        with tarfile.open(self._path(parcel)) as archive:
            # As it was packed, with all modes. An attribute, because Python 3.11.0 to 3.11.3 have no such argument.
            archive.extraction_filter = lambda member, _: member
            archive.extractall(making)  # noqa: S202 (by digest, from the run's conductor)
        os.rename(making, dest)

    def _path(self, parcel: Parcel) -> Path:
        return self._place / f"{parcel.sha256}.tar"

    def _part(self, parcel: Parcel) -> Path:
        return self._place / f"{parcel.sha256}.{self._owner}.part"

    def _evict(self, kept: Parcel) -> None:
        """Remove the least recently used parcels above the limit, and transfers without progress for a day."""
        found: list[tuple[float, int, Path]] = []
        for path in self._place.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another worker on this node removed or completed it
                info = path.stat()
                if path.suffix == ".tar":
                    found.append((info.st_mtime, info.st_size, path))
                elif info.st_mtime < time.time() - ABANDONED:
                    path.unlink()
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total > self._limit and path != self._path(kept):
                path.unlink(missing_ok=True)
                total -= size


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
