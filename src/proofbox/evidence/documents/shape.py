"""Validate the structure of JSON documents, using only the standard library.

A check is called with a value and its location. It raises ShapeError, which names the location and never shows the
content of an untrusted value. Its function `run` may be called without a location, if only the result matters. Each
check has its own JSON Schema, so the code that checks a document also describes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from proofbox.core.clock import parse_isoformat

SHA256 = re.compile(r"[0-9a-f]{64}")


class ShapeError(ValueError):
    """A document has a missing, unknown or invalid member."""


class ValueCheck:
    """Raises ShapeError unless a value matches `json_schema`."""

    __slots__ = ("json_schema", "run")

    def __init__(self, run: Callable[[Any, str], None], json_schema: Mapping[str, Any]) -> None:
        self.run = run
        self.json_schema = dict(json_schema)

    def __call__(self, value: Any, where: str) -> None:
        # The locations of members are built only for the message: that takes longer than all checks.
        try:
            self.run(value, "")
        except ShapeError:
            self.run(value, where)
            raise

    def meaning(self, words: str) -> ValueCheck:
        """Return the same check with a description in its schema."""
        return ValueCheck(self.run, {**self.json_schema, "description": words})


def checks(json_schema: Mapping[str, Any]) -> Callable[[Callable[[Any, str], None]], ValueCheck]:
    """Return a decorator that turns a function into a check."""
    return lambda run: ValueCheck(run, json_schema)


def text(limit: int = 4096) -> ValueCheck:
    @checks({"type": "string", "maxLength": limit})
    def check(value: Any, where: str) -> None:
        if type(value) is not str or len(value) > limit:
            raise ShapeError(f"{where} is not a string of at most {limit} characters")

    return check


@checks({"type": "integer", "minimum": 0})
def count(value: Any, where: str) -> None:
    if type(value) is not int or value < 0:
        raise ShapeError(f"{where} is not a non-negative integer")


@checks({"type": "boolean"})
def flag(value: Any, where: str) -> None:
    if type(value) is not bool:
        raise ShapeError(f"{where} is not true or false")


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
    """Accept any value."""


def one_of(*values: str) -> ValueCheck:
    @checks({"enum": list(values)})
    def check(value: Any, where: str) -> None:
        if value not in values or type(value) is not str:
            raise ShapeError(f"{where} is not one of {', '.join(values)}")

    return check


def or_null(inner: ValueCheck) -> ValueCheck:
    @checks({"anyOf": [inner.json_schema, {"type": "null"}]})
    def check(value: Any, where: str) -> None:
        if value is not None:
            inner.run(value, where)

    return check


def array(inner: ValueCheck) -> ValueCheck:
    @checks({"type": "array", "items": inner.json_schema})
    def check(value: Any, where: str) -> None:
        if type(value) is not list:
            raise ShapeError(f"{where} is not an array")
        run = inner.run
        for number, item in enumerate(value):
            run(item, where and f"{where}[{number}]")

    return check


def table(inner: ValueCheck) -> ValueCheck:
    """Return a check for an object with arbitrary member names."""

    @checks({"type": "object", "additionalProperties": inner.json_schema})
    def check(value: Any, where: str) -> None:
        if type(value) is not dict:
            raise ShapeError(f"{where} is not an object")
        for name, item in value.items():
            inner.run(item, where and f"{where}.{name[:80]}")

    return check


def record(required: Mapping[str, ValueCheck], optional: Mapping[str, ValueCheck] | None = None) -> ValueCheck:
    """Return a check for an object with exactly these members. Unknown members are refused, not ignored."""
    known = {**required, **(optional or {})}
    runs = {name: inner.run for name, inner in known.items()}

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
            run = runs.get(name)
            if run is None:
                raise ShapeError(f"{where} has an unknown member: {name[:80]!r}")
            run(item, where and f"{where}.{name}")

    return check
