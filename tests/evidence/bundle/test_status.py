"""Statuses are read alike with and without msgspec."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from proofbox.core.canonical import canonical_bytes
from proofbox.evidence.bundle import status
from proofbox.evidence.bundle.status import SCHEMA, RunStatus, parse_status
from proofbox.evidence.documents.shape import ShapeError

A = "a" * 64
TIME = "2026-01-01T00:00:00.000000Z"
PROCESS = {"pid": 7, "host": A, "boot_id": "b", "start_ticks": 12, "pid_namespace": 4026531836}
WORLD = {"host": A, "platform": {"system": "Linux"}, "tool": {"name": "proofbox", "version": "1"}}
STATUS = RunStatus("run-1", "complete", TIME, PROCESS, WORLD, finished_at=TIME, expected=("a.json", "b/c.json"))


def read(data: bytes) -> Any:
    try:
        return parse_status(data)
    except ShapeError as error:
        return type(error), str(error)


def read_without_msgspec(data: bytes) -> Any:
    with patch.object(status, "_parse_members", lambda _: None):
        return read(data)


def test_usual_status_is_filled_by_msgspec() -> None:
    with patch.object(status, "_parse_any", side_effect=AssertionError):
        assert parse_status(STATUS.to_bytes()) == STATUS
    assert read_without_msgspec(STATUS.to_bytes()) == STATUS


VALUES: list[Any] = [None, True, -1, 0, 1.5, 2**53 - 1, "", "x" * 65, "x" * 257, "x" * 4097, A.upper(), "a" * 63, TIME]
VALUES += [A + "\n", "2026-13-01T00:00:00.000000Z", "run/1", [], ["../a"], ["a"], ["a"] * 40, ["x" * 1025], [None], {}]
VALUES += [{"a": 1}, {"a": "x" * 256}, {"a": "x" * 257}, {"stage": "s", "error": "e", "message": "m"}, "failed"]
MEMBERS: list[tuple[str, ...]] = [(name,) for name in json.loads(STATUS.to_bytes())]
MEMBERS += [("writer", name) for name in PROCESS] + [("world", name) for name in WORLD]
MEMBERS += [("unknown",), ("writer", "unknown"), ("world", "unknown"), ("world", "tool", "unknown")]


@pytest.mark.parametrize("member", MEMBERS, ids=".".join)
def test_status_with_another_value_is_read_alike_without_msgspec(member: tuple[str, ...]) -> None:
    def change(value: Any) -> bytes:
        document = json.loads(STATUS.to_bytes())
        place = document
        for name in member[:-1]:
            place = place[name]
        if value is ...:
            place.pop(member[-1], None)
        else:
            place[member[-1]] = value
        return canonical_bytes(document)

    for value in (*VALUES, ...):
        assert read(change(value)) == read_without_msgspec(change(value)), value


FORMS: list[Callable[[bytes], bytes]] = [
    lambda data: data.replace(b'"dry":false,', b'"dry":false,"dry":false,'),
    lambda data: data.replace(b'"pid":7', b'"pid":7,"pid":7'),
    lambda data: data.replace(b'"pid":7', b'"pid":7.0'),
    lambda data: data.replace(b'"pid":7', b'"pid":9007199254740993'),
    lambda data: data.replace(b'"pid":7', b'"pid": 7'),
    lambda data: data.replace(SCHEMA.encode(), b"proofbox.run_status/2"),
    lambda data: data.replace(b"Linux", b"\\u004cinux"),
    lambda data: data.replace(b"Linux", b"\xff"),
    lambda data: b"[" + data + b"]",
    lambda data: data[:-1],
    lambda data: json.dumps(json.loads(data), indent=1).encode(),
]


@pytest.mark.parametrize("form", FORMS)
def test_status_in_another_form_is_read_alike_without_msgspec(form: Callable[[bytes], bytes]) -> None:
    data = form(STATUS.to_bytes())
    assert data != STATUS.to_bytes()
    assert read(data) == read_without_msgspec(data)
