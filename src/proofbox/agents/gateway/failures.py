"""Failures of the model, as observed by the gateway.

Only failures seen outside the box count as infrastructure failures. A program in the box can print any error, kill
itself with any signal, and send requests that no endpoint accepts. Every exchange passes `note`, which decides whether
its request could have caused the failure.
"""

from __future__ import annotations

from typing import Any

from proofbox.agents.feed import Turn
from proofbox.agents.gateway.apis import api_of, is_model_request
from proofbox.agents.gateway.traffic import Exchange, asks_model
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
    "request_too_large": ContextExceeded,
    "usage_limit_reached": UsageLimited,
    "insufficient_quota": UsageLimited,
    "billing_error": UsageLimited,
    "billing_hard_limit_reached": UsageLimited,
    "billing_not_active": UsageLimited,
    "BILLING_DISABLED": UsageLimited,
    "rate_limit_exceeded": RateLimited,
    "rate_limit_error": RateLimited,
    "slow_down": RateLimited,
    "server_is_overloaded": Overloaded,
    "overloaded_error": Overloaded,
    "invalid_api_key": AuthFailed,
    "API_KEY_INVALID": AuthFailed,
    "authentication_error": AuthFailed,
    "RESOURCE_EXHAUSTED": RateLimited,
    "UNAVAILABLE": Overloaded,
    "UNAUTHENTICATED": AuthFailed,
    "model_not_found": ModelFailed,
}
_FAULTS = (
    *("server_error", "internal_server_error", "internal_error", "api_error", "timeout_error"),
    *("INTERNAL", "DEADLINE_EXCEEDED", "InternalServerError"),
)
"""How a response that failed says that this was the endpoint's fault. With other codes, the request may have caused it,
such as `invalid_prompt`."""
_BY_MESSAGE: dict[str, type[AgentError]] = {
    "prompt is too long": ContextExceeded,
    "input length and `max_tokens` exceed context limit": ContextExceeded,
    "The input token count": ContextExceeded,
}
"""The prefixes of messages that the APIs of Anthropic and Google send with the code of any invalid request."""
_BY_ACCOUNT_MESSAGE: dict[tuple[str, str], type[AgentError]] = {
    ("invalid_request_error", "Your credit balance is too low"): UsageLimited,
    ("invalid_request_error", "You have reached your specified API usage limits"): UsageLimited,
    ("invalid_request_error", "You have reached your specified workspace API usage limits"): UsageLimited,
    ("FAILED_PRECONDITION", "User location is not supported"): AuthFailed,
    ("FAILED_PRECONDITION", "Gemini API free tier is not available"): UsageLimited,
}
"""The same for failures of the account, with their types. `FAILED_PRECONDITION` alone can be the fault of a request:
one that names a file that is not ready."""
_ACCOUNT_MESSAGE = 300
"""The maximum length of such a message."""
_BY_STATUS: dict[int, type[AgentError]] = {
    401: AuthFailed,
    402: UsageLimited,
    403: AuthFailed,
    413: ContextExceeded,
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
    too_large = exchange.error_message.startswith("Request too large")  # for the limit of tokens per minute
    if known is RateLimited and too_large:
        return ContextExceeded
    known = known or _by_account_message(exchange)
    if known is None and exchange.error_type in ("invalid_request_error", "INVALID_ARGUMENT"):
        known = next((kind for text, kind in _BY_MESSAGE.items() if exchange.error_message.startswith(text)), None)
    if known is not None:
        return known
    if exchange.outcome in ("cut", "unreachable", "abandoned"):
        return StreamDisconnected
    return kind_of(exchange.status if exchange.outcome == "http_error" else exchange.error_status)


def _by_account_message(exchange: Exchange) -> type[AgentError] | None:
    """Return the error class of a message about the account.

    A message about a member of the request begins with its name, which the request chose, and a colon:
    "NAME: Extra inputs are not permitted".
    """
    message = exchange.error_message
    if api_of(exchange.path) == "openai" or ": " in message or len(message) > _ACCOUNT_MESSAGE:
        return None
    found = _BY_ACCOUNT_MESSAGE.items()
    return next(
        (kind for (type, text), kind in found if exchange.error_type == type and message.startswith(text)), None
    )


def is_answer(exchange: Exchange) -> bool:
    """Return whether the exchange is a complete response of the model, which ends earlier failures."""
    return exchange.outcome == "completed" and asks_model(exchange)


def limits_of(exchange: Exchange) -> dict[str, Any]:
    """Return when the endpoint asked for a retry, without members that it did not state."""
    return {name: getattr(exchange, name) for name in ("retry_after", "resets_at") if getattr(exchange, name)}


def note(turn: Turn, exchange: Exchange, *, first_is_ours: bool = False) -> None:
    """Update the turn's observed failure: set it if the endpoint failed, clear it if the model has answered.

    A failure that the request itself may have caused is ignored. With `first_is_ours` the agent has run nothing before
    its thread's first response, so it can't have caused any failure until then. A request that was abandoned because
    the session is ending the turn is not a failure.
    """
    if is_answer(exchange):
        turn.answered, turn.observed_failure = True, None
        turn.accepted.add(_kind_of_request(exchange))
    if exchange.outcome == "abandoned" and turn.is_stopping:
        return
    kind = kind_of_exchange(exchange)
    if kind is None or kind is ContextExceeded or not is_model_request(exchange.method, exchange.path):
        return
    blameless = first_is_ours and not turn.accepted
    if not blameless and not _is_endpoint_failure(exchange):
        return
    if kind in (AuthFailed, UsageLimited) and turn.accepted and not _was_accepted(turn, exchange):
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
    """Return whether the endpoint failed, independent of the content of the request.

    Nothing is known of a request that can't be read: servers may answer a malformed one with any status.
    """
    if exchange.variant is None or exchange.outcome == "abandoned":
        return False
    if kind_of_exchange(exchange) is not ModelFailed:
        return True
    status = exchange.error_status if exchange.outcome == "failed" else exchange.status
    states_fault = exchange.error_code in _FAULTS or exchange.error_type in _FAULTS
    return (status >= 500 and status != 501) or (exchange.outcome == "failed" and states_fault)


def _kind_of_request(exchange: Exchange) -> tuple[str, ...]:
    return (exchange.path.partition("?")[0], *(exchange.variant or ()))


def _was_accepted(turn: Turn, exchange: Exchange) -> bool:
    """Return whether the key was accepted for such a request before, so that the key or the account has changed since.

    A request can name a file, a model or a feature that the key does not include. Endpoints answer that with 403, and
    so do firewalls if a request looks suspicious to them. A 403 therefore counts only if its code names the key.
    """
    names_key = exchange.error_code in _BY_CODE or exchange.error_type in _BY_CODE
    is_unclear = 403 in (exchange.status, exchange.error_status) and not names_key
    return _kind_of_request(exchange) in turn.accepted and not is_unclear
