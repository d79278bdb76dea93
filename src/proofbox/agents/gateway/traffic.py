"""Parse token usage, tool calls and errors from the responses that pass through the gateway. No I/O here.

Four formats are supported, each as a stream of server-sent events or as a JSON body: OpenAI Responses, OpenAI Chat
Completions, Anthropic Messages, and Gemini. Anything else is ignored. No response can raise an error here or exhaust
memory. A response whose usage could not be read counts as unknown, never as zero.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from proofbox.agents.events import ModelExchange, RateWindow, TokenUsage
from proofbox.agents.gateway.rate_windows import number_of, read_duration
from proofbox.core.text import preview, printable

MAX_EVENT = 8 << 20
TEXT_LIMIT = 500
_MARKERS = (
    *(b"response.completed", b"response.failed", b"response.incomplete", b"response.output_item.done", b'"error"'),
    *(b'"usage"', b'"finish_reason"', b"message_stop", b"[DONE]"),
    *(b'"usageMetadata"', b'"finishReason"', b'"promptFeedback"'),
)
ARGUMENTS = 64 << 10
_OUTPUTS = ("output", "choices", "content", "candidates")
"""The members that hold the response of a model."""
_ELEMENT = re.compile(r"[^\s,]")
_KEY_REASONS = ("API_KEY_INVALID", "BILLING_DISABLED")
"""Reasons in the details of Gemini's errors that name the key or the account, with the status of an invalid request."""
_FREE = ("/count_tokens", "/input_tokens", ":countTokens")
"""Requests that are answered without running a model."""

Outcome = Literal["completed", "failed", "http_error", "unreachable", "redirected", "cut", "abandoned", "refused"]


class Exchange(msgspec.Struct, kw_only=True):
    """One request to the model as the gateway saw it."""

    number: int
    thread: str = ""
    """The thread of the request, from the runtime's headers; likewise `turn`."""
    turn: str = ""
    method: str
    path: str
    variant: tuple[str, ...] | None = ()
    """What besides the path decides whether the endpoint accepts the key: its header, the model and the API's beta
    features. None if the request can't be read."""
    status: int = 0
    outcome: Outcome = "abandoned"
    at_ms: float = 0.0
    duration_ms: float | None = None
    """None while the exchange is in progress."""
    whole: bool = False
    """The response was read to its end, also if the client had left before that."""
    usage: TokenUsage | None = None
    """The usage that the endpoint stated; for a response that broke off, the usage stated before that."""
    unmeasured: Literal["", "no_usage", "broken_off"] = ""
    """Why `usage` is incomplete: the endpoint did not state it, or the response broke off."""
    windows: tuple[RateWindow, ...] = ()
    error_type: str = ""
    error_code: str = ""
    error_status: int = 0
    """The HTTP status that the error states, which a stream may state after its status 200."""
    error_message: str = ""
    retry_after: float | None = None
    resets_at: float | None = None
    bodies: ModelExchange | None = None
    """Only while the exchange is reported, and if bodies are recorded."""


class RequestedCall(msgspec.Struct, frozen=True):
    """A tool call that the model requests from the agent."""

    id: str
    tool: str
    arguments: str
    """As the model wrote them, truncated to 64 KiB."""


OnCall = Callable[[Exchange, RequestedCall], None]


