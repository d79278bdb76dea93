"""A bundle's directory, opened once, so that every later read uses the directory that was checked.

A path can start to name another directory at any time, when a link is moved or a directory renamed. Readers therefore
open a bundle's directory once and read everything below that descriptor. Files inside may still be replaced, so each
one is compared with the index, whose own digest is computed from the parsed bytes.
"""

from __future__ import annotations

import os
import weakref

from proofbox.evidence.bundle.paths import DirectoryContents, read_bounded, walk


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
        """Open the file at `path` for reading. Does not follow a link at `path`, and does not block on a FIFO."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(self._below + path, flags, dir_fd=self._top.fd)

    def read(self, path: str, limit: int) -> bytes:
        """Read the whole regular file at `path`. Raises TooLarge beyond `limit` bytes, and OSError."""
        return read_bounded(self._below + path, limit, dir_fd=self._top.fd)

    def walk(self) -> DirectoryContents:
        """List everything below, without following links."""
        return walk(self._below or ".", dir_fd=self._top.fd)

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
