"""The mount that a directory is on, and the mount points below it."""

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


def mount_points_below(path: str) -> list[str]:
    """The mount points inside a directory, at any depth. Its path is a resolved one.

    Only Linux can say. Elsewhere the list is empty.
    """
    within = os.fsencode(path).rstrip(b"/") + b"/"
    try:
        listed = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    places = dict.fromkeys(_place(line) for line in listed)
    return [os.fsdecode(place) for place in places if place.startswith(within)]


def _place(line: bytes) -> bytes:
    """The mount point: the fifth field, in which spaces, tabs, line ends and backslashes are written as numbers."""
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), line.split(b" ", 5)[4])
