"""Reading a file of text that a suite or a task names: plain, bounded, and never waited for."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class Unreadable(Exception):
    """Why, as what follows the name of the file: `is too large`; and the line of it, where one is to blame."""

    def __init__(self, why: str, line: int = 0) -> None:
        super().__init__(why)
        self.line = line


class Absent(Unreadable):
    """It is not there, or not for us."""


def kind_of(path: Path) -> str:
    """`file` or `directory`. Raises `Unreadable` for everything else, and for what can't be looked at."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise Absent("is not there") from None
    except OSError as error:
        raise Absent(f"can't be looked at: {error.strerror}") from None
    except ValueError:
        raise Unreadable("is no path: it holds a NUL") from None
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISREG(mode):
        return "file"
    raise Unreadable("is neither a file nor a directory")


def read_text(path: Path, limit: int) -> str:
    """All of it. Raises `Unreadable`."""
    if kind_of(path) != "file":
        raise Unreadable("is a directory")
    try:
        # It could have become a pipe by now.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise Absent(f"can't be read: {error.strerror}") from None
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
