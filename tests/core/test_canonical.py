"""Canonical JSON: the RFC's test vectors, and round trips between writing and parsing."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.core.canonical import (
    MAX_DEPTH,
    MAX_INTEGER,
    CanonicalError,
    canonical_bytes,
    parse_canonical,
    parse_strict,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


# RFC 8785, appendix B.
@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_are_written_as_in_the_rfc(bits: str, text: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_bytes(value) == text.encode()
    assert parse_strict(text.encode()) == value


def test_names_sort_by_utf16_code_units() -> None:
    """RFC 8785, section 3.2.3: by code points the emoji would come last."""
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    written = canonical_bytes(dict.fromkeys(names, 0)).decode()
    assert list(json.loads(written)) == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


def test_the_sample_of_the_rfc() -> None:
    sample = rb"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical_bytes(parse_strict(sample)) == expected.encode()


@given(values)
def test_canonical_bytes_round_trip(value: Any) -> None:
    written = canonical_bytes(value)
    read = parse_strict(written)
    assert read == value
    assert canonical_bytes(read) == written
    assert json.loads(written, parse_int=float) == value
    assert repr(parse_canonical(written)) in (repr(read), "None")
    assert parse_canonical(b" " + written) is None


@given(st.dictionaries(st.text(), st.integers(0, 9), min_size=2))
def test_the_order_of_members_does_not_matter(members: dict[str, int]) -> None:
    assert canonical_bytes(dict(reversed(members.items()))) == canonical_bytes(members)


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        MAX_INTEGER + 1,
        -MAX_INTEGER - 1,
        "\ud800",
        {"\udfff": 1},
        {"\udfff": 1, "é": 2},
        {1: 2},
        {None: 1, "a": 2},
        b"bytes",
        {1, 2},
        object(),
        Text("subclass"),
        [1, [math.nan]],
    ],
)
def test_values_without_canonical_form_are_refused(value: Any) -> None:
    with pytest.raises(CanonicalError):
        canonical_bytes(value)


def test_a_cycle_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CanonicalError, match="nested"):
        canonical_bytes(loop)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":1}',
        b'[{"x":{"a":1,"\\u0061":2}}]',
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"1e999",
        b"9007199254740993",
        b"-9007199254740992000001",
        b"1" * 5000,
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\xc0\x80"',
        b'"\\ud800"',
        b'{"\\uDC00":1}',
        b"\xef\xbb\xbf{}",
        b'{"a":1}{}',
        b'"raw\ncontrol"',
        b"[1,]",
        b"{'a':1}",
        b"",
        b"\x00" * 100,
    ],
)
def test_ambiguous_json_is_refused(data: bytes) -> None:
    with pytest.raises(CanonicalError):
        parse_strict(data)
    assert parse_canonical(data) is None


@pytest.mark.parametrize("data", [b'{"b":1,"a":2}', b"[1.0]", b"1e2", b"-0", b'["\\u0061"]', b"[1, 2]"])
def test_canonical_parser_leaves_other_spellings_to_the_strict_one(data: bytes) -> None:
    assert parse_canonical(data) is None
    assert parse_strict(data) is not None


def test_a_surrogate_pair_by_escapes_is_one_character() -> None:
    assert parse_strict(b'"\\ud83d\\ude00"') == "\U0001f600"


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_bounded_alike_for_both(opening: str, closing: str) -> None:
    def nested(depth: int) -> bytes:
        return (opening * (depth - 1) + ("[]" if opening == "[" else "{}") + closing * (depth - 1)).encode()

    assert canonical_bytes(parse_strict(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 5_000, 200_000):
        with pytest.raises(CanonicalError, match="nested"):
            parse_strict(nested(depth))
    with pytest.raises(CanonicalError, match="nested"):
        parse_strict(b"[" * 1_000_000)
    too_deep: Any = json.loads(nested(MAX_DEPTH + 1))
    with pytest.raises(CanonicalError, match="nested"):
        canonical_bytes(too_deep)


def test_brackets_in_strings_are_not_nesting() -> None:
    assert parse_strict(json.dumps("[" * 1000).encode()) == "[" * 1000
    assert parse_strict(json.dumps([[1]] * 500).encode()) == [[1]] * 500


@given(st.binary(max_size=60))
def test_random_bytes_are_parsed_or_refused(data: bytes) -> None:
    try:
        value = parse_strict(data)
    except CanonicalError:
        return
    assert parse_strict(canonical_bytes(value)) == value


def test_names_that_look_like_formatting_are_names() -> None:
    assert canonical_bytes({"%s": "%d", "100%": 1, "%%": "%"}) == b'{"%%":"%","%s":"%d","100%":1}'
