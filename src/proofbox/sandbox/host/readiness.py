"""Wait for a descriptor with any number: `select` is limited to 1023, and many open sessions exceed that."""

from __future__ import annotations

import select
from typing import Protocol


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


def readable(source: int | _HasFileno, seconds: float | None) -> bool:
    """Return whether the source has data or has reached its end within this time."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))
