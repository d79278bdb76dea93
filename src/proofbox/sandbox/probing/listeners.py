"""Sockets of this host that a box must not reach, which note what they receive."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from pathlib import Path
from typing import Final

MAX_CONNECTIONS: Final = 256
MAX_RECEIVED: Final = 1 << 22
"""What is kept: enough for the marks of all probes."""


class Listeners:
    """Listening sockets on this host that note what they receive."""

    def __init__(self, path: Path, abstract: str) -> None:
        self.path, self.abstract = path, abstract
        self._streams = [
            _listening(socket.AF_INET, ("127.0.0.1", 0)),
            _listening(socket.AF_UNIX, str(path)),
            _listening(socket.AF_UNIX, f"\0{abstract}"),
        ]
        path.chmod(0o777)
        self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._datagrams.bind(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._wake, self._awake = socket.socketpair()
        self._received = b""
        self._reading = threading.Lock()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def tcp_port(self) -> int:
        return int(self._streams[0].getsockname()[1])

    @property
    def udp_port(self) -> int:
        return int(self._datagrams.getsockname()[1])

    def received(self, mark: str) -> bool:
        """Return whether a string has arrived. Everything that was sent before this call is read first."""
        with self._reading:
            self._read_all()
            return mark.encode() in self._received

    def close(self) -> None:
        self._wake.close()
        self._thread.join()
        for each in (*self._streams, *self._open, self._datagrams, self._awake):
            each.close()

    def _serve(self) -> None:
        """Read what arrives until `close`. The answer to a DNS query cannot wait for the end of the lane."""
        while True:
            poll = select.poll()
            for each in (*self._streams, *self._open, self._datagrams, self._awake):
                poll.register(each, select.POLLIN)
            if self._awake.fileno() in dict(poll.poll()):
                return
            with self._reading:
                self._read_all()

    def _read_all(self) -> None:
        for listener in self._streams:
            with contextlib.suppress(OSError):  # nothing more to accept
                while len(self._open) < MAX_CONNECTIONS:
                    self._open.append(listener.accept()[0])
        for each in (*self._open, self._datagrams):
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while self._keep(each):
                    pass

    def _keep(self, each: socket.socket) -> bool:
        """Keep what a socket received, and return whether there may be more. Raises BlockingIOError if there is not."""
        try:
            data, sender = each.recvfrom(4096)
        except BlockingIOError:
            raise
        except OSError:
            data, sender = b"", None
        self._received = (self._received + data)[-MAX_RECEIVED:]
        if each is self._datagrams:
            with contextlib.suppress(OSError):
                each.sendto(data, sender)  # any answer will do for a name
        elif not data:
            each.close()
            self._open.remove(each)
            return False
        return True


def _listening(family: socket.AddressFamily, address: object) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.bind(address)  # type: ignore[arg-type]
    made.listen(64)
    made.setblocking(False)
    return made
