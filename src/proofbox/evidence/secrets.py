"""Looking for the exact secrets this process knows in what is about to be committed."""

from __future__ import annotations

from proofbox.core.redaction.redactor import Redactor


class SecretScan:
    """Takes a file's bytes piece by piece, and remembers whether a secret was in them, across pieces too."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._overlap = redactor.longest_secret - 1
        self._tail = b""
        self.found = False

    def feed(self, data: bytes) -> None:
        if self.found or self._overlap < 0:
            return
        # The seam is looked at by itself: joining every large piece with the last one's end would copy it.
        self.found = self._redactor.contains_secret(data) or (
            bool(self._tail) and self._redactor.contains_secret(self._tail + data[: self._overlap])
        )
        self._tail = (self._tail + data)[-self._overlap :] if len(data) < self._overlap else data[-self._overlap :]
