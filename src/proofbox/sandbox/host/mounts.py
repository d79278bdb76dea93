"""The mount that a directory is on, and the mount points below it."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

_ESCAPED = rb"\\([0-7]{3})"


def mount_of(path: str) -> tuple[int, str]:
    """Return the device and the mount id: a device may be mounted several times, and mount ids are reused."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        fdinfo = Path(f"/proc/self/fdinfo/{fd}").read_text()
        return os.fstat(fd).st_dev, next(line for line in fdinfo.splitlines() if line.startswith("mnt_id:"))
    finally:
        os.close(fd)


def mount_points_below(path: str) -> list[str]:
    """Return the mount points inside a directory, at any depth; empty on systems other than Linux."""
    within = _prefix(path)
    places = dict.fromkeys(_place(line) for line in _listed())
    return [os.fsdecode(place) for place in places if place.startswith(within)]


def file_systems(path: str) -> list[tuple[str, str]]:
    """Return the type of the file system a directory is on, as ".", and of those mounted below it, by relative path."""
    within = _prefix(path)
    on, below = b"", []
    longest = b""
    for line in _listed():
        place = _place(line)
        if place.startswith(within):
            below.append((os.fsdecode(place[len(within) :]), _kind(line)))
        elif within.startswith(place.rstrip(b"/") + b"/") and len(place) >= len(longest):
            on, longest = line, place  # the last mount on a mount point is on top
    return [*([(".", _kind(on))] if on else []), *below]


def _prefix(path: str) -> bytes:
    return os.fsencode(os.path.realpath(path)).rstrip(b"/") + b"/"


def _listed() -> list[bytes]:
    """Return the lines of this process's mount table.

    They are read each time. The kernel does not report that a directory above a mount point was renamed, so a copy
    could name the wrong places.
    """
    try:
        return Path("/proc/self/mountinfo").read_bytes().splitlines()
    except FileNotFoundError:  # not on Linux
        return []


def _kind(line: bytes) -> str:
    """Return the file system's type: the first field after the separator."""
    return os.fsdecode(line.partition(b" - ")[2].split(b" ", 1)[0])


@functools.lru_cache(maxsize=1024)  # the same lines are read several times for each box
def _place(line: bytes) -> bytes:
    """Return the mount point: the fifth field, in which spaces, tabs, newlines and backslashes are octal escapes."""
    place = line.split(b" ", 5)[4]
    return re.sub(_ESCAPED, lambda match: bytes([int(match[1], 8)]), place) if b"\\" in place else place
