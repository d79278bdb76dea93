"""Lines out of a stream of bytes that somebody else writes: of one without an end, only so much is held."""

from __future__ import annotations

from collections.abc import Iterator


class LineSplitter:
    """Gives each line with whether it was cut at the limit; empty ones are left out."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()
        self._cut = False

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        *whole, rest = data.split(b"\n")
        for line in whole:
            self._hold(line)
            yield from self.end()
        self._hold(rest)

    def end(self) -> Iterator[tuple[bytes, bool]]:
        """The line that is held, as if it ended here."""
        line, cut = bytes(self._held), self._cut
        self._held, self._cut = bytearray(), False
        if line:
            yield line, cut

    def _hold(self, data: bytes) -> None:
        room = self._limit - len(self._held)
        self._held += data[:room]
        self._cut = self._cut or len(data) > room
