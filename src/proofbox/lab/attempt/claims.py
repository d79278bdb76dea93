"""An agent's feedback on its own work, and whether it claims success.

The feedback is the agent's final message: either a JSON object (`result_json`) or text (`result`). The claim is read
from it by a fixed rule and from nothing else; a turn that ended is not a claim:

- of a JSON object, the member `status`: `success` or `failure`;
- of text, the first word: a word for success, such as "done", or one for failure, such as "failed".

Anything else claims nothing. A claim is never evidence of success; the verifier decides that.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from proofbox.core.canonical import CanonicalError, parse_strict
from proofbox.core.documents import stored
from proofbox.core.text import gap

Claim = Literal["success", "failure", "none"]
SCHEMA = "proofbox.feedback/1"
TEXT_LIMIT = 64 * 1024

_SUCCESS = {"done", "success", "succeeded", "successful", "completed", "complete", "finished", "fixed", "solved", "ok"}
_FAILURE = {"failed", "failure", "failing", "unable", "cannot", "can't", "couldn't", "impossible", "error", "aborted"}
_FIRST_WORD = re.compile(r"[^\w']*([\w'\u2019]+)")


@stored(SCHEMA, at="BUNDLE/feedback.json of an attempt")
class FeedbackRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's final message, in exactly one of `result` and `result_json`."""

    schema_version: str = SCHEMA
    claimed: Claim
    source: Literal["runtime_reported"] = "runtime_reported"
    truncated: bool
    result: str | UnsetType = UNSET
    """The final message if it is not a JSON object; empty without a message. A long message is cut in the middle."""
    result_json: dict[str, Any] | UnsetType = UNSET
    """The final message if it is a JSON object."""


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """The final message: its text and, if it is a JSON object, the parsed object."""

    claimed: Claim
    text: str
    """The text, JSON or not; empty if there was no message."""
    result_json: dict[str, Any] | None = None
    truncated: bool = False

    def document(self) -> dict[str, Any]:
        result: dict[str, Any] = {"result": self.text}
        if self.result_json is not None:
            result = {"result_json": self.result_json}
        document: dict[str, Any] = msgspec.to_builtins(
            FeedbackRecord(claimed=self.claimed, truncated=self.truncated, **result)
        )
        return document


def read_feedback(final_message: str) -> Feedback:
    """Parse the agent's final message."""
    parsed = _object(final_message)
    if parsed is not None:
        status = parsed.get("status")
        claimed: Claim = status if status in ("success", "failure") else "none"
        return Feedback(claimed=claimed, text=final_message, result_json=parsed)
    text, half = final_message, TEXT_LIMIT // 2
    if len(text) > TEXT_LIMIT:  # keep both ends
        left_out = text[half:-half].encode("utf-8", "surrogatepass")
        text = text[:half] + gap(len(left_out)) + text[-half:]
    return Feedback(claimed=_claim(final_message), text=text, truncated=text is not final_message)


def _claim(text: str) -> Claim:
    found = _FIRST_WORD.match(text)
    word = found[1].casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'") if found else ""
    return "success" if word in _SUCCESS else "failure" if word in _FAILURE else "none"


def _object(text: str) -> dict[str, Any] | None:
    """Return the text as a strictly parsed JSON object, or None."""
    if len(text) > TEXT_LIMIT or not text.lstrip().startswith("{"):
        return None
    try:
        value = parse_strict(text.encode("utf-8", "surrogateescape"))
    except CanonicalError:
        return None
    return value if isinstance(value, dict) else None
