"""Write into a directory with untrusted content: its entries may be links to anywhere, and none is followed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from proofbox.core.files.nofollow import DIRECTORY, open_below, open_regular
from proofbox.core.files.removal import remove_tree

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PIECE = 1 << 18
Identity = tuple[int, int]
"""Device and inode of a directory."""


class OverlayWriter:
    """Writes into a directory with untrusted content. Entries that conflict with a written path are removed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """Yield a descriptor of the directory at `path`, which is created if needed."""
        fd = os.open(self._root, _DIRECTORY)
        try:
            for name in path.split("/") if path else ():
                below = self._enter(fd, name)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def place(self, path: str) -> Iterator[tuple[int, str]]:
        """Remove any entry at `path`, and yield the parent's descriptor and the name for a new file."""
        parent, _, name = path.rpartition("/")
        with self.folder(parent) as fd:
            self._clear(fd, name)
            yield fd, name

    def remove(self, path: str) -> None:
        with self.place(path):
            pass

    def put(self, path: str, source: int, skip: Collection[Identity] = (), *, name: str = "") -> None:
        """Copy an open regular file, or the content of an open directory, to `path`."""
        mode = os.fstat(source).st_mode
        if stat.S_ISDIR(mode):
            self.copy_tree(source, path, skip, name=name)
        elif stat.S_ISREG(mode):
            with open(os.dup(source), "rb") as original:
                original.seek(0)
                self._copy(path, original)
        else:
            raise OSError(errno.EINVAL, "not a regular file", path)

    def copy_tree(self, source: Path | int, at: str = "", skip: Collection[Identity] = (), *, name: str = "") -> None:
        """Copy every file, link and directory below `source` over the root directory, or over `at` in it.

        Links below `source` are not followed, and replacing a directory with a link during the copy is an error. An
        unreadable entry is an error too, since an incomplete copy would pass for a complete one. Pipes, sockets,
        devices and the directories in `skip` are not copied. `name` identifies a source descriptor in errors.
        """
        if isinstance(source, Path):
            root = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self.copy_tree(root, at, skip, name=str(source))
            finally:
                os.close(root)
            return
        with self.folder(at):
            pass
        modes: list[tuple[str, int]] = []
        waiting = [""]
        while waiting:
            path = waiting.pop()
            with _naming(os.path.join(name, path)):
                here = open_below(source, path, DIRECTORY)
            try:
                for entry in os.scandir(here):
                    below = f"{path}/{entry.name}" if path else entry.name
                    there = f"{at}/{below}" if at else below
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISLNK(info.st_mode):
                        self.link(there, os.readlink(entry.name, dir_fd=here))
                    elif stat.S_ISDIR(info.st_mode) and (info.st_dev, info.st_ino) not in skip:
                        with self.folder(there):
                            pass
                        modes.append((there, stat.S_IMODE(info.st_mode)))
                        waiting.append(below)
                    elif stat.S_ISREG(info.st_mode):
                        with _naming(os.path.join(name, below)):
                            original = open_regular(entry.name, here)
                        with original:
                            self._copy(there, original)
            finally:
                os.close(here)
        # Last, and from the deepest: nothing can be written to a read-only directory.
        for there, mode in reversed(modes):
            self.chmod(there, mode)

    def link(self, path: str, target: str) -> None:
        with self.place(path) as (fd, name):
            os.symlink(target, name, dir_fd=fd)

    def write(self, path: str, pieces: Iterable[bytes], mode: int) -> None:
        with self.place(path) as (fd, name):
            out = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=fd)
            with open(out, "wb") as copy:
                for piece in pieces:
                    copy.write(piece)
                os.fchmod(out, mode)

    def chmod(self, path: str, mode: int) -> None:
        """Set the mode of the directory at `path`, which is created if needed."""
        with self.folder(path) as fd:
            os.fchmod(fd, mode)

    def _copy(self, path: str, original: BinaryIO) -> None:
        mode = stat.S_IMODE(os.fstat(original.fileno()).st_mode)
        self.write(path, iter(lambda: original.read(PIECE), b""), mode)

    def _enter(self, fd: int, name: str) -> int:
        try:
            return os.open(name, _DIRECTORY, dir_fd=fd)
        except OSError:  # missing, or not a directory
            self._clear(fd, name)
            os.mkdir(name, 0o755, dir_fd=fd)
            return os.open(name, _DIRECTORY, dir_fd=fd)

    def _clear(self, fd: int, name: str) -> None:
        if left := remove_tree(name, dir_fd=fd):
            raise OSError(left[0].errno, f"can't replace the existing entry: {left[0].reason}", name)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Make an `OSError` name the whole path instead of its last component."""
    try:
        yield
    except OSError as error:
        error.filename = path.rstrip("/")
        raise
