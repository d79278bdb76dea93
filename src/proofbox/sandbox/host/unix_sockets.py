"""Unix sockets in a directory, whatever the length of its path: an address holds 108 bytes, a state directory more."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

SOCKET = "sock"


def listen_at(directory: Path) -> socket.socket:
    """A socket that listens in this directory, under the name all of proofbox uses for it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(directory) as short:
            listener.bind(f"{short}/{SOCKET}")
        listener.listen(64)
    except BaseException:
        listener.close()
        raise
    return listener


def connect_at(directory: Path) -> socket.socket:
    """A stream to who listens there; OSError where nobody does."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(directory) as short:
            stream.connect(f"{short}/{SOCKET}")
    except BaseException:
        stream.close()
        raise
    return stream


@contextlib.contextmanager
def _short(directory: Path) -> Iterator[str]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
