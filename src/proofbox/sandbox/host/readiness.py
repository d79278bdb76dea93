"""Waiting for a descriptor, whatever its number: `select` takes none past 1023, and a thousand sessions have more."""

from __future__ import annotations

import select
from typing import Protocol


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


def readable(source: int | _HasFileno, seconds: float) -> bool:
    """Whether something can be read there, or its end was reached, within this time."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))
