"""Removing a directory that somebody else filled: as deep as it likes, with any modes, and with links to anywhere.

Nothing recurses and no path is put together, so that neither a depth nor a length is too much. A few directories are
open at a time: what lies deeper than they reach is first moved up into the top one. No link is followed, and no mount
point is entered, for a directory is opened only after the kernel has said that it is full and not in use.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from proofbox.core.files.atomic import TEMPORARY_PREFIX

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = (errno.ENOTEMPTY, errno.EEXIST)
_OPEN = 32
"""How many directories are open at a time, at least two. Threads share what a process may open: 256 files on macOS."""
_AGAIN = 100
"""How often in all a directory is listed anew because something still writes there."""
_TOLD = 100


class LeftoverPath(NamedTuple):
    """Something that is still there."""

    path: str
    """From the one that was to be removed, which is the empty path itself."""
    reason: str
    errno: int


def remove_tree(path: str | os.PathLike[str], *, dir_fd: int | None = None) -> list[LeftoverPath]:
    """Remove what is there, of whatever kind. What could not be removed, the first hundred; whether that matters is
    for the caller to say. Nothing there is nothing left."""
    return _Removal(os.fspath(path), dir_fd).carry_out()


class _Level:
    """A directory that is being emptied."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd = fd
        self.name = name
        self.waiting = os.listdir(fd)
        self.stays = False
        """Something in it does."""


class _Removal:
    def __init__(self, top: str, folder: int | None) -> None:
        self._top = top
        self._folder = folder
        self._levels: list[_Level] = []
        self._again = _AGAIN
        self._left: list[LeftoverPath] = []

    def carry_out(self) -> list[LeftoverPath]:
        try:
            self._remove(self._folder, self._top)
            while self._levels:
                level = self._levels[-1]
                if level.waiting:
                    self._remove(level.fd, level.waiting.pop())
                else:
                    self._leave()
        finally:
            for level in self._levels:
                os.close(level.fd)
        return self._left

    def _remove(self, folder: int | None, name: str) -> None:
        with self._noting(name):
            if _gone(folder, name):
                return
            if len(self._levels) < _OPEN:
                self._enter(folder, name)
            else:
                self._move_up(folder, name)

    def _enter(self, folder: int | None, name: str) -> None:
        fd = _opened(folder, name)
        try:
            self._levels.append(_Level(fd, name))
        except BaseException:
            os.close(fd)
            raise

    def _move_up(self, folder: int | None, name: str) -> None:
        os.close(_opened(folder, name))  # to move a directory to another one takes leave to write in it
        top = self._levels[0]
        moved = TEMPORARY_PREFIX + secrets.token_hex(8)
        os.rename(name, moved, src_dir_fd=folder, dst_dir_fd=top.fd)
        top.waiting.append(moved)

    def _leave(self) -> None:
        """Remove the last directory itself, which is empty now, unless something stays or came."""
        level = self._levels.pop()
        os.close(level.fd)
        folder = self._levels[-1].fd if self._levels else self._folder
        if level.stays:
            self._keep()
            return
        with self._noting(level.name):
            if _gone(folder, level.name):
                return
            if not self._again:
                raise OSError(errno.ENOTEMPTY, "something keeps writing there")
            self._again -= 1
            self._enter(folder, level.name)

    @contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            pass  # somebody else removed it
        except OSError as error:
            names = [*(level.name for level in self._levels[1:]), name] if self._levels else []
            if len(self._left) < _TOLD:
                self._left.append(LeftoverPath("/".join(names), error.strerror or str(error), error.errno or errno.EIO))
            self._keep()

    def _keep(self) -> None:
        if self._levels:
            self._levels[-1].stays = True


def _gone(folder: int | None, name: str) -> bool:
    """Remove a file, a link or an empty directory. Whether it was one: else it is a directory with something in it."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError as refused:
        if refused.errno not in (errno.EISDIR, errno.EPERM):  # Linux and POSIX differ in what they say of a directory
            raise
        try:
            os.rmdir(name, dir_fd=folder)
        except NotADirectoryError:
            raise refused from None
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return False
    return True


def _opened(folder: int | None, name: str) -> int:
    """A directory, which we may list and write in from now on if it is ours."""
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=folder)
    except PermissionError:
        _open_up(folder, name)
        fd = os.open(name, _DIRECTORY, dir_fd=folder)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o700 != 0o700:
            os.fchmod(fd, 0o700)
    except PermissionError:
        pass  # of somebody else, who may let us do more than the mode's first digit says
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_up(folder: int | None, name: str) -> None:
    """Of a directory that even its owner may not list. By a handle on it: the name may be a link's by now."""
    if sys.platform != "linux":
        os.chmod(name, 0o700, dir_fd=folder, follow_symlinks=False)
        return
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)
