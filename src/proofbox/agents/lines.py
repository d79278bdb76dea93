"""Split an untrusted stream of bytes into lines, with a limit on the length of a line."""

from __future__ import annotations

from collections.abc import Iterator


class LineSplitter:
    """Yields each non-empty line, and whether it was truncated at the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._cut = False

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        *whole, rest = data.split(b"\n")
        for line in whole:
            self._append(line)
            yield from self.end()
        self._append(rest)

    def end(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the buffered rest as the last line."""
        line, cut = bytes(self._buffer), self._cut
        self._buffer, self._cut = bytearray(), False
        if line:
            yield line, cut

    def _append(self, data: bytes) -> None:
        room = self._limit - len(self._buffer)
        self._buffer += data[:room]
        self._cut = self._cut or len(data) > room
