"""What went wrong, from Codex's own structured account of it, and from what the gateway saw.

`codexErrorInfo` decides wherever it says anything. Where it says `other`, what passed through the gateway does; prose
is the last resort, and its pieces are listed here, all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from proofbox.agents.gateway.failures import HINTS, kind_seen, limits_of
from proofbox.agents.gateway.traffic import Exchange, read_duration
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
SAID = 1000
_TRANSIENT = ("internalServerError",)
_TRANSIENT_CODES = ("server_error", "internal_server_error")
_RETRY_AFTER = re.compile(r"try again in (\d[\d.]*(?:ms|[dhms])(?:\d[\d.]*(?:ms|[hms]))*)", re.IGNORECASE)
_BY_PROSE: dict[str, type[AgentError]] = {
    "stream disconnected before completion": StreamDisconnected,
    "error sending request": StreamDisconnected,
    "Missing environment variable": AuthFailed,
}


def essence(error: Mapping[str, Any]) -> dict[str, Any]:
    """What `classify` reads of an error, and no more of it than is told."""
    info = error.get("codexErrorInfo")
    shown = fields.encoded(info)
    if len(shown) > fields.NOTE or shown == fields.UNSHOWN:
        name, status = _named(info)
        info = {preview(name, fields.ID)[0]: {"httpStatusCode": status}}
    return {"message": fields.cut(error, "message", SAID), "codexErrorInfo": info}


def classify(error: Mapping[str, Any], seen: Exchange | None = None) -> AgentError:
    """The typed failure for an `error` of Codex's. `seen` is the turn's last exchange that failed, if any did."""
    info = error.get("codexErrorInfo")
    name, status = _named(info)
    said = printable(fields.cut(error, "message", SAID))
    kind = _by_status(status) or _BY_NAME.get(name)
    if kind is None:
        kind = (kind_seen(seen) if seen is not None else None) or _by_prose(said) or ModelFailed
    if status is None and seen is not None and seen.status >= 400:
        status = seen.status
    details: dict[str, Any] = {"codex_error_info": info if isinstance(info, str | dict) else None}
    if status is not None:
        details["status"] = status
    if seen is not None and kind in (RateLimited, UsageLimited, Overloaded, ModelFailed):
        details |= limits_of(seen)
    if kind is RateLimited and "retry_after" not in details:
        words = _RETRY_AFTER.search(f"{said}\n{seen.error_message if seen is not None else ''}")
        if words is not None and (seconds := read_duration(words[1].lower())):
            details["retry_after"] = seconds
    transient = name in _TRANSIENT or (kind is ModelFailed and status is not None and status >= 500)
    transient = transient or (kind is ModelFailed and seen is not None and seen.error_code in _TRANSIENT_CODES)
    return kind(
        said or f"the turn failed ({name or 'no reason given'})",
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
    """The failure of a request to the model that Codex made again, from what the gateway saw."""
    kind = kind_seen(seen) or ModelFailed
    said = seen.error_message or (f"status {seen.status}" if seen.status else seen.outcome)
    return kind(f"a request to the model failed, and was made again: {said}", op="turn")


def _by_prose(said: str) -> type[AgentError] | None:
    return next((kind for piece, kind in _BY_PROSE.items() if piece in said), None)
