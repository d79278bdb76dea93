"""Time limits as behaviour, on a machine of any speed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
SOON = 30.0
"""Below this nothing was waited for that takes a minute or for ever; the rest is a busy machine's."""


def in_time(attempt: Callable[[float], T], under_way: Callable[[T], object]) -> T:
    """What came of something that its time limit ended once it was under way.

    How long it takes to get there is the machine's affair: the limit grows until it was enough. What it then did is the
    test's.
    """
    for limit in (0.7, 3.0, 12.0, 48.0):
        came = attempt(limit)
        if under_way(came):
            return came
    raise AssertionError(f"in {limit:g} s it did not get under way: {came}")


@contextmanager
def limited_time(seconds: float = 60.0) -> Iterator[None]:
    """Raise TimeoutError after this time, so that blocking on a pipe or quadratic work fails the test."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
