"""Decoys that killed measurements left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PREFIX: Final = "proofbox-probe-"
"""The beginning of the name of a directory of decoys."""
MAX_PLACE: Final = 60
"""The longest temporary directory, in bytes, in which the address of a Unix socket fits."""


def decoy_directory() -> Path:
    """Return where directories of decoys are created."""
    place = Path(tempfile.gettempdir()).resolve()
    return place if len(os.fsencode(place)) <= MAX_PLACE else Path("/tmp")  # noqa: S108 (names below it are random)


def abandoned_decoys() -> Iterator[Path]:
    """Yield the directories of killed measurements; each is locked until the next is requested."""
    for path in sorted(decoy_directory().glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(fd).st_uid != os.geteuid():
                    continue
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
            finally:
                os.close(fd)