class StreamReader:
    """Parses a stream of events into the exchange. Lines that are too long are ignored.

    `on_call` is called before the agent receives the tool call.
    """

    def __init__(self, exchange: Exchange, on_call: OnCall | None = None) -> None:
        self._exchange = exchange
        self._on_call = on_call
        self._usage: dict[str, Any] = {}
        self._finished = False
        self.ended = False
        """The stream has stated its end; later data does not change the exchange."""

    def line(self, line: bytes) -> None:
        if not line.startswith(b"data:") or len(line) > MAX_EVENT or not any(word in line for word in _MARKERS):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self._end("completed")
            return
        try:
            event = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        self.event(event)

    def finish(self) -> None:
        """Handle a regular end of the connection."""
        if not self.ended:
            self._end("completed" if self._finished else "cut")

    def event(self, event: Any) -> None:
        if not isinstance(event, dict) or self.ended:
            return
        exchange, kind = self._exchange, event.get("type")
        response, message = _table(event.get("response")), _table(event.get("message"))
        if kind in ("response.completed", "response.incomplete"):
            self._count(response.get("usage"))
            self._end("completed")
        elif kind == "response.failed":
            self._count(response.get("usage"))
            read_error(exchange, response.get("error"))
            self._end("failed")
        elif kind == "error" or (kind is None and isinstance(event.get("error"), dict)):
            read_error(exchange, event.get("error") or event)
            self._end("failed")
        elif kind == "response.output_item.done" and self._on_call is not None:
            call = read_call(event.get("item"))
            if call is not None:
                self._on_call(exchange, call)
        elif kind == "message_start":
            self._count(message.get("usage"))
        elif kind == "message_delta":  # its counts are cumulative
            self._count(event.get("usage"))
        elif kind == "message_stop":
            self._end("completed")
        elif kind is None and isinstance(event.get("choices"), list):
            self._count(event.get("usage"))  # in the last chunk, or cumulative in every chunk
            self._finished = self._finished or any(_table(each).get("finish_reason") for each in event["choices"])
        elif kind is None and any(name in event for name in ("candidates", "usageMetadata", "promptFeedback")):
            self._count(event.get("usageMetadata"))  # cumulative
            candidates = event.get("candidates")
            ended = [_table(each).get("finishReason") for each in candidates] if isinstance(candidates, list) else []
            blocked = _table(event.get("promptFeedback")).get("blockReason")  # the model does not answer the prompt
            self._finished = self._finished or any(ended) or bool(blocked)

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict) and self._exchange.method == "POST":
            self._usage |= {name: value for name, value in usage.items() if value is not None}
            self._exchange.usage = read_usage(self._usage)

    def _end(self, outcome: Outcome) -> None:
        self._exchange.outcome, self.ended = outcome, True


def read_body(exchange: Exchange, body: bytes) -> None:
    """Parse a JSON body: an error or a complete response.

    Only responses to POST count towards the usage, because an existing response can be fetched many times.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        is_text = body.lstrip()[:1] in (b"", b"[", b"{", b"<")  # else the client asked for another form
        if _is_array_stream(exchange) and is_text and len(body) <= MAX_EVENT:  # larger ones are not read to their end
            read_partial_body(exchange, body)
            exchange.outcome = "cut"
        return
    if isinstance(value, list) and len(value) == 1 and isinstance(_table(value[0]).get("error"), dict):
        value = value[0]  # Google sends errors in this form, even in its version of OpenAI's API
    if isinstance(value, list) and _is_array_stream(exchange):
        reader = StreamReader(exchange)
        for event in value:
            reader.event(event)
        reader.finish()
    if isinstance(value, dict):
        read_error(exchange, value.get("error"))
        if exchange.status < 300:
            failed = value.get("status") == "failed" or (value.get("error") and not any(map(value.get, _OUTPUTS)))
            exchange.outcome = "failed" if failed else "completed"
            if exchange.method == "POST":
                exchange.usage = read_usage(value.get("usage") or value.get("usageMetadata"))


def read_partial_body(exchange: Exchange, body: bytes) -> None:
    """Read the complete elements of an array stream that broke off, for the usage that they state."""
    if not _is_array_stream(exchange):
        return
    text, reader, decoder = body.decode("utf-8", "replace"), StreamReader(exchange), json.JSONDecoder()
    at = text.find("[") + 1
    with contextlib.suppress(ValueError, RecursionError):
        while start := _ELEMENT.search(text, at):
            event, at = decoder.raw_decode(text, start.start())
            reader.event(event)


def _is_array_stream(exchange: Exchange) -> bool:
    """Return whether a JSON body is a stream of Gemini without `alt=sse`."""
    return ":streamGenerateContent" in exchange.path and exchange.status < 300


def asks_model(exchange: Exchange) -> bool:
    """Return whether the request runs a model, unlike one that lists models or counts tokens."""
    return exchange.method == "POST" and not exchange.path.partition("?")[0].endswith(_FREE)


def measure(exchange: Exchange) -> None:
    """Set `unmeasured` on a finished exchange."""
    if not asks_model(exchange):
        return
    was_left = exchange.outcome == "abandoned" and exchange.whole
    if exchange.outcome in ("cut", "abandoned") and not was_left:
        exchange.unmeasured = "broken_off"
    elif (exchange.outcome == "completed" or was_left) and exchange.usage is None:
        exchange.unmeasured = "no_usage"


def read_error(exchange: Exchange, error: Any) -> None:
    if not isinstance(error, dict):
        return
    exchange.error_type = _short_text(error.get("type") or error.get("status"))
    code = error.get("code")
    exchange.error_code = _short_text(code)
    exchange.error_status = code if isinstance(code, int) and 400 <= code < 600 else 0
    exchange.error_message = _short_text(error.get("message"))
    exchange.resets_at = number_of(error.get("resets_at")) or exchange.resets_at
    _read_details(exchange, error.get("details"))


def _read_details(exchange: Exchange, details: Any) -> None:
    """Read the details of an error of Gemini: an invalid key, when to retry, and whether a day's quota is used up."""
    for detail in details[:100] if isinstance(details, list) else []:
        reason = _table(detail).get("reason")
        if reason in _KEY_REASONS:
            exchange.error_code = exchange.error_code or reason
        delay = _table(detail).get("retryDelay")
        if isinstance(delay, str) and exchange.retry_after is None:
            exchange.retry_after = read_duration(delay)
        violations = _table(detail).get("violations")
        for each in violations[:100] if isinstance(violations, list) else []:
            if "PerDay" in str(_table(each).get("quotaId")):
                exchange.error_code = exchange.error_code or "usage_limit_reached"


