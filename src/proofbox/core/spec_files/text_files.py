"""Reads text files that a suite or a task names: regular files of bounded size, without blocking."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class Unreadable(Exception):
    """Why a file is unreadable, as a predicate of its name: `is too large`; and the line number, if known."""

    def __init__(self, why: str, line: int = 0) -> None:
        super().__init__(why)
        self.line = line


class Absent(Unreadable):
    """The file does not exist or is not accessible."""


def kind_of(path: Path) -> str:
    """Return `file` or `directory`. Raises `Unreadable` for anything else, and if the path cannot be accessed."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise Absent("does not exist") from None
    except OSError as error:
        raise Absent(f"cannot be accessed: {error.strerror}") from None
    except ValueError:
        raise Unreadable("is not a valid path: it contains a NUL") from None
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISREG(mode):
        return "file"
    raise Unreadable("is neither a file nor a directory")


def read_text(path: Path, limit: int) -> str:
    """Return the whole text. Raises `Unreadable`."""
    if kind_of(path) != "file":
        raise Unreadable("is a directory")
    try:
        # It may have become a pipe in the meantime.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            size = min(os.fstat(file.fileno()).st_size, limit)
            data = file.read(size + 1)  # not `limit`: a read allocates memory for the requested size
            if len(data) > size:  # it has grown, or its size is not known, as in /proc
                data += file.read(limit - size)
    except OSError as error:
        raise Absent(f"cannot be read: {error.strerror}") from None
    return decode(data, limit)


def decode(data: bytes, limit: int) -> str:
    """Return the text of at most `limit` bytes. Raises `Unreadable`."""
    if len(data) > limit:
        size = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"
        raise Unreadable(f"is larger than {size}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not UTF-8: byte {error.start}", data.count(b"\n", 0, error.start) + 1) from None
