"""Tests of timeouts that work on a machine of any speed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
SOON = 30.0
"""If a call returns within this many seconds, it did not wait for anything that takes a minute or never ends."""

LIMITS = (0.7, 3.0, 12.0, 48.0)


def in_time(attempt: Callable[[float], T], under_way: Callable[[T], object]) -> T:
    """Call `attempt` with growing timeouts until one is long enough for it to be under way, and return that result.

    How long the start takes depends on the machine, so it must not decide the outcome of the test.
    """
    for limit in LIMITS:
        result = attempt(limit)
        if under_way(result):
            return result
    raise AssertionError(f"not under way within {limit:g} s: {result}")


@contextmanager
def limited_time(seconds: float = 60.0) -> Iterator[None]:
    """Raise TimeoutError after this CPU time, or ten times as much time: for quadratic work, or blocking on a pipe."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    timers = {
        signal.SIGPROF: (signal.ITIMER_PROF, seconds),
        signal.SIGALRM: (signal.ITIMER_REAL, 10 * seconds),
    }
    before = {number: signal.signal(number, late) for number in timers}
    for timer, limit in timers.values():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])
