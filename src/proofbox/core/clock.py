"""Clocks that callers inject, so that tests and replays control the time.

Each clock has two readings: `now` says when something happened and may jump; `monotonic` measures durations and never
goes back. Deadlines are computed from `monotonic` only.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_FORMAT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")


class Clock(Protocol):
    """The clock interface that code uses instead of importing `time`."""

    def now(self) -> datetime:
        """Return the wall-clock time as an aware datetime in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; never decreases."""
        ...


class SystemClock:
    """The system's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when it is advanced, for tests and deterministic runs."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = _as_utc(start)
        self._monotonic = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Advance both readings by `seconds`, which must not be negative."""
        if seconds < 0:
            raise ValueError("a clock can't be advanced by a negative number of seconds")
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds


def isoformat(moment: datetime) -> str:
    """Format as `2026-01-01T00:00:00.000000Z`: UTC with six digits, so that text order is time order."""
    return _as_utc(moment).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse_isoformat(text: str) -> datetime:
    """Parse the output of `isoformat`. Any other format raises ValueError, since stored times have one form."""
    if not _FORMAT.fullmatch(text):
        raise ValueError(f"not a time of the form YYYY-MM-DDTHH:MM:SS.ffffffZ: {text[:40]!r}")
    return datetime.fromisoformat(text)


def _as_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("a datetime without a time zone is ambiguous")
    return moment.astimezone(UTC)
