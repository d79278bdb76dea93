"""Remove directories with untrusted content: any depth, any modes, and links to anywhere.

The removal does not recurse and builds no paths, so neither depth nor path length is limited. Only a few directories
are open at a time: deeper ones are first moved up into the top directory. No link is followed and no mount point is
entered, because a directory is opened only after the kernel reported that it is not empty and not busy.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from proofbox.core.files.atomic import TEMPORARY_PREFIX

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = (errno.ENOTEMPTY, errno.EEXIST)
_OPEN = 32
"""Maximum open directories, at least two. Threads share the process's limit on open files: 256 on macOS."""
_AGAIN = 100
"""Maximum number of times that directories are listed again because another process still writes there."""
_MAX_REPORTED = 100


class LeftoverPath(NamedTuple):
    """A path that could not be removed."""

    path: str
    """Relative to the tree that was to be removed; empty for its root."""
    reason: str
    errno: int


def remove_tree(path: str | os.PathLike[str], *, dir_fd: int | None = None) -> list[LeftoverPath]:
    """Remove a file, link or directory tree, and return the first hundred paths that could not be removed.

    A missing path is not an error.
    """
    return _Removal(os.fspath(path), dir_fd).carry_out()


class _Level:
    """A directory that is being emptied."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd = fd
        self.name = name
        self.waiting = os.listdir(fd)
        self.stays = False
        """Whether an entry in it could not be removed."""


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
        with self._recording_errors(name):
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
        os.close(_opened(folder, name))  # moving a directory requires write permission on it
        top = self._levels[0]
        moved = TEMPORARY_PREFIX + os.urandom(8).hex()
        os.rename(name, moved, src_dir_fd=folder, dst_dir_fd=top.fd)
        top.waiting.append(moved)

    def _leave(self) -> None:
        """Remove the last directory itself, unless an entry could not be removed or a new one appeared."""
        level = self._levels.pop()
        os.close(level.fd)
        folder = self._levels[-1].fd if self._levels else self._folder
        if level.stays:
            self._keep()
            return
        with self._recording_errors(level.name):
            if _gone(folder, level.name):
                return
            if not self._again:
                raise OSError(errno.ENOTEMPTY, "another process keeps writing there")
            self._again -= 1
            self._enter(folder, level.name)

    @contextmanager
    def _recording_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            pass  # another process removed it
        except OSError as error:
            names = [*(level.name for level in self._levels[1:]), name] if self._levels else []
            if len(self._left) < _MAX_REPORTED:
                self._left.append(LeftoverPath("/".join(names), error.strerror or str(error), error.errno or errno.EIO))
            self._keep()

    def _keep(self) -> None:
        if self._levels:
            self._levels[-1].stays = True


def _gone(folder: int | None, name: str) -> bool:
    """Remove a file, a link or an empty directory. Return False for a directory that is not empty."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError as refused:
        if refused.errno not in (errno.EISDIR, errno.EPERM):  # Linux and POSIX use different codes for a directory
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
    """Open a directory; if this user owns it, make it readable and writable."""
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=folder)
    except PermissionError:
        _open_up(folder, name)
        fd = os.open(name, _DIRECTORY, dir_fd=folder)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o700 != 0o700:
            os.fchmod(fd, 0o700)
    except PermissionError:
        pass  # another user's directory; the group or other bits may still permit the removal
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_up(folder: int | None, name: str) -> None:
    """Make a directory readable for its owner. Uses a handle, since the name may have become a link."""
    if sys.platform != "linux":
        os.chmod(name, 0o700, dir_fd=folder, follow_symlinks=False)
        return
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)
