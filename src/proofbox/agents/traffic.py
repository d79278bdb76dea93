"""What can be learned from a model's answer on its way through: tokens, rate windows, errors. No I/O here.

The Responses API is what is read: a stream of server-sent events, or a JSON body. What is not understood is passed
over; nothing that an endpoint says can raise or fill the memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from proofbox.agents.events import RateWindow, TokenUsage
from proofbox.core.text import preview, printable

MAX_EVENT = 8 << 20
SAID = 500
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")
_TELLING = (b"response.completed", b"response.failed", b"response.incomplete", b"response.output_item.done", b'"error"')
ARGUMENTS = 64 << 10

Outcome = Literal["completed", "failed", "http_error", "unreachable", "redirected", "cut", "abandoned", "refused"]


class Exchange(msgspec.Struct, kw_only=True):
    """One request to the model as the gateway saw it."""

    number: int
    thread: str = ""
    """Which thread and turn it was for, as the runtime's own headers say."""
    turn: str = ""
    method: str
    path: str
    status: int = 0
    outcome: Outcome = "abandoned"
    at_ms: float = 0.0
    first_byte_ms: float | None = None
    duration_ms: float = 0.0
    request_bytes: int = 0
    response_bytes: int = 0
    usage: TokenUsage | None = None
    windows: tuple[RateWindow, ...] = ()
    error_type: str = ""
    error_code: str = ""
    error_message: str = ""
    retry_after: float | None = None
    resets_at: float | None = None


class RequestedCall(msgspec.Struct, frozen=True):
    """A tool call that the model asks the agent for."""

    id: str
    tool: str
    arguments: str
    """As the model wrote them, cut to 64 KiB."""


OnCall = Callable[[Exchange, RequestedCall], None]


class StreamReader:
    """Reads a stream of events as it passes, into the exchange. Lines that are too long are passed over.

    `on_call` hears of a tool call before the agent does.
    """

    def __init__(self, exchange: Exchange, on_call: OnCall | None = None) -> None:
        self._exchange = exchange
        self._on_call = on_call

    def line(self, line: bytes) -> None:
        if not line.startswith(b"data:") or len(line) > MAX_EVENT or not any(word in line for word in _TELLING):
            return
        try:
            event = msgspec.json.decode(line[5:].strip())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if not isinstance(event, dict):
            return
        exchange, kind = self._exchange, event.get("type")
        response = event.get("response")
        response = response if isinstance(response, dict) else {}
        if kind in ("response.completed", "response.incomplete"):
            exchange.outcome = "completed"
            exchange.usage = read_usage(response.get("usage"))
        elif kind == "response.failed":
            exchange.outcome = "failed"
            read_error(exchange, response.get("error"))
        elif kind == "error":
            exchange.outcome = "failed"
            read_error(exchange, event.get("error") or event)
        elif kind == "response.output_item.done" and self._on_call is not None:
            call = read_call(event.get("item"))
            if call is not None:
                self._on_call(exchange, call)


def read_body(exchange: Exchange, body: bytes) -> None:
    """A JSON answer that is no stream: an error, or a whole response."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if isinstance(value, dict):
        read_error(exchange, value.get("error"))
        if exchange.status < 300 and value.get("status") == "completed":
            exchange.outcome = "completed"
            exchange.usage = read_usage(value.get("usage"))


def read_error(exchange: Exchange, error: Any) -> None:
    if not isinstance(error, dict):
        return
    exchange.error_type = _said(error.get("type"))
    exchange.error_code = _said(error.get("code"))
    exchange.error_message = _said(error.get("message"))
    exchange.resets_at = _number(error.get("resets_at")) or exchange.resets_at


def read_call(item: Any) -> RequestedCall | None:
    id = item.get("call_id") if isinstance(item, dict) else None
    if not isinstance(id, str) or not id or str(item.get("type", "")).endswith("_output"):
        return None
    namespace, name = item.get("namespace"), item.get("name")
    tool = f"{namespace}.{name}" if isinstance(namespace, str) and namespace else name or item.get("type")
    given = next((item[key] for key in ("arguments", "input") if isinstance(item.get(key), str)), "")
    return RequestedCall(id[:200], preview(str(tool), 200)[0], preview(given, ARGUMENTS)[0])


def read_usage(usage: Any) -> TokenUsage | None:
    if not isinstance(usage, dict):
        return None

    def count(name: str, inner: str = "") -> int:
        value = usage.get(name)
        if inner:
            value = value.get(inner) if isinstance(value, dict) else 0
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0

    return TokenUsage(
        input_tokens=count("input_tokens"),
        output_tokens=count("output_tokens"),
        cached_input_tokens=count("input_tokens_details", "cached_tokens"),
        reasoning_tokens=count("output_tokens_details", "reasoning_tokens"),
    )


def read_headers(exchange: Exchange, headers: Mapping[str, str], now: float) -> None:
    """Rate windows and the time to come back, from an answer's headers. `now` is seconds since the epoch."""
    windows: list[RateWindow] = []
    for name in ("primary", "secondary"):
        used = _number(headers.get(f"x-codex-{name}-used-percent"))
        if used is not None:
            after = _number(headers.get(f"x-codex-{name}-reset-after-seconds"))
            windows.append(
                RateWindow(
                    name=name,
                    used_percent=used,
                    window_minutes=_number(headers.get(f"x-codex-{name}-window-minutes")),
                    resets_at=_number(headers.get(f"x-codex-{name}-reset-at"))
                    or (now + after if after is not None else None),
                )
            )
    for name in ("requests", "tokens"):
        limit = _number(headers.get(f"x-ratelimit-limit-{name}"))
        left = _number(headers.get(f"x-ratelimit-remaining-{name}"))
        if limit and left is not None:
            after = read_duration(headers.get(f"x-ratelimit-reset-{name}", ""))
            used = round(100 * (1 - min(left, limit) / limit), 3)
            resets = now + after if after is not None else None
            windows.append(RateWindow(name=name, used_percent=used, resets_at=resets))
    exchange.windows = tuple(windows)
    exchange.retry_after = _number(headers.get("retry-after"))


def read_duration(text: str) -> float | None:
    """`6m0s`, `250ms`, `1h2m`: seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
    return _number(days * 86400 + hours * 3600 + minutes * 60 + seconds + milliseconds / 1000)


def added(one: TokenUsage, other: TokenUsage, sign: int = 1) -> TokenUsage:
    return TokenUsage(
        **{name: getattr(one, name) + sign * getattr(other, name) for name in TokenUsage.__struct_fields__}
    )


def _number(value: Any) -> float | None:
    """What a number can be at all. How long a limit is believed is for who waits to say: see `lab/limiter.py`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < 1e12 else None


def _said(value: Any) -> str:
    return printable(preview(value, SAID)[0]) if isinstance(value, str) else ""
