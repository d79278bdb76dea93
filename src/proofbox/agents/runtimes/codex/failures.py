"""Classify failures by the structured errors of Codex and by the gateway's observations.

`codexErrorInfo` decides if it is specific. If it is `other`, the gateway's last failed exchange decides. The text of
the message is the last resort; all patterns are listed here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from proofbox.agents.gateway.failures import HINTS, kind_of_exchange, limits_of
from proofbox.agents.gateway.rate_windows import read_duration
from proofbox.agents.gateway.traffic import Exchange
from proofbox.agents.runtimes.codex import fields
from proofbox.core.text import preview, printable
from proofbox.errors import (
    AgentError,
    AuthFailed,
    ContextExceeded,
    ModelFailed,
    Overloaded,
    RateLimited,
    RuntimeProtocolError,
    StreamDisconnected,
    TurnInterrupted,
    UsageLimited,
)

_BY_NAME: dict[str, type[AgentError]] = {
    "contextWindowExceeded": ContextExceeded,
    "sessionBudgetExceeded": UsageLimited,
    "usageLimitExceeded": UsageLimited,
    "rateLimitExceeded": RateLimited,
    "flexUnavailable": Overloaded,
    "serverOverloaded": Overloaded,
    "policyCapacityUnavailable": Overloaded,
    "modelNotFound": ModelFailed,
    "cyberPolicy": ModelFailed,
    "misalignmentPolicyViolation": ModelFailed,
    "internalServerError": ModelFailed,
    "badRequest": ModelFailed,
    "unauthorized": AuthFailed,
    "tooManyDenials": TurnInterrupted,
    "activeTurnNotSteerable": RuntimeProtocolError,
    "httpConnectionFailed": StreamDisconnected,
    "responseStreamConnectionFailed": StreamDisconnected,
    "responseStreamDisconnected": StreamDisconnected,
    "responseTooManyFailedAttempts": ModelFailed,
}
MESSAGE_LIMIT = 1000
_TRANSIENT = ("internalServerError",)
_TRANSIENT_CODES = ("server_error", "internal_server_error")
_RETRY_AFTER = re.compile(r"try again in (\d[\d.]*(?:ms|[dhms])(?:\d[\d.]*(?:ms|[hms]))*)", re.IGNORECASE)
_BY_MESSAGE: dict[str, type[AgentError]] = {
    "stream disconnected before completion": StreamDisconnected,
    "error sending request": StreamDisconnected,
    "Missing environment variable": AuthFailed,
}


def relevant_members(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an error that `classify` reads, truncated."""
    info = error.get("codexErrorInfo")
    shown = fields.encoded(info)
    if len(shown) > fields.NOTE or shown == fields.TOO_DEEP:
        name, status = _named(info)
        info = {preview(name, fields.ID)[0]: {"httpStatusCode": status}}
    return {"message": fields.cut(error, "message", MESSAGE_LIMIT), "codexErrorInfo": info}


def classify(error: Mapping[str, Any], seen: Exchange | None = None) -> AgentError:
    """Return the typed error for an `error` of Codex. `seen` is the turn's last failed exchange, if any."""
    info = error.get("codexErrorInfo")
    name, status = _named(info)
    message = printable(fields.cut(error, "message", MESSAGE_LIMIT))
    kind = _by_status(status) or _BY_NAME.get(name)
    if kind is None:
        kind = (kind_of_exchange(seen) if seen is not None else None) or _by_message(message) or ModelFailed
    if status is None and seen is not None and seen.status >= 400:
        status = seen.status
    details: dict[str, Any] = {"codex_error_info": info if isinstance(info, str | dict) else None}
    if status is not None:
        details["status"] = status
    if seen is not None and kind in (RateLimited, UsageLimited, Overloaded, ModelFailed):
        details |= limits_of(seen)
    if kind is RateLimited and "retry_after" not in details:
        match = _RETRY_AFTER.search(f"{message}\n{seen.error_message if seen is not None else ''}")
        if match is not None and (seconds := read_duration(match[1].lower())):
            details["retry_after"] = seconds
    transient = name in _TRANSIENT or (kind is ModelFailed and status is not None and status >= 500)
    transient = transient or (kind is ModelFailed and seen is not None and seen.error_code in _TRANSIENT_CODES)
    return kind(
        message or f"the turn failed ({name or 'no reason given'})",
        op="turn",
        fix_hints=HINTS.get(kind, ()),
        details=details,
        retryable=True if transient else None,
    )


def _named(info: Any) -> tuple[str, int | None]:
    if isinstance(info, str):
        return info, None
    if isinstance(info, dict) and len(info) == 1:
        ((name, inner),) = info.items()
        status = inner.get("httpStatusCode") if isinstance(inner, dict) else None
        return str(name), status if isinstance(status, int) else None
    return "", None


def _by_status(status: int | None) -> type[AgentError] | None:
    if status is None:
        return None
    if status in (401, 403):
        return AuthFailed
    return RateLimited if status == 429 else ModelFailed


def retried(seen: Exchange) -> AgentError:
    """Return the failure, as seen by the gateway, of a model request that Codex retried."""
    kind = kind_of_exchange(seen) or ModelFailed
    message = seen.error_message or (f"status {seen.status}" if seen.status else seen.outcome)
    return kind(f"a model request failed and was retried: {message}", op="turn")


def _by_message(message: str) -> type[AgentError] | None:
    return next((kind for piece, kind in _BY_MESSAGE.items() if piece in message), None)
