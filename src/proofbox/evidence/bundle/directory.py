"""A bundle's directory, opened once, so that every later read uses the directory that was checked.

A path can start to name another directory at any time, when a link is moved or a directory renamed. Readers therefore
open a bundle's directory once and read everything below that descriptor. Files inside may still be replaced, so each
one is compared with the index, whose own digest is computed from the parsed bytes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import weakref
from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from proofbox.core.chain import MAX_LINE_BYTES
from proofbox.evidence.bundle.paths import DirectoryContents, TooLarge, read_bounded, shown, walk

if TYPE_CHECKING:
    from proofbox.evidence.bundle.index import Artifact

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Digest(Protocol):
    """A digest of `hashlib` that is being computed."""

    def update(self, data: bytes, /) -> None: ...


class BundleDirectory:
    """The open directory of a bundle or nested bundle. The descriptor is closed with its last user."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._top = _Descriptor(path)
        self._below = ""

    def nested(self, place: str) -> BundleDirectory:
        """Return the directory of the bundle nested at `place`, using the same descriptor."""
        inner = object.__new__(BundleDirectory)
        inner.path = os.path.join(self.path, place)
        inner._top = self._top
        inner._below = f"{self._below}{place}/"
        return inner

    def open(self, path: str) -> int:
        """Open the regular file at `path` for reading. Does not follow a link at `path`, nor block on a FIFO."""
        fd = os.open(self._below + path, _READ, dir_fd=self._top.fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, f"{shown(path)} is not a regular file")
        return fd

    def read_matching(self, artifacts: Iterable[Artifact]) -> dict[str, bytes]:
        """Read small files, and return the content of those that have the listed size and digest, by path.

        No more than one byte beyond the size is read, of a file of any kind.
        """
        top, below = self._top.fd, self._below
        found = {}
        for artifact in artifacts:
            path, size = artifact.path, artifact.file_size
            try:
                fd = os.open(below + path, _READ, dir_fd=top)
                try:
                    data = os.read(fd, size + 1)
                finally:
                    os.close(fd)
            except OSError:
                continue
            if len(data) == size and hashlib.sha256(data).hexdigest() == artifact.sha256:
                found[path] = data
        return found

    def read(self, path: str, limit: int) -> bytes:
        """Read the whole regular file at `path`. Raises TooLarge beyond `limit` bytes, and OSError."""
        return read_bounded(self._below + path, limit, dir_fd=self._top.fd)

    def lines(self, path: str, size: int, digest: Digest) -> Iterator[bytes]:
        """Yield the lines of the log at `path`, one in memory at a time, and add them to `digest`.

        Raises TooLarge for a file beyond `size` bytes and for a line longer than any log has, and OSError.
        """
        with open(self.open(path), "rb") as stream:
            left = size
            while line := stream.readline(MAX_LINE_BYTES + 2):
                left -= len(line)
                if left < 0 or len(line) > MAX_LINE_BYTES + 1:
                    what = f"has more than {size} bytes" if left < 0 else f"has a line over {MAX_LINE_BYTES} bytes"
                    raise TooLarge(f"{shown(path)} {what}")
                digest.update(line)
                yield line

    def has(self, path: str) -> bool:
        """Return whether there is a regular file at `path`, without following a link."""
        try:
            return stat.S_ISREG(os.stat(self._below + path, dir_fd=self._top.fd, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def walk(self, skip: Container[str] = ()) -> DirectoryContents:
        """List everything below, without following links. Directories in `skip` are listed, and not entered."""
        return walk(self._below or ".", dir_fd=self._top.fd, skip=skip)

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Return whether `path` is now this directory, and not a link to it."""
        try:
            return os.path.samestat(os.lstat(path), os.stat(self._below or ".", dir_fd=self._top.fd))
        except OSError:
            return False


class _Descriptor:
    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.fd).atexit = False
