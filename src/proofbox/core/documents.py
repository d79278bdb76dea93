"""The registry of stored documents, by schema name; each is declared beside the code that writes it.

`proofbox contract` lists them all, and SCHEMAS.md is generated from that list. Only the standard library is imported,
because the auditor's modules declare documents too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from proofbox.errors import VersionUnknown

T = TypeVar("T", bound=type)


class StoredDocument(NamedTuple):
    schema: str
    """The document's `schema_version`, or the file name if it has no such member."""
    at: str
    """The document's location. CONFIG, STATE and CACHE are user directories; BUNDLE and RUN hold evidence."""
    meaning: str
    shape: Any
    """The document's type or JSON Schema."""


STORED: dict[str, StoredDocument] = {}


def declare(schema: str, *, at: str, meaning: str, shape: Any) -> None:
    """Declare a stored document. Raises ValueError if the schema name is already declared with another shape."""
    known = STORED.setdefault(schema, StoredDocument(schema, at, meaning, shape))
    if known.shape is not shape:
        raise ValueError(f"{schema} is declared twice")


def require_version(document: bytes | Mapping[str, Any], known: str, where: object) -> None:
    """Raise VersionUnknown if a document states a version that is not `known`.

    Bytes are checked before they are parsed as the known version, whose members another version may not have. Bytes
    that state no version at all are left to the parser.
    """
    import json  # used only for documents that exist, and not needed to start a box

    stated: object = None
    if isinstance(document, bytes):
        try:
            parsed = json.loads(document)
        except (ValueError, RecursionError):
            return
        if not isinstance(parsed, dict) or "schema_version" not in parsed:
            return
        stated = parsed["schema_version"]
    else:
        stated = document.get("schema_version")
    if stated != known:
        why = f"{where} has version {str(stated)[:100]!r}; this version of proofbox reads {known!r}"
        raise VersionUnknown(why, op="read")


def stored(schema: str, *, at: str) -> Callable[[T], T]:
    """Declare the decorated class as a stored document. The meaning comes from its docstring."""

    def mark(kind: T) -> T:
        declare(schema, at=at, meaning=" ".join((kind.__doc__ or "").partition("\n\n")[0].split()), shape=kind)
        return kind

    return mark
