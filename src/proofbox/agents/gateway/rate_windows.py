"""Parse rate windows and retry delays from the headers of a model's response. No I/O here, and nothing raises."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from proofbox.agents.events import RateWindow

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")
_SUBSCRIPTION = (("primary", "5h", 300.0), ("secondary", "7d", 10080.0))
"""The windows of a subscription: our name, Anthropic's name, and minutes."""


def read_windows(headers: Mapping[str, str], now: float) -> tuple[RateWindow, ...]:
    """Parse the rate windows of Codex, OpenAI's API and Anthropic's API. `now` is seconds since the epoch."""
    return (*_codex(headers, now), *_openai(headers, now), *_anthropic(headers))


def _codex(headers: Mapping[str, str], now: float) -> Iterator[RateWindow]:
    for name in ("primary", "secondary"):
        used = number_of(headers.get(f"x-codex-{name}-used-percent"))
        if used is not None:
            after = number_of(headers.get(f"x-codex-{name}-reset-after-seconds"))
            yield RateWindow(
                name=name,
                used_percent=used,
                window_minutes=number_of(headers.get(f"x-codex-{name}-window-minutes")),
                resets_at=number_of(headers.get(f"x-codex-{name}-reset-at"))
                or (now + after if after is not None else None),
            )


def _openai(headers: Mapping[str, str], now: float) -> Iterator[RateWindow]:
    for name in ("requests", "tokens"):
        used = _used(headers.get(f"x-ratelimit-limit-{name}"), headers.get(f"x-ratelimit-remaining-{name}"))
        if used is not None:
            after = read_duration(headers.get(f"x-ratelimit-reset-{name}", ""))
            yield RateWindow(name=name, used_percent=used, resets_at=now + after if after is not None else None)


def _anthropic(headers: Mapping[str, str]) -> Iterator[RateWindow]:
    for name, window, minutes in _SUBSCRIPTION:
        prefix = f"anthropic-ratelimit-unified-{window}"
        share = number_of(headers.get(f"{prefix}-utilization"))
        if share is not None:
            resets = number_of(headers.get(f"{prefix}-reset"))
            percent = round(100 * share, 3)
            yield RateWindow(name=name, used_percent=percent, window_minutes=minutes, resets_at=resets)
    for name, kinds in (("requests", ("requests",)), ("tokens", ("tokens", "input-tokens", "output-tokens"))):
        found = [
            (used, read_time(headers.get(f"anthropic-ratelimit-{kind}-reset", "")))
            for kind in kinds
            for prefix in [f"anthropic-ratelimit-{kind}"]
            if (used := _used(headers.get(f"{prefix}-limit"), headers.get(f"{prefix}-remaining"))) is not None
        ]
        if found:  # the tightest of the limits on tokens
            most, resets = max(found, key=lambda each: each[0])
            yield RateWindow(name=name, used_percent=most, resets_at=resets)


def _used(limit: Any, remaining: Any) -> float | None:
    whole, left = number_of(limit), number_of(remaining)
    return round(100 * (1 - min(left, whole) / whole), 3) if whole and left is not None else None


def read_time(text: str) -> float | None:
    """Parse a time such as `2026-11-16T04:30:00Z`. Return seconds since the epoch."""
    try:
        return number_of(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        return None


def read_duration(text: str) -> float | None:
    """Parse a duration such as `6m0s`, `250ms` or `1h2m`. Return seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
    return number_of(days * 86400 + hours * 3600 + minutes * 60 + seconds + milliseconds / 1000)


def number_of(value: Any) -> float | None:
    """Parse a plausible number. `lab/run/limiter.py` decides how long to honour a limit."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < 1e12 else None
