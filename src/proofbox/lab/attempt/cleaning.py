"""Makes values from agents and runtimes fit for the evidence: valid, bounded and redacted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from proofbox.core.redaction.redactor import Redactor
from proofbox.core.text import preview

TEXT_LIMIT = 64 << 10
_MAX_INTEGER = 2**53 - 1
_MAX_DEPTH = 64


def cleaned(value: Any, redactor: Redactor) -> Any:
    """Return facts or settings of a runtime as a JSON value: redacted, and limited in size and depth."""
    # Redact texts before truncating them. Members with secret names are redacted in the value as a whole.
    return redactor.redact_json(bounded(msgspec.to_builtins(value, enc_hook=str), redactor))


def bounded(value: Any, redactor: Redactor, depth: int = _MAX_DEPTH) -> Any:
    """Return a JSON value that a log can store: texts redacted, truncated and valid, numbers exact as doubles."""
    if isinstance(value, str):
        return redactor.preview(value, TEXT_LIMIT)[0]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) <= _MAX_INTEGER else str(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {_name(str(name), redactor): bounded(member, redactor, depth - 1) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [bounded(member, redactor, depth - 1) for member in value]
    return redactor.preview(str(value), TEXT_LIMIT)[0]


def _name(name: str, redactor: Redactor) -> str:
    """Truncate a member name. Names that fit are left to `redact_json`, which keeps redacted names distinct."""
    short, cut = preview(name, TEXT_LIMIT)
    return redactor.preview(name, TEXT_LIMIT)[0] if cut else short


def encodable(value: Any) -> Any:
    """Return the JSON value with lone surrogates replaced: JSON can't hold those of file names and agents' texts."""
    try:
        msgspec.json.encode(value)  # the fastest check
    except (UnicodeEncodeError, OverflowError):  # an integer that is too large is reported when it is written
        return _without_surrogates(value)
    return value


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {_without_surrogates(name): _without_surrogates(each) for name, each in value.items()}
    return [_without_surrogates(each) for each in value] if isinstance(value, list | tuple) else value
