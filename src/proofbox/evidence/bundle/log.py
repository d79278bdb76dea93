"""A log of a bundle: one chained line per entry, anchored in the index when the bundle commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from proofbox.core.chain import ChainWriter
from proofbox.core.redaction.redactor import Redactor
from proofbox.evidence.bundle.index import Anchor

SYNC_EVERY = 4096


class BundleLog:
    """Appends redacted entries: secrets that the redactor knows or recognises never reach the file.

    When `append` or `extend` returns, the entries survive the death of this process. After `flush`, after every
    `sync_every` entries, and after the bundle's commit, they also survive a power cut.
    """

    def __init__(self, chain: ChainWriter, redactor: Redactor | None, closed: Callable[[Anchor], None]) -> None:
        self._chain = chain
        self._redactor = redactor
        self._closed = closed
        self._open = True

    @property
    def count(self) -> int:
        return self._chain.count

    @property
    def head(self) -> str:
        """The digest that commits to every entry so far, for anchoring in other records."""
        return self._chain.head

    def append(self, entry: Mapping[str, Any]) -> str:
        """Add one entry and return the new head."""
        return self._chain.append(entry if self._redactor is None else self._redactor.redact_json(dict(entry)))

    def extend(self, entries: Iterable[Mapping[str, Any]]) -> str:
        """Add several entries in one write, all or none, and return the new head."""
        if self._redactor is not None:
            entries = [self._redactor.redact_json(dict(entry)) for entry in entries]
        return self._chain.extend(entries)

    def flush(self) -> None:
        self._chain.flush()

    def close(self) -> None:
        """Close the log. Closing twice is harmless. The bundle's commit syncs the remaining entries."""
        if self._open:
            self._chain.close(sync=False)
            self._open = False
            self._closed(Anchor(self._chain.count, self._chain.head))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
