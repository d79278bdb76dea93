"""Members of what a program in a box says: each may be missing, of another type, or huge. Nothing raises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from proofbox.agents.events import RateWindow, TokenUsage
from proofbox.core.text import preview

NOTE = 2000
ID = 200
"""Ids are remembered, so that a program can't make them as long as it likes."""
UNSHOWN = b'"(not shown: nested too deeply)"'

Said = dict[str, Any]


def text(said: Any, name: str) -> str:
    value = said.get(name) if isinstance(said, dict) else None
    return value if isinstance(value, str) else ""


def cut(said: Any, name: str, limit: int) -> str:
    return preview(text(said, name), limit)[0]


def id(said: Any, name: str = "id") -> str:
    return cut(said, name, ID)


def inner(said: Said, name: str) -> Said:
    value = said.get(name)
    return value if isinstance(value, dict) else {}


def number(said: Said, name: str) -> float | None:
    value = said.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def count(said: Said, name: str) -> int:
    value = number(said, name)
    return int(value) if value is not None and 0 <= value < 2**53 else 0


def usage(total: Said) -> TokenUsage:
    return TokenUsage(
        input_tokens=count(total, "inputTokens"),
        output_tokens=count(total, "outputTokens"),
        cached_input_tokens=count(total, "cachedInputTokens"),
        reasoning_tokens=count(total, "reasoningOutputTokens"),
    )


def windows(limits: Said) -> Iterator[RateWindow]:
    for name in ("primary", "secondary"):
        window = inner(limits, name)
        if window:
            yield RateWindow(
                name=name,
                used_percent=number(window, "usedPercent"),
                window_minutes=number(window, "windowDurationMins"),
                resets_at=number(window, "resetsAt"),
            )


def note(said: Said) -> str:
    told = {name: value for name, value in said.items() if name not in ("threadId", "turnId")}
    only = told.get("message") if len(told) == 1 else None
    return preview(only, NOTE)[0] if isinstance(only, str) else as_json(told, NOTE)


def as_json(value: Any, limit: int) -> str:
    return preview(value if isinstance(value, str) else encoded(value), limit)[0]


def encoded(value: Any) -> bytes:
    """What could be read can't always be written: reading may nest deeper."""
    try:
        return msgspec.json.encode(value)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return UNSHOWN
