"""Read untrusted files: never blocking, and never more than the requested size."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

_INHERITED = re.compile(r"/dev/stdin|(?:/dev|/proc/self)/fd/[0-9]+")
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_plain(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises `OSError` for anything else (a pipe, a device, a directory).

    A path that names an inherited descriptor, as from a shell's `<(…)`, is opened whatever its type.
    """
    if _INHERITED.fullmatch(str(path)):
        return open(path, "rb")
    descriptor = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb")


def read_plain(path: Path, limit: int) -> bytes:
    """Read up to `limit` bytes of a regular file."""
    with open_plain(path) as file:
        return file.read(limit)
