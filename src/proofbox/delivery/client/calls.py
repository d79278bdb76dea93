"""One call to the backend, independent of the transport: the request, and the interpretation of the response.

Both clients share this module. Nothing in it ever contains the key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from proofbox.core.clock import Clock
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.text import preview, printable
from proofbox.delivery.client.body import Body
from proofbox.delivery.client.wire import ErrorAnswer, without_login
from proofbox.errors import (
    BackendConflict,
    BackendError,
    BackendFailed,
    BackendForbidden,
    BackendNotFound,
    BackendProtocol,
    BackendRateLimited,
    BackendRejected,
    BackendTooLarge,
    BackendUnauthorized,
    BackendUnreachable,
    UsageError,
)

SMALL_ANSWER = 1 << 20
MANIFEST_ANSWER = 64 << 20
ERROR_ANSWER = 1 << 16
_MAX_MESSAGE = 300
_MAX_WAIT = 3600.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BackendCall(Generic[T]):
    op: str
    method: str
    path: str
    answer: type[T]
    body: Body | None = None
    idempotency_key: str | None = None
    ids: dict[str, str | None] = field(default_factory=dict)
    """The ids in the request, for error messages."""
    limit: int = SMALL_ANSWER
    """Maximum size of the response in bytes."""

    def headers(self) -> dict[str, str]:
        # Without compression, a limit on the received bytes also limits the memory.
        found = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "proofbox"}
        if self.body is not None:
            found |= {"Content-Type": "application/json", "Content-Length": str(self.body.length)}
        if self.idempotency_key is not None:
            found["Idempotency-Key"] = self.idempotency_key
        return found


@dataclass(frozen=True, slots=True)
class BackendResponse:
    status: int
    body: bytes = field(repr=False)  # it may contain secrets that the backend echoes
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class ConnectionBroken:
    """A missing or unusable response. `sent`: the backend may have carried out the request."""

    reason: str
    sent: bool
    protocol: bool = False
    """Whether the response was not HTTP, too large or malformed."""


def api_path(*parts: str) -> str:
    """Build a path and escape each part, so that a part cannot contain a slash."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def refuse_login(repo_url: str | None) -> None:
    """Refuse a repository URL with a user name or token: only the backend may hold Git credentials."""
    try:
        found = repo_url is not None and "@" in urlsplit(repo_url).netloc
    except ValueError:
        raise UsageError("the repository's URL is malformed", op="deliver", fix_hints=["check --repo-url"]) from None
    if found:
        raise UsageError(
            "the repository's URL contains a login",
            op="deliver",
            fix_hints=["remove it from --repo-url: the backend has its own credentials"],
        )


