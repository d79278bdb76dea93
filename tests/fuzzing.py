"""Mutations of seed files: structure-aware for JSON, TOML and lines, and bytewise for everything."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

MOST = 4
"""Maximum number of mutations per example. Most of the document stays valid, so that deep checks are reached."""
TOKENS = (
    *(
        b"",
        b"\0",
        b"\n",
        b"\r\n",
        b"\r",
        b'"',
        b"'",
        b"\\",
        b"[",
        b"]",
        b"{",
        b"}",
        b"=",
        b",",
        b":",
        b"#",
        b" ",
        b"\t",
    ),
    *(b"-1", b"0", b"1e999", b"9" * 400, b"nan", b"inf", b"true", b"null", b"1979-05-27", b"\xff\xfe", b"\xed\xa0\x80"),
    *(b"../../etc/passwd", b"/dev/zero", b"\x1b[2J", "\u202e".encode(), b"\\ud800", b"%s%n", b"n" * 5000),
    *(b"[" * 2000, b'{"a":' * 2000, b"(" * 2000, b"a." * 2000),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**31, 2**53, 2**63, 2**70, 0.5, 1e308, float("inf"), float("nan")),
    *("", "x", "\0", "../..", "/", "~", "\ud800", "\x1b[2J", "n" * 5000, "a/" * 500, "0" * 64, "off", "full"),
    *([], [[]], {}, {"": None}, {"path": "../x"}, [None] * 50, "2026-01-01T00:00:00Z"),
)
LITERALS = (
    *("", "1", "-1", "1e999", "nan", "inf", "true", '""', '"x"', '"../.."', '"/"', '"\\u0000"', "''", '"""x"""', "[]"),
    *(
        "[[]]",
        "{}",
        "{ a = 1 }",
        '["a", 1]',
        "1979-05-27",
        "07:32:00",
        "0x" + "f" * 300,
        "9" * 5000,
        '"' + "n" * 5000 + '"',
    ),
    *("[" * 300 + "]" * 300, "{a=" * 300 + "1" + "}" * 300, '"off"', '"full"', "x", "["),
)

Mutation = Callable[[bytes, st.DataObject], bytes]


def _at(data: st.DataObject, size: int) -> int:
    return data.draw(st.integers(0, max(0, size)))


def mutate_bytes(seed: bytes, data: st.DataObject) -> bytes:
    """Change, remove, repeat or insert some bytes."""
    start = _at(data, len(seed))
    end = min(len(seed), start + data.draw(st.sampled_from((0, 1, 2, 4, 8, 64, 1 << 20))))
    kind = data.draw(st.sampled_from(("flip", "insert", "remove", "repeat", "number")))
    if kind == "flip":
        mask = data.draw(st.integers(1, 255))
        return seed[:start] + bytes(byte ^ mask for byte in seed[start : start + 1]) + seed[start + 1 :]
    if kind == "remove":
        return seed[:start] + seed[end:]
    if kind == "repeat":
        return seed[:end] + seed[start:end] * data.draw(st.sampled_from((1, 2, 50))) + seed[end:]
    if kind == "number":
        width = data.draw(st.sampled_from((1, 2, 4, 8)))
        value = data.draw(st.sampled_from((0, 1, 0x7F, 0xFF, (1 << (8 * width - 1)) - 1, (1 << (8 * width)) - 1)))
        return seed[:start] + (value & ((1 << (8 * width)) - 1)).to_bytes(width, "little") + seed[start + width :]
    return seed[:start] + data.draw(st.sampled_from(TOKENS)) + seed[end:]


def mutate_json(seed: bytes, data: st.DataObject) -> bytes:
    """Replace, remove, rename or repeat one member of a document."""
    try:
        document = json.loads(seed)
    except (ValueError, RecursionError):
        return mutate_bytes(seed, data)
    places = _places(document)
    if not places:
        return json.dumps(data.draw(st.sampled_from(VALUES))).encode("utf-8", "surrogatepass")
    holder, key = places[_at(data, len(places) - 1)]
    kind = data.draw(st.sampled_from(("replace", "remove", "rename", "add", "swap")))
    if kind == "remove":
        del holder[key]
    elif kind == "rename" and isinstance(holder, dict):
        holder[data.draw(st.sampled_from(("", "x", "schema_version", "__proto__", "\0")))] = holder.pop(key)
    elif kind == "add" and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif kind == "swap":
        other, name = places[_at(data, len(places) - 1)]
        holder[key] = json.loads(json.dumps(other.get(name) if isinstance(other, dict) else other[name:][:1]))
    else:
        holder[key] = data.draw(st.sampled_from(VALUES))
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _places(document: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        value = waiting.pop()
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, member in inner:
            found.append((value, key))
            waiting.append(member)
    return found


def mutate_lines(seed: bytes, data: st.DataObject) -> bytes:
    """Change one line as JSON or bytes, or remove, repeat or move it."""
    lines = seed.split(b"\n")
    start, end = _at(data, len(lines) - 1), _at(data, len(lines) - 1)
    kind = data.draw(st.sampled_from(("json", "bytes", "remove", "repeat", "move")))
    if kind == "json":
        head, brace, rest = lines[start].partition(b"{")
        lines[start] = head + mutate_json(brace + rest, data) if brace else mutate_bytes(lines[start], data)
    elif kind == "bytes":
        lines[start] = mutate_bytes(lines[start], data)
    elif kind == "remove":
        del lines[start]
    elif kind == "repeat":
        lines[start:start] = [lines[start]] * data.draw(st.sampled_from((1, 2, 100)))
    else:
        lines.insert(end, lines.pop(start))
    return b"\n".join(lines)


def mutate_toml(seed: bytes, data: st.DataObject) -> bytes:
    """Give one key another value, or change a line."""
    lines = seed.split(b"\n")
    keys = [number for number, line in enumerate(lines) if b"=" in line]
    if not keys or data.draw(st.booleans()):
        return mutate_lines(seed, data)
    number = keys[_at(data, len(keys) - 1)]
    name = lines[number].partition(b"=")[0]
    lines[number] = name + b"= " + data.draw(st.sampled_from(LITERALS)).encode()
    return b"\n".join(lines)


def mutated(seed: bytes, data: st.DataObject, *ways: Mutation) -> bytes:
    """Return the seed after a few mutations, in these ways or by its bytes."""
    for _ in range(data.draw(st.integers(1, MOST))):
        seed = data.draw(st.sampled_from((*ways, *ways, mutate_bytes)))(seed, data)
    return seed
