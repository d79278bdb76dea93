"""Search data for the exact secrets known to this process before it is committed."""

from __future__ import annotations

from proofbox.core.redaction.redactor import Redactor


class SecretScan:
    """Searches a file piece by piece for secrets, including secrets split between pieces."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._overlap = redactor.longest_secret - 1
        self._tail = b""
        self.found = False

    def feed(self, data: bytes) -> None:
        if self.found or self._overlap < 0:
            return
        # The boundary is searched separately: joining every large piece with the previous end would copy it.
        self.found = self._redactor.contains_secret(data) or (
            bool(self._tail) and self._redactor.contains_secret(self._tail + data[: self._overlap])
        )
        self._tail = (self._tail + data)[-self._overlap :] if len(data) < self._overlap else data[-self._overlap :]
