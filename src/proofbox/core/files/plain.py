"""Reading a file that somebody else may have put there: never waiting for it, and no more of it than was asked for."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

_GIVEN = re.compile(r"/dev/stdin|(?:/dev|/proc/self)/fd/[0-9]+")
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_plain(path: Path) -> BinaryIO:
    """A regular file, to read from. Anything else (a pipe, a device, a directory) is an `OSError`.

    What this process was given by the name of a descriptor, as by a shell's `<(…)`, is read whatever it is.
    """
    if _GIVEN.fullmatch(str(path)):
        return open(path, "rb")
    descriptor = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return open(descriptor, "rb")


def read_plain(path: Path, limit: int) -> bytes:
    """Up to `limit` bytes of a regular file."""
    with open_plain(path) as file:
        return file.read(limit)
