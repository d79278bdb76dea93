"""Open directories relative to their parents and never through symbolic links, so that swapping one has no effect."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(name: str, folder: int | None) -> Iterator[int]:
    fd = os.open(name, OPEN_DIRECTORY, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)
