"""Which mount a directory is on, and whether others lie below it."""

from __future__ import annotations

import os
import re
from pathlib import Path

_ESCAPED = re.compile(rb"\\([0-7]{3})")


def mount_of(path: str) -> tuple[int, str]:
    """The device and the mount: one device may be mounted in several ways, and a mount's number be used again."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        said = Path(f"/proc/self/fdinfo/{fd}").read_text()
        return os.fstat(fd).st_dev, next(line for line in said.splitlines() if line.startswith("mnt_id:"))
    finally:
        os.close(fd)


def mounts_below(path: str) -> bool:
    """Whether anything is mounted in the directory, at any depth."""
    within = os.fsencode(os.path.realpath(path)).rstrip(b"/") + b"/"
    listed = Path("/proc/self/mountinfo").read_bytes().splitlines()
    return any(_place(line).startswith(within) for line in listed)


def _place(line: bytes) -> bytes:
    """The mount point: the fifth field, in which spaces, tabs, line ends and backslashes are written as numbers."""
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), line.split(b" ", 5)[4])
