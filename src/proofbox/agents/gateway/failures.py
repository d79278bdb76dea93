"""Failures of the model, as observed by the gateway.

Only failures seen outside the box count as infrastructure failures. A program in the box can print any error, kill
itself with any signal, and send requests that no endpoint accepts.
"""

from __future__ import annotations

from typing import Any

from proofbox.agents.feed import Turn
from proofbox.agents.gateway.traffic import Exchange
from proofbox.errors import (
    AgentError,
    AuthFailed,
    ContextExceeded,
    ModelFailed,
    Overloaded,
    RateLimited,
    StreamDisconnected,
    UsageLimited,
)

_BY_CODE: dict[str, type[AgentError]] = {
    "context_length_exceeded": ContextExceeded,
    "usage_limit_reached": UsageLimited,
    "insufficient_quota": UsageLimited,
    "rate_limit_exceeded": RateLimited,
    "rate_limit_error": RateLimited,
    "slow_down": RateLimited,
    "server_is_overloaded": Overloaded,
    "overloaded_error": Overloaded,
    "invalid_api_key": AuthFailed,
    "authentication_error": AuthFailed,
    "RESOURCE_EXHAUSTED": RateLimited,
    "UNAVAILABLE": Overloaded,
    "UNAUTHENTICATED": AuthFailed,
    "PERMISSION_DENIED": AuthFailed,
}
_BY_STATUS: dict[int, type[AgentError]] = {
    401: AuthFailed,
    403: AuthFailed,
    429: RateLimited,
    503: Overloaded,
    529: Overloaded,
}
HINTS: dict[type[AgentError], tuple[str, ...]] = {
    AuthFailed: ("check the key in the variable that api_key_env names, and its permissions",),
    UsageLimited: ("wait for the reset, or use another credential",),
    RateLimited: ("wait, or run fewer attempts concurrently",),
    ContextExceeded: ("start a new thread",),
    StreamDisconnected: ("retry; if it fails again, check the network connection to base_url",),
}


def kind_of(status: int) -> type[AgentError]:
    """Return the error class for an HTTP status of the endpoint."""
    return _BY_STATUS.get(status, ModelFailed)


def kind_of_exchange(exchange: Exchange) -> type[AgentError] | None:
    """Return the error class of an exchange, or None if it did not fail or the gateway refused it."""
    if exchange.outcome in ("completed", "refused"):
        return None
    known = _BY_CODE.get(exchange.error_code) or _BY_CODE.get(exchange.error_type)
    if known is not None:
        return known
    if exchange.outcome in ("cut", "unreachable", "abandoned"):
        return StreamDisconnected
    return kind_of(exchange.status) if exchange.outcome == "http_error" else ModelFailed


def limits_of(exchange: Exchange) -> dict[str, Any]:
    """Return when the endpoint asked for a retry, as far as it stated that."""
    return {name: getattr(exchange, name) for name in ("retry_after", "resets_at") if getattr(exchange, name)}


def note(turn: Turn, exchange: Exchange, *, first_is_ours: bool = False) -> None:
    """Update the turn's observed failure: set it if the endpoint failed, clear it if a response was completed.

    A failure that the request itself may have caused is ignored. With `first_is_ours` the agent has run nothing before
    its first response, so it can't have caused any failure until then. A request that was abandoned because the session
    is ending the turn is no failure.
    """
    if exchange.outcome == "completed" and exchange.method == "POST":
        turn.answered, turn.observed_failure = True, None
    if exchange.outcome == "abandoned" and turn.is_stopping:
        return
    kind = kind_of_exchange(exchange)
    blameless = first_is_ours and not turn.answered
    if kind is None or kind is ContextExceeded or not (blameless or _is_endpoint_failure(exchange)):
        return
    reason = exchange.error_message or f"{exchange.outcome}, HTTP status {exchange.status}"
    turn.observed_failure = kind(
        f"the model's endpoint failed: {reason}",
        op="turn",
        fix_hints=HINTS.get(kind, ()),
        details={"status": exchange.status, "seen_by": "gateway", **limits_of(exchange)},
        retryable=True if kind is ModelFailed and exchange.status >= 500 else None,
    )


def _is_endpoint_failure(exchange: Exchange) -> bool:
    """Return whether the endpoint failed, independent of the content of the request."""
    if exchange.outcome == "http_error":
        return exchange.status in _BY_STATUS or exchange.status >= 500
    return exchange.outcome in ("failed", "cut", "unreachable")