def parse(call: BackendCall[T], answer: BackendResponse) -> T | ConnectionBroken:
    """Decode the response's document. A 2xx response without a valid document counts as a broken connection."""
    try:
        return msgspec.json.decode(answer.body, type=call.answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # Only the location: the text of the error may quote the response.
        where = str(error).rpartition(" - at ")[2][:100] if isinstance(error, msgspec.ValidationError) else "its JSON"
        return ConnectionBroken(
            f"the response does not match the API (in {printable(where)})", sent=True, protocol=True
        )


_KINDS: dict[int, tuple[type[BackendError], str, tuple[str, ...]]] = {
    400: (BackendRejected, "rejected the request", ("read the backend's message; the API versions may differ",)),
    401: (
        BackendUnauthorized,
        "rejected the key",
        (
            "check that INTERNAL_API_KEY is the key that the backend expects",
            "if it may have leaked or expired, rotate it",
        ),
    ),
    403: (
        BackendForbidden,
        "denied the request",
        ("check --user-id: it must be the app's owner or a user with access to it",),
    ),
    404: (BackendNotFound, "cannot find", ("check the ids: the app or the enterprise may be wrong or deleted",)),
    409: (
        BackendConflict,
        "reports a conflict",
        ("see the current state: proofbox deliver plan", "the repository may have changed: plan again"),
    ),
    413: (
        BackendTooLarge,
        "refuses a request of that size",
        ("deliver less: build results and data sets do not belong in a repository", "or raise the backend's limit"),
    ),
    422: (BackendRejected, "rejected the request", ("read the backend's message",)),
    429: (BackendRateLimited, "limits the request rate", ("wait, and try again",)),
}


def error_for(
    call: BackendCall[Any], outcome: BackendResponse | ConnectionBroken, attempts: int, redactor: Redactor
) -> BackendError:
    """Return the typed error for an error response or a broken connection."""
    details: dict[str, Any] = {"attempts": attempts}
    kind: type[BackendError]
    if isinstance(outcome, ConnectionBroken):
        kind = BackendProtocol if outcome.protocol else BackendUnreachable
        hints = (
            ["check that MOZAIKS_BACKEND_URL is the backend's URL, and check any proxy in between"]
            if outcome.protocol
            else [
                "check that the backend is running and reachable from here",
                "to run one here: proofbox backend serve",
            ]
        )
        reason = redactor.redact(outcome.reason)
        return kind(f"{call.op}: {reason}", op=call.op, fix_hints=hints, details={**details, "sent": outcome.sent})
    status = outcome.status
    text, pr_url = _message(outcome.body, redactor)
    details |= {"status": status, "said": text, "retry_after": outcome.retry_after}
    if pr_url is not None:
        details["pr_url"] = pr_url
    tail = f": {text}" if text else ""
    if status in _KINDS:
        kind, what, hints_of = _KINDS[status]
        if status == 404:
            details["ids"] = {name: value for name, value in call.ids.items() if value is not None}
            what += " " + ", ".join(f"{name.replace('_', ' ')} {value!r}" for name, value in details["ids"].items())
        message, hints = f"{call.op}: the backend {what} ({status}){tail}", list(hints_of)
    elif status >= 500:
        kind, message = BackendFailed, f"{call.op}: the backend failed ({status}){tail}"
        hints = ["check the backend's log: rate limits or permissions of its Git host are the usual cause"]
    else:
        kind, message = BackendProtocol, f"{call.op}: the API does not define this response status ({status})"
        hints = ["check that MOZAIKS_BACKEND_URL is the backend's URL, not one that redirects"]
    return kind(message, op=call.op, fix_hints=hints, details=details)


def _message(body: bytes, redactor: Redactor) -> tuple[str, str | None]:
    """Return the backend's error message, redacted, escaped and truncated, and the pull request it refers to."""
    try:
        found = msgspec.json.decode(body, type=ErrorAnswer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "", None
    inner = found.error or found
    # Redact before truncating: half a secret would not be recognized.
    text = redactor.redact(": ".join(part for part in (inner.code, inner.message) if part))
    return printable(preview(text, _MAX_MESSAGE)[0]).replace("\n", " "), _address(found.pr_url, redactor)


def _address(url: str | None, redactor: Redactor) -> str | None:
    """Return a URL from an error response, if it is valid and contains no secret."""
    try:
        plain = without_login(url)
    except ValueError:
        return None
    return plain if plain is None or redactor.redact(plain) == plain else None


def seconds_to_wait(retry_after: str | None, clock: Clock) -> float | None:
    """Parse Retry-After, in seconds or as a date. Return None if it is missing or malformed."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return min(float(text), _MAX_WAIT)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    now: datetime = clock.now()
    return min(max(0.0, (moment - now).total_seconds()), _MAX_WAIT)


def is_ambiguous(error: BackendError) -> bool:
    """Return whether the backend may have carried out the failed request."""
    if isinstance(error, BackendFailed):
        return True
    return isinstance(error, BackendUnreachable | BackendProtocol) and bool(error.details.get("sent"))


def may_repeat(error: BackendError) -> bool:
    return isinstance(error, BackendRateLimited | BackendFailed | BackendUnreachable) or is_ambiguous(error)
