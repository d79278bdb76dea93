"""A container's attached streams as one plain stream; its stderr is kept to explain failures."""

from __future__ import annotations

import contextlib
import socket
import threading

_HEADER = 8
_STDOUT, _STDERR = 1, 2
ACCOUNT_LIMIT = 4096
CHUNK = 64 << 10


class AttachedStream:
    """Two threads copy bytes until either side ends. The client uses `ours`."""

    def __init__(self, attached: socket.socket) -> None:
        self._attached = attached
        self.ours, self._theirs = socket.socketpair()
        self.stderr = b""
        for target in (self._copy_to_container, self._copy_from_container):
            threading.Thread(target=target, name="proofbox-attached", daemon=True).start()

    def close(self) -> None:
        for end in (self._attached, self._theirs):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _copy_to_container(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._theirs.recv(CHUNK):
                self._attached.sendall(data)
        self.close()

    def _copy_from_container(self) -> None:
        with contextlib.suppress(OSError):
            while header := self._exactly(_HEADER):
                kind, size = header[0], int.from_bytes(header[4:], "big")
                while size:
                    data = self._attached.recv(min(size, CHUNK))
                    if not data:
                        break
                    size -= len(data)
                    if kind == _STDOUT:
                        self._theirs.sendall(data)
                    elif kind == _STDERR:
                        self.stderr = (self.stderr + data)[-ACCOUNT_LIMIT:]
        self.close()

    def _exactly(self, count: int) -> bytes:
        held = b""
        while len(held) < count:
            data = self._attached.recv(count - len(held))
            if not data:
                return b""
            held += data
        return held
