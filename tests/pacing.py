"""Time limits as behaviour, on a machine of any speed."""

from __future__ import annotations

from collections.abc import Callable
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
