"""Read untrusted files: never blocking, and never more than the requested size."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from proofbox.core.files.nofollow import DIRECTORY, open_below, open_regular

_INHERITED = r"/dev/stdin|(?:/dev|/proc/self)/fd/[0-9]+"
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_plain(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises `OSError` for anything else (a pipe, a device, a directory).

    A path that names an inherited descriptor, as from a shell's `<(…)`, is opened regardless of its type.
    """
    if str(path).startswith(("/dev/", "/proc/self/")) and re.fullmatch(_INHERITED, str(path)):
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


def read_inside(root: Path, name: Path, limit: int) -> bytes:
    """Read up to `limit` bytes of a regular file of a received directory, such as a project.

    Links are followed inside the directory. Raises `OSError` for one that leads out of it: its author must not choose
    which of the user's files are read. A link that is swapped in after the check is not followed.
    """
    base = Path(os.path.realpath(root))
    real = Path(os.path.realpath(base / name))
    if not real.is_relative_to(base):
        raise OSError(errno.EXDEV, f"it leads out of {base}", str(root / name))
    top = os.open(base, DIRECTORY)
    try:
        folder = open_below(top, str(real.parent.relative_to(base)), DIRECTORY)
    finally:
        os.close(top)
    try:
        with open_regular(real.name, folder) as file:
            return file.read(limit)
    finally:
        os.close(folder)
