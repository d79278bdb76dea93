"""Results that functions of the SDK return and that commands print with `--json`: one struct for both.

A public function returns its result as a document, so that `msgspec.json.encode(result)` gives what the command prints.
"""

from __future__ import annotations

import msgspec

from proofbox.errors import ProofboxError


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A result for programs. Subclasses set `schema` and add members."""

    schema: str
    """Which document this is."""
    ok: bool = True
    """Whether the command succeeded; of a command that evaluates something, whether the answer is yes."""


class Streamed(Document, frozen=True, kw_only=True):
    """One line of a command's live output with `--jsonl`."""


class ErrorBody(msgspec.Struct, frozen=True):
    """The common members of an error. The `details` of its class are added to them."""

    code: str
    message: str
    op: str
    fix_hints: tuple[str, ...]
    retryable: bool

    @classmethod
    def of(cls, error: ProofboxError) -> ErrorBody:
        return cls(error.code, error.message, error.op, error.fix_hints, error.retryable)
