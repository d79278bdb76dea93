"""Open files and directories below a directory descriptor without following symbolic links.

Each component of a path is opened relative to its parent with `O_NOFOLLOW`, or all of them in one call of openat2. If a
link or another directory is swapped in during the walk, the open fails or stays below the root.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import ctypes

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

HANDLE = getattr(os, "O_PATH", os.O_RDONLY)  # only Linux has O_PATH
_HANDLE_FLAGS = HANDLE | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEP = 16
"""Components that are opened one by one: for less deep directories, openat2 is not worth the import of ctypes."""
_OPENAT2 = 437  # the same number on every architecture
_BENEATH, _NO_MAGICLINKS, _NO_SYMLINKS = 0x08, 0x02, 0x04


def open_below(root: int, path: str, flags: int = READ) -> int:
    """Open `path` below `root` and return its descriptor. The path must not contain `..`; empty means the root itself.

    Raises `OSError`: `ELOOP` or `ENOTDIR` if a component is a link.
    """
    *above, last = [name for name in path.split("/") if name not in ("", ".")] or ["."]
    if ".." in (*above, last):
        raise OSError(errno.EXDEV, "the path contains ..", path)
    held = os.dup(root)
    try:
        for name in above:
            below = os.open(name, DIRECTORY, dir_fd=held)
            os.close(held)
            held = below
        return os.open(last, flags, dir_fd=held)
    finally:
        os.close(held)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Yield a descriptor of a file or directory that is not itself a link."""
    fd = os.open(path, READ)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def directory_below(root: int, path: str) -> Iterator[int]:
    """Yield a descriptor of the directory at `path` below `root`."""
    handle = open_beneath(root, path) if path.count("/") > _DEEP else None
    if handle is None:
        fd = open_below(root, path, DIRECTORY)
    else:
        try:
            fd = os.open(".", DIRECTORY, dir_fd=handle)
        finally:
            os.close(handle)
    try:
        yield fd
    finally:
        os.close(fd)


def open_regular(name: str, folder: int) -> BinaryIO:
    """Open a regular file in a directory for reading. Raises `OSError` for anything else, without blocking."""
    fd = os.open(name, READ, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return open(fd, "rb")


@contextmanager
def opened_directory(name: str, folder: int | None) -> Iterator[int]:
    """Yield a descriptor of a directory by its name in another one, or by its path."""
    fd = os.open(name, DIRECTORY, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def open_beneath(root: int, path: str) -> int | None:
    """Return a handle of a nested directory with one call of openat2, if the kernel supports it.

    Return None on any error: walking the path finds the same error and reports it better.
    """
    syscall = _syscall()
    if syscall is None:
        return None
    from ctypes import c_long  # most commands open nothing in this way

    how = struct.pack("=3Q", _HANDLE_FLAGS, 0, _BENEATH | _NO_MAGICLINKS | _NO_SYMLINKS)  # flags, mode, resolve
    fd: int = syscall(c_long(_OPENAT2), c_long(root), os.fsencode(path), how, c_long(len(how)))
    return fd if fd >= 0 else None


@functools.cache
def _syscall() -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux":
        return None
    import ctypes

    return ctypes.CDLL(None).syscall
