"""The states of an attempt, with the time of day only where it does not follow from the first."""

from __future__ import annotations

from datetime import timedelta

from msgspec import UNSET

from proofbox.core.clock import ManualClock
from proofbox.lab.attempt.states import States


class SetClock(ManualClock):
    """A clock whose time of day can be set."""

    def set_forward(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


def test_the_time_of_day_is_stated_once_unless_the_clock_is_set() -> None:
    clock = SetClock()
    states = States(clock)
    clock.advance(1.5)
    states.enter("preparing")
    clock.set_forward(0.001)
    states.enter("running")
    clock.set_forward(-0.001)
    clock.advance(1)
    states.enter("stopping")
    assert [(each.at_ms, each.at) for each in states.log] == [
        (0, "2026-01-01T00:00:00.000000Z"),
        (1500, UNSET),
        (1500, "2026-01-01T00:00:01.501000Z"),
        (2500, UNSET),
    ]
