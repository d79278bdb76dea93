"""Manual clocks, and the format of stored times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.core.clock import Clock, ManualClock, SystemClock, isoformat, parse_isoformat

moments = st.datetimes(timezones=st.just(UTC))


def test_the_system_clock_is_utc_and_monotonic() -> None:
    clock: Clock = SystemClock()
    assert clock.now().utcoffset() == timedelta(0)
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(minutes=1)
    assert clock.monotonic() <= clock.monotonic()


def test_manual_clock_moves_only_when_advanced() -> None:
    clock = ManualClock(datetime(2026, 3, 1, 1, tzinfo=timezone(timedelta(hours=1))))
    assert clock.now() == clock.now() == datetime(2026, 3, 1, tzinfo=UTC)
    assert clock.now().utcoffset() == timedelta(0)
    clock.advance(1.5)
    assert clock.now() == datetime(2026, 3, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert clock.monotonic() == 1.5
    with pytest.raises(ValueError, match="negative"):
        clock.advance(-0.1)
    with pytest.raises(ValueError, match="zone"):
        ManualClock(datetime(2026, 3, 1))


@given(moments)
def test_time_round_trips_through_text(moment: datetime) -> None:
    text = isoformat(moment)
    assert parse_isoformat(text) == moment
    assert len(text) == 27


@given(moments, moments)
def test_text_order_is_time_order(one: datetime, other: datetime) -> None:
    assert (isoformat(one) < isoformat(other)) == (one < other)


def test_the_zone_is_converted_not_dropped() -> None:
    assert isoformat(datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-5)))) == "2026-01-01T05:00:00.000000Z"
    with pytest.raises(ValueError, match="zone"):
        isoformat(datetime(2026, 1, 1))


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.000Z",
        "2026-01-01T00:00:00.000000+00:00",
        "2026-01-01 00:00:00.000000Z",
        "2026-01-01T00:00:00.000000Z\n",
        "2026-13-01T00:00:00.000000Z",
        "2026-01-01T00:00:61.000000Z",
        "２026-01-01T00:00:00.000000Z",
        "",
    ],
)
def test_other_time_formats_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"form|month|second"):
        parse_isoformat(text)
