"""Checking that a JSON document has the members it should, with the standard library alone.

A check is a function of a value and of the name of its place. It raises ShapeError, which names the place, and never
shows more of a hostile value than its type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from proofbox.core.clock import parse_isoformat

Check = Callable[[Any, str], None]

SHA256 = re.compile(r"[0-9a-f]{64}")


class ShapeError(ValueError):
    """A document lacks a member, has one too many, or one of another type."""


def text(limit: int = 4096) -> Check:
    def check(value: Any, where: str) -> None:
        if type(value) is not str or len(value) > limit:
            raise ShapeError(f"{where} is not a text of at most {limit} characters")

    return check


def count(value: Any, where: str) -> None:
    if type(value) is not int or value < 0:
        raise ShapeError(f"{where} is not a number of things")


def flag(value: Any, where: str) -> None:
    if type(value) is not bool:
        raise ShapeError(f"{where} is neither true nor false")


def sha256(value: Any, where: str) -> None:
    if type(value) is not str or not SHA256.fullmatch(value):
        raise ShapeError(f"{where} is not a SHA-256 in lower-case hexadecimal")


def moment(value: Any, where: str) -> None:
    try:
        parse_isoformat(value)
    except (TypeError, ValueError):
        raise ShapeError(f"{where} is not a time") from None


def anything(value: Any, where: str) -> None:
    """Its meaning is someone else's."""


def one_of(*values: str) -> Check:
    def check(value: Any, where: str) -> None:
        if value not in values or type(value) is not str:
            raise ShapeError(f"{where} is none of {', '.join(values)}")

    return check


def or_null(inner: Check) -> Check:
    def check(value: Any, where: str) -> None:
        if value is not None:
            inner(value, where)

    return check


def array(inner: Check) -> Check:
    def check(value: Any, where: str) -> None:
        if type(value) is not list:
            raise ShapeError(f"{where} is not an array")
        for number, item in enumerate(value):
            inner(item, f"{where}[{number}]")

    return check


def table(inner: Check) -> Check:
    """An object whose member names are data."""

    def check(value: Any, where: str) -> None:
        if type(value) is not dict:
            raise ShapeError(f"{where} is not an object")
        for name, item in value.items():
            inner(item, f"{where}.{name[:80]}")

    return check


def record(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """An object with exactly these members. One that is not known is refused: its meaning would be lost."""
    known = {**required, **(optional or {})}

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
