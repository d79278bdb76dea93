"""Ids for created objects, such as `run-01kcy3m8r0q4c5v7w9xbdfhj2n`.

An id is `prefix-` and 26 lower-case Crockford base32 digits: 10 for the millisecond of creation, 16 for 80 random bits.
Sorting ids by text sorts them by time. They are safe as file names on every file system (lower case, no dots) and as
DNS labels (at most 63 characters), because containers, directories and branches are named after them.

Ids are not secrets: within one millisecond the next id is the previous one plus one.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable

from proofbox.core.clock import Clock, SystemClock

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 80
_LENGTH = 26
_PREFIX = re.compile(r"[a-z](?:-?[a-z0-9])*")
_BODY = f"[0-7][{_DIGITS}]{{{_LENGTH - 1}}}"
MAX_PREFIX = 63 - 1 - _LENGTH


class IdSource:
    """Creates ids that strictly increase within this source and do not collide with those of other sources.

    Clock and randomness are injected. If the clock steps back, the source keeps counting in the latest millisecond it
    has seen, so the order holds. After a fork the child draws new random bits, so it never repeats its parent's ids.
    """

    def __init__(self, clock: Clock | None = None, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._clock: Clock = clock or SystemClock()
        self._random_bytes = random_bytes
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._last = -1

    def new_id(self, prefix: str) -> str:
        """Return a new id. A prefix is lower-case letters, digits and single inner hyphens, at most 36 characters."""
        _check_prefix(prefix)
        millisecond = max(0, int(self._clock.now().timestamp() * 1000))
        with self._lock:
            number = self._next(millisecond)
        digits = [_DIGITS[number >> shift & 31] for shift in range(5 * (_LENGTH - 1), -1, -5)]
        return f"{prefix}-{''.join(digits)}"

    def _next(self, millisecond: int) -> int:
        pid = os.getpid()
        if pid != self._pid or millisecond > self._last >> _RANDOM_BITS:
            self._pid = pid
            self._last = millisecond << _RANDOM_BITS | int.from_bytes(self._random_bytes(_RANDOM_BITS // 8), "big")
        else:
            # An overflow of the random bits carries into the time, which keeps the order.
            self._last += 1
        return self._last


def is_id(text: str, prefix: str) -> bool:
    """Return whether `text` has the form of an id from `new_id(prefix)`. The object need not exist."""
    _check_prefix(prefix)
    head = prefix + "-"
    return text.startswith(head) and re.fullmatch(_BODY, text[len(head) :]) is not None


def _check_prefix(prefix: str) -> None:
    if len(prefix) > MAX_PREFIX or not _PREFIX.fullmatch(prefix):
        raise ValueError(f"not an id prefix: {prefix[:80]!r}")
