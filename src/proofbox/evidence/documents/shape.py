"""Checking that a JSON document has the members it should, with the standard library alone.

A check is called with a value and the name of its place. It raises ShapeError, which names the place, and never shows
more of a hostile value than its type. It knows its own JSON Schema, so that a document is described by what checks it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from proofbox.core.clock import parse_isoformat

SHA256 = re.compile(r"[0-9a-f]{64}")


class ShapeError(ValueError):
    """A document lacks a member, has one too many, or one of another type."""


class ValueCheck:
    """Raises ShapeError unless a value is what `json_schema` says."""

    __slots__ = ("_run", "json_schema")

    def __init__(self, run: Callable[[Any, str], None], json_schema: Mapping[str, Any]) -> None:
        self._run = run
        self.json_schema = dict(json_schema)

    def __call__(self, value: Any, where: str) -> None:
        self._run(value, where)

    def meaning(self, words: str) -> ValueCheck:
        """The same check, of something that has a meaning."""
        return ValueCheck(self._run, {**self.json_schema, "description": words})


def checks(json_schema: Mapping[str, Any]) -> Callable[[Callable[[Any, str], None]], ValueCheck]:
    """Makes a check of a function."""
    return lambda run: ValueCheck(run, json_schema)


def text(limit: int = 4096) -> ValueCheck:
    @checks({"type": "string", "maxLength": limit})
    def check(value: Any, where: str) -> None:
        if type(value) is not str or len(value) > limit:
            raise ShapeError(f"{where} is not a text of at most {limit} characters")

    return check


@checks({"type": "integer", "minimum": 0})
def count(value: Any, where: str) -> None:
    if type(value) is not int or value < 0:
        raise ShapeError(f"{where} is not a number of things")


@checks({"type": "boolean"})
def flag(value: Any, where: str) -> None:
    if type(value) is not bool:
        raise ShapeError(f"{where} is neither true nor false")


@checks({"type": "string", "pattern": f"^{SHA256.pattern}$"})
def sha256(value: Any, where: str) -> None:
    if type(value) is not str or not SHA256.fullmatch(value):
        raise ShapeError(f"{where} is not a SHA-256 in lower-case hexadecimal")


@checks({"type": "string", "format": "date-time"})
def moment(value: Any, where: str) -> None:
    try:
        parse_isoformat(value)
    except (TypeError, ValueError):
        raise ShapeError(f"{where} is not a time") from None


@checks({})
def anything(value: Any, where: str) -> None:
    """Its meaning is someone else's."""


def elsewhere(inner: ValueCheck) -> ValueCheck:
    """Described as `inner`, and checked by code of its own."""
    return ValueCheck(anything, inner.json_schema)


def one_of(*values: str) -> ValueCheck:
    @checks({"enum": list(values)})
    def check(value: Any, where: str) -> None:
        if value not in values or type(value) is not str:
            raise ShapeError(f"{where} is none of {', '.join(values)}")

    return check


def or_null(inner: ValueCheck) -> ValueCheck:
    @checks({"anyOf": [inner.json_schema, {"type": "null"}]})
    def check(value: Any, where: str) -> None:
        if value is not None:
            inner(value, where)

    return check


def array(inner: ValueCheck) -> ValueCheck:
    @checks({"type": "array", "items": inner.json_schema})
    def check(value: Any, where: str) -> None:
        if type(value) is not list:
            raise ShapeError(f"{where} is not an array")
        for number, item in enumerate(value):
            inner(item, f"{where}[{number}]")

    return check


def table(inner: ValueCheck) -> ValueCheck:
    """An object whose member names are data."""

    @checks({"type": "object", "additionalProperties": inner.json_schema})
    def check(value: Any, where: str) -> None:
        if type(value) is not dict:
            raise ShapeError(f"{where} is not an object")
        for name, item in value.items():
            inner(item, f"{where}.{name[:80]}")

    return check


def record(required: Mapping[str, ValueCheck], optional: Mapping[str, ValueCheck] | None = None) -> ValueCheck:
    """An object with exactly these members. One that is not known is refused: its meaning would be lost."""
    known = {**required, **(optional or {})}

    @checks(
        {
            "type": "object",
            "properties": {name: inner.json_schema for name, inner in known.items()},
            "required": list(required),
            "additionalProperties": False,
        }
    )
    def check(value: Any, where: str) -> None:
        if type(value) is not dict:
            raise ShapeError(f"{where} is not an object")
        for name in required:
            if name not in value:
                raise ShapeError(f"{where} has no member {name}")
        for name, item in value.items():
            if name not in known:
                raise ShapeError(f"{where} has a member that is not known: {name[:80]!r}")
            known[name](item, f"{where}.{name}")

    return check
