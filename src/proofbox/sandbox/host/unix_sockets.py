"""Unix sockets in a directory with a path of any length: an address holds only 108 bytes."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

SOCKET = "sock"


def listen_at(directory: Path) -> socket.socket:
    """Listen on the socket in this directory, under the name that proofbox always uses."""
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
    """Connect to the socket in this directory; raise OSError if no process listens."""
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
