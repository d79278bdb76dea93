"""Writing into a directory that somebody else filled: names in it may be links to anywhere, and none is followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from proofbox.core.plainfile import open_plain
from proofbox.core.removal import remove_tree

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PIECE = 1 << 18


class Overlaid:
    """A directory of ours with somebody else's files. Whatever stands in the way of what is written is removed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """The directory of that path, made if need be, as a descriptor."""
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
        """Where a file of that path is to be: its directory and its name, at which there is nothing now."""
        parent, _, name = path.rpartition("/")
        with self.folder(parent) as fd:
            self._clear(fd, name)
            yield fd, name

    def remove(self, path: str) -> None:
        with self.place(path):
            pass

    def put(self, path: str, source: Path) -> None:
        """Put a file there, or what is below a directory."""
        if source.is_symlink():
            self.link(path, os.readlink(source))
        elif source.is_dir():
            self.lay(source, path)
        else:
            self._copy(path, source)

    def lay(self, source: Path, at: str = "") -> None:
        """Lay every file, link and directory below `source` over what is here, or is here at `at`.

        What can't be read is an error: a copy that lacks something would pass for the whole. Pipes, sockets and devices
        hold nothing that could be copied, and stay behind.
        """
        with self.folder(at):
            pass
        modes: list[tuple[str, int]] = []
        waiting = [(source, at)]
        while waiting:
            here, place = waiting.pop()
            for entry in os.scandir(here):
                there = f"{place}/{entry.name}" if place else entry.name
                if entry.is_symlink():
                    self.link(there, os.readlink(entry.path))
                elif entry.is_dir():
                    with self.folder(there):
                        pass
                    modes.append((there, stat.S_IMODE(entry.stat().st_mode)))
                    waiting.append((Path(entry.path), there))
                elif entry.is_file():
                    self._copy(there, Path(entry.path))
        # At the end and from below: nothing can be put into a directory that may not be written to.
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
        """The mode of the directory of that path, which is made if need be."""
        with self.folder(path) as fd:
            os.fchmod(fd, mode)

    def _copy(self, path: str, source: Path) -> None:
        with open_plain(source) as original:
            mode = stat.S_IMODE(os.fstat(original.fileno()).st_mode)
            self.write(path, iter(lambda: original.read(PIECE), b""), mode)

    def _enter(self, fd: int, name: str) -> int:
        try:
            return os.open(name, _DIRECTORY, dir_fd=fd)
        except OSError:  # nothing there, or something that is no directory
            self._clear(fd, name)
            os.mkdir(name, 0o755, dir_fd=fd)
            return os.open(name, _DIRECTORY, dir_fd=fd)

    def _clear(self, fd: int, name: str) -> None:
        if left := remove_tree(name, dir_fd=fd):
            raise OSError(left[0].errno, f"what stands in the way can't be removed: {left[0].reason}", name)
