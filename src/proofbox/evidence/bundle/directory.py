"""A bundle's directory, opened once, so that every later read is of the directory that was checked.

A path can name another directory at any moment: a link is moved, a directory is renamed. Whoever reads a bundle opens
its directory once and reads everything below that descriptor. Files inside may still be replaced, so each one is held
against the index, whose own digest is taken from the bytes that were parsed.
"""

from __future__ import annotations

import os
import weakref

from proofbox.evidence.bundle.paths import DirectoryContents, read_bounded, walk


class BundleDirectory:
    """The open directory of a bundle, or of one nested in it. The descriptor is closed with its last user."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._top = _Descriptor(path)
        self._below = ""

    def nested(self, place: str) -> BundleDirectory:
        """The directory of a bundle nested at `place`, by way of the same descriptor."""
        inner = object.__new__(BundleDirectory)
        inner.path = os.path.join(self.path, place)
        inner._top = self._top
        inner._below = f"{self._below}{place}/"
        return inner

    def open(self, path: str) -> int:
        """A descriptor to read the file at `path`. Neither follows a link in the last place nor waits for a FIFO."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(self._below + path, flags, dir_fd=self._top.fd)

    def read(self, path: str, limit: int) -> bytes:
        """The whole regular file at `path`, if it has at most `limit` bytes (TooLarge); OSError otherwise."""
        return read_bounded(self._below + path, limit, dir_fd=self._top.fd)

    def walk(self) -> DirectoryContents:
        """Everything below, following nothing."""
        return walk(self._below or ".", dir_fd=self._top.fd)

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Whether `path` names this very directory now, and not by way of a link."""
        try:
            return os.path.samestat(os.lstat(path), os.stat(self._below or ".", dir_fd=self._top.fd))
        except OSError:
            return False


class _Descriptor:
    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.fd).atexit = False
