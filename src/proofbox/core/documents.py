"""Documents that are stored, by the name of their schema; each is declared beside the code that writes it.

`proofbox contract` lists them all, and SCHEMAS.md is made from that. Standard library alone: what an auditor loads
declares its documents too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T", bound=type)


@dataclass(frozen=True, slots=True)
class StoredDocument:
    schema: str
    """What its `schema_version` says; the file's name, where it states none."""
    at: str
    """Where it is found. CONFIG, STATE and CACHE are the user's directories, BUNDLE and RUN those of evidence."""
    meaning: str
    shape: Any
    """Its type, or the JSON Schema of it."""


STORED: dict[str, StoredDocument] = {}


def declare(schema: str, *, at: str, meaning: str, shape: Any) -> None:
    """Say what a stored document is. A name has one shape: a second one would leave readers to guess."""
    known = STORED.setdefault(schema, StoredDocument(schema, at, meaning, shape))
    if known.shape is not shape:
        raise ValueError(f"{schema} is declared twice")


def stored(schema: str, *, at: str) -> Callable[[T], T]:
    """Declare the class below as a stored document. Its docstring says what it is."""

    def mark(kind: T) -> T:
        declare(schema, at=at, meaning=" ".join((kind.__doc__ or "").partition("\n\n")[0].split()), shape=kind)
        return kind

    return mark
