"""Writing into a directory that an agent filled: names in it may be links to anywhere, and none is followed."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
        if source.is_dir() and not source.is_symlink():
            self.lay(source, path)
        elif source.is_symlink():
            self._link(path, source)
        else:
            self._file(path, source)

    def lay(self, source: Path, at: str = "") -> None:
        """Lay every file, link and directory below `source` over what is here, or is here at `at`."""
        with self.folder(at):
            pass
        for here, folders, files in os.walk(source):
            relative = os.path.relpath(here, source)
            prefix = "".join(f"{each}/" for each in (at, relative) if each not in ("", "."))
            for name in folders:
                found = Path(here, name)
                if found.is_symlink():
                    self._link(prefix + name, found)
                else:
                    with self.folder(prefix + name):
                        pass
            for name in files:
                found = Path(here, name)
                if found.is_symlink():
                    self._link(prefix + name, found)
                elif found.is_file():
                    self._file(prefix + name, found)

    def _link(self, path: str, source: Path) -> None:
        with self.place(path) as (fd, name):
            os.symlink(os.readlink(source), name, dir_fd=fd)

    def _file(self, path: str, source: Path) -> None:
        with self.place(path) as (fd, name), source.open("rb") as original:
            out = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=fd)
            with open(out, "wb") as copy:
                shutil.copyfileobj(original, copy)
                os.fchmod(out, stat.S_IMODE(os.fstat(original.fileno()).st_mode))

    def _enter(self, fd: int, name: str) -> int:
        try:
            return os.open(name, _DIRECTORY, dir_fd=fd)
        except OSError:  # nothing there, or something that is no directory
            self._clear(fd, name)
            os.mkdir(name, 0o755, dir_fd=fd)
            return os.open(name, _DIRECTORY, dir_fd=fd)

    def _clear(self, fd: int, name: str) -> None:
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(info.st_mode):
            shutil.rmtree(name, dir_fd=fd)
        else:
            os.unlink(name, dir_fd=fd)
