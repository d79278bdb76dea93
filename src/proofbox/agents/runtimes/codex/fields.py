"""Read members of untrusted JSON: each may be missing, of another type, or huge. Nothing raises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from proofbox.agents.events import RateWindow, TokenUsage
from proofbox.core.text import preview

NOTE = 2000
ID = 200
"""Maximum length of an id. Ids are kept in memory, so their length is limited."""
TOO_DEEP = b'"(not shown: nested too deeply)"'

JsonObject = dict[str, Any]


def text(members: Any, name: str) -> str:
    value = members.get(name) if isinstance(members, dict) else None
    return value if isinstance(value, str) else ""


def cut(members: Any, name: str, limit: int) -> str:
    return preview(text(members, name), limit)[0]


def id(members: Any, name: str = "id") -> str:
    return cut(members, name, ID)


def inner(members: JsonObject, name: str) -> JsonObject:
    value = members.get(name)
    return value if isinstance(value, dict) else {}


def number(members: JsonObject, name: str) -> float | None:
    value = members.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def count(members: JsonObject, name: str) -> int:
    value = number(members, name)
    return int(value) if value is not None and 0 <= value < 2**53 else 0


def usage(total: JsonObject) -> TokenUsage:
    return TokenUsage(
        input_tokens=count(total, "inputTokens"),
        output_tokens=count(total, "outputTokens"),
        cached_input_tokens=count(total, "cachedInputTokens"),
        reasoning_tokens=count(total, "reasoningOutputTokens"),
    )


def windows(limits: JsonObject) -> Iterator[RateWindow]:
    for name in ("primary", "secondary"):
        window = inner(limits, name)
        if window:
            yield RateWindow(
                name=name,
                used_percent=number(window, "usedPercent"),
                window_minutes=number(window, "windowDurationMins"),
                resets_at=number(window, "resetsAt"),
            )


def note(members: JsonObject) -> str:
    shown = {name: value for name, value in members.items() if name not in ("threadId", "turnId")}
    only = shown.get("message") if len(shown) == 1 else None
    return preview(only, NOTE)[0] if isinstance(only, str) else as_json(shown, NOTE)


def as_json(value: Any, limit: int) -> str:
    return preview(value if isinstance(value, str) else encoded(value), limit)[0]


def encoded(value: Any) -> bytes:
    """Encode a value as JSON. Decoding allows deeper nesting than encoding, so this may return a placeholder."""
    try:
        return msgspec.json.encode(value)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return TOO_DEEP