def read_call(item: Any) -> RequestedCall | None:
    id = item.get("call_id") if isinstance(item, dict) else None
    if not isinstance(id, str) or not id or str(item.get("type", "")).endswith("_output"):
        return None
    namespace, name = item.get("namespace"), item.get("name")
    tool = f"{namespace}.{name}" if isinstance(namespace, str) and namespace else name or item.get("type")
    given = next((item[key] for key in ("arguments", "input") if isinstance(item.get(key), str)), "")
    return RequestedCall(id[:200], preview(str(tool), 200)[0], preview(given, ARGUMENTS)[0])


def read_usage(usage: Any) -> TokenUsage | None:
    """Parse the `usage` of any of the formats. Return None if it contains no token counts."""
    if not isinstance(usage, dict):
        return None

    def count(name: str, inner: str = "") -> int | None:
        value = usage.get(name)
        if inner:
            value = value.get(inner) if isinstance(value, dict) else None
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None

    if count("prompt_tokens") is not None or count("completion_tokens") is not None:
        return TokenUsage(
            input_tokens=count("prompt_tokens") or 0,
            output_tokens=count("completion_tokens") or 0,
            cached_input_tokens=count("prompt_tokens_details", "cached_tokens") or 0,
            reasoning_tokens=count("completion_tokens_details", "reasoning_tokens") or 0,
        )
    if count("promptTokenCount") is not None:  # Gemini counts thoughts separately from the output
        thoughts = count("thoughtsTokenCount") or 0
        return TokenUsage(
            input_tokens=(count("promptTokenCount") or 0) + (count("toolUsePromptTokenCount") or 0),
            output_tokens=(count("candidatesTokenCount") or 0) + thoughts,
            cached_input_tokens=count("cachedContentTokenCount") or 0,
            reasoning_tokens=thoughts,
        )
    if count("input_tokens") is None and count("output_tokens") is None:
        return None
    # Anthropic counts cache reads and writes separately from the input; OpenAI includes them in it.
    read, written = count("cache_read_input_tokens"), count("cache_creation_input_tokens")
    return TokenUsage(
        input_tokens=(count("input_tokens") or 0) + (read or 0) + (written or 0),
        output_tokens=count("output_tokens") or 0,
        cached_input_tokens=count("input_tokens_details", "cached_tokens") or read or 0,
        reasoning_tokens=count("output_tokens_details", "reasoning_tokens")
        or count("output_tokens_details", "thinking_tokens")
        or 0,
    )


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _short_text(value: Any) -> str:
    return printable(preview(value, TEXT_LIMIT)[0]) if isinstance(value, str) else ""
