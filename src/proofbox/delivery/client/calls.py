"""One call to the backend, apart from how it travels: what to ask, and what the answer means.

Everything in here is the same for the synchronous and the asynchronous client. Nothing in here ever holds the key.
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
_SAID = 300
_LONGEST_WAIT = 3600.0

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
    """The ids in the request, to name the one that may be wrong."""
    limit: int = SMALL_ANSWER
    """Most bytes of an answer that are read."""

    def headers(self) -> dict[str, str]:
        # Compressed answers are not asked for: a bound on the bytes that arrive is then a bound on the memory.
        found = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "proofbox"}
        if self.body is not None:
            found |= {"Content-Type": "application/json", "Content-Length": str(self.body.length)}
        if self.idempotency_key is not None:
            found["Idempotency-Key"] = self.idempotency_key
        return found


@dataclass(frozen=True, slots=True)
class BackendResponse:
    status: int
    body: bytes = field(repr=False)  # it may echo anything
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class ConnectionBroken:
    """No answer, or none that can be used. `sent`: the backend may have done what it was asked to."""

    reason: str
    sent: bool
    protocol: bool = False
    """What came was not HTTP, or not of the size or form that was agreed on."""


def api_path(*parts: str) -> str:
    """A path whose variable parts can't be anything but one part each."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def refuse_login(repo_url: str | None) -> None:
    """A repository's address with a user name or token in it is a Git credential, and that is the backend's alone."""
    try:
        found = repo_url is not None and "@" in urlsplit(repo_url).netloc
    except ValueError:
        raise UsageError("the repository's address is none", op="deliver", fix_hints=["check --repo-url"]) from None
    if found:
        raise UsageError(
            "the repository's address holds a login",
            op="deliver",
            fix_hints=["give the address without it: the backend has its own credentials"],
        )


def parse(call: BackendCall[T], answer: BackendResponse) -> T | ConnectionBroken:
    """The answer's document. A 2xx that is not one is as good as no answer."""
    try:
        return msgspec.json.decode(answer.body, type=call.answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # Only the place: the text of the error may quote the answer.
        where = str(error).rpartition(" - at ")[2][:100] if isinstance(error, msgspec.ValidationError) else "its JSON"
        return ConnectionBroken(
            f"the answer is not what was agreed on (in {printable(where)})", sent=True, protocol=True
        )


_KINDS: dict[int, tuple[type[BackendError], str, tuple[str, ...]]] = {
    400: (BackendRejected, "rejected the request", ("see what the backend said; the versions may differ",)),
    401: (
        BackendUnauthorized,
        "does not know the key",
        ("check that INTERNAL_API_KEY is the key that the backend expects", "if it may have leaked or expired: rotate"),
    ),
    403: (
        BackendForbidden,
        "does not allow that",
        ("check --user-id: the owner of the app, or someone with rights to it",),
    ),
    404: (BackendNotFound, "does not know", ("check the ids: the app or the enterprise may be wrong, or gone",)),
    409: (
        BackendConflict,
        "has something else there already",
        ("look at what is there: proofbox deliver plan", "the repository may have moved: plan again"),
    ),
    413: (
        BackendTooLarge,
        "does not take a request of that size",
        ("deliver less: build results and data sets don't belong in a repository", "or raise the backend's limit"),
    ),
    422: (BackendRejected, "rejected the request", ("see what the backend said",)),
    429: (BackendRateLimited, "wants fewer requests", ("wait, and try again",)),
}


def error_for(
    call: BackendCall[Any], outcome: BackendResponse | ConnectionBroken, attempts: int, redactor: Redactor
) -> BackendError:
    """The typed error for an answer that is no, or for none."""
    details: dict[str, Any] = {"attempts": attempts}
    kind: type[BackendError]
    if isinstance(outcome, ConnectionBroken):
        kind = BackendProtocol if outcome.protocol else BackendUnreachable
        hints = (
            ["check that MOZAIKS_BACKEND_URL is the backend's address, and what is in between"]
            if outcome.protocol
            else [
                "check that the backend runs and can be reached from here",
                "to run one here: proofbox backend serve",
            ]
        )
        reason = redactor.redact(outcome.reason)
        return kind(f"{call.op}: {reason}", op=call.op, fix_hints=hints, details={**details, "sent": outcome.sent})
    status = outcome.status
    said, pr_url = _said(outcome.body, redactor)
    details |= {"status": status, "said": said, "retry_after": outcome.retry_after}
    if pr_url is not None:
        details["pr_url"] = pr_url
    tail = f": {said}" if said else ""
    if status in _KINDS:
        kind, what, hints_of = _KINDS[status]
        if status == 404:
            details["ids"] = {name: value for name, value in call.ids.items() if value is not None}
            what += " " + ", ".join(f"{name.replace('_', ' ')} {value!r}" for name, value in details["ids"].items())
        message, hints = f"{call.op}: the backend {what} ({status}){tail}", list(hints_of)
    elif status >= 500:
        kind, message = BackendFailed, f"{call.op}: the backend failed ({status}){tail}"
        hints = ["look into the backend's log: rate limits or permissions of its Git host are the usual cause"]
    else:
        kind, message = BackendProtocol, f"{call.op}: an answer that the API does not have ({status})"
        hints = ["check that MOZAIKS_BACKEND_URL is the backend's address, and not one that leads elsewhere"]
    return kind(message, op=call.op, fix_hints=hints, details=details)


def _said(body: bytes, redactor: Redactor) -> tuple[str, str | None]:
    """The backend's own words, bounded, without secrets and control characters; and the pull request it points to."""
    try:
        found = msgspec.json.decode(body, type=ErrorAnswer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "", None
    inner = found.error or found
    # Redacted before it is cut: half a secret would not be known as one.
    text = redactor.redact(": ".join(part for part in (inner.code, inner.message) if part))
    return printable(preview(text, _SAID)[0]).replace("\n", " "), _address(found.pr_url, redactor)


def _address(url: str | None, redactor: Redactor) -> str | None:
    """An address that a backend named in passing, if it is one and holds no secret."""
    try:
        plain = without_login(url)
    except ValueError:
        return None
    return plain if plain is None or redactor.redact(plain) == plain else None


def seconds_to_wait(retry_after: str | None, clock: Clock) -> float | None:
    """What Retry-After means: seconds, or a date. None where it says nothing that makes sense."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return min(float(text), _LONGEST_WAIT)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    now: datetime = clock.now()
    return min(max(0.0, (moment - now).total_seconds()), _LONGEST_WAIT)


def is_ambiguous(error: BackendError) -> bool:
    """Whether the backend may have done what it was asked to, though it did not say so."""
    if isinstance(error, BackendFailed):
        return True
    return isinstance(error, BackendUnreachable | BackendProtocol) and bool(error.details.get("sent"))


def may_repeat(error: BackendError) -> bool:
    return isinstance(error, BackendRateLimited | BackendFailed | BackendUnreachable) or is_ambiguous(error)
