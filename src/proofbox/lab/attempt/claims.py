"""What an agent says of its work: its feedback, and whether it claims to have succeeded.

The feedback is the agent's final message: a JSON object (`result_json`) or text (`result`), one of the two. A claim is
read from it by a fixed rule and from nothing else, least of all from the turn having ended:

- of a JSON object, the member `status`: `success` or `failure`;
- of a text, its first word: one that says done, or one that says failed.

Anything else claims nothing. A claim is the agent's word; what it is worth, the verifier finds out.
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
    """An agent's last words: exactly one of `result` and `result_json` is there."""

    schema_version: str = SCHEMA
    claimed: Claim
    source: Literal["runtime_reported"] = "runtime_reported"
    truncated: bool
    result: str | UnsetType = UNSET
    """The final message, where it is no JSON object; empty: nothing was said. Of one that is too long, both ends."""
    result_json: dict[str, Any] | UnsetType = UNSET
    """The final message, where it is a JSON object."""


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """The final message: as it was said, and as the object that it is, if it is one."""

    claimed: Claim
    said: str
    """Its text, JSON or not; empty: nothing was said."""
    result_json: dict[str, Any] | None = None
    truncated: bool = False

    def document(self) -> dict[str, Any]:
        said: dict[str, Any] = {"result": self.said}
        if self.result_json is not None:
            said = {"result_json": self.result_json}
        document: dict[str, Any] = msgspec.to_builtins(
            FeedbackRecord(claimed=self.claimed, truncated=self.truncated, **said)
        )
        return document


def read_feedback(final_message: str) -> Feedback:
    """From the agent's last words."""
    parsed = _object(final_message)
    if parsed is not None:
        status = parsed.get("status")
        claimed: Claim = status if status in ("success", "failure") else "none"
        return Feedback(claimed=claimed, said=final_message, result_json=parsed)
    text, half = final_message, TEXT_LIMIT // 2
    if len(text) > TEXT_LIMIT:  # the last words are among what is kept
        left_out = text[half:-half].encode("utf-8", "surrogatepass")
        text = text[:half] + gap(len(left_out)) + text[-half:]
    return Feedback(claimed=_claim(final_message), said=text, truncated=text is not final_message)


def _claim(text: str) -> Claim:
    found = _FIRST_WORD.match(text)
    word = found[1].casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'") if found else ""
    return "success" if word in _SUCCESS else "failure" if word in _FAILURE else "none"


def _object(text: str) -> dict[str, Any] | None:
    """A JSON object about which all readers agree, or None."""
    if len(text) > TEXT_LIMIT or not text.lstrip().startswith("{"):
        return None
    try:
        value = parse_strict(text.encode("utf-8", "surrogateescape"))
    except CanonicalError:
        return None
    return value if isinstance(value, dict) else None
