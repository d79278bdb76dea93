"""Canonical JSON: the RFC's test vectors, and round trips between writing and parsing."""

from __future__ import annotations

import json
import math
import struct
from enum import Enum, IntEnum
from typing import Annotated, Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proofbox.core.canonical import (
    MAX_DEPTH,
    MAX_INTEGER,
    CanonicalError,
    canonical_bytes,
    check_values,
    limits,
    object_parser,
    parse_canonical,
    parse_strict,
    record,
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


NUMBERS = """0 -0 1 -1 1.0 12.0 -0.0 0.5 0.001 0.0009 1000000000000000.5 9.813 1e5 1E5 1e300 1e+300 1e-7 0.00001
0.000001 999999999999999 9007199254740991 9007199254740993 18446744073709551616 100000000000000000000
1e400 NaN 01 1. 0.1234567890123456"""
NAMES = st.sampled_from(["a", "b", "\u00e9", "\uffff", "\U0001f600", "\x7f", "/", "\x00", "\n", '"', "\u2028"])
STRINGS = (NAMES | st.text(max_size=3)).map(lambda text: json.dumps(text, ensure_ascii=False)) | st.sampled_from(
    [r'"\ud800"', r'"\u0041"', r'"\/"', r'"\u000A"', '"\t"', '"']
)
SPELLINGS = st.recursive(
    st.sampled_from(NUMBERS.split()) | STRINGS | st.sampled_from(["null", "true", "", " "]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.lists(st.tuples(STRINGS, inner), max_size=3).map(
            lambda members: "{" + ",".join(f"{name}:{value}" for name, value in members) + "}"
        )
    ),
    max_leaves=8,
)


@example('{"a":1,"a":1}')
@example('{"\uffff":1,"\U0001f600":2}')
@example('{"\U0001f600":2,"\uffff":1}')
@given(SPELLINGS)
def test_every_spelling_is_read_alike_with_and_without_msgspec(spelling: str) -> None:
    assert_read_alike(spelling)


@pytest.mark.parametrize("number", NUMBERS.split())
def test_every_number_is_read_alike_with_and_without_msgspec(number: str) -> None:
    assert_read_alike(number)
    assert_read_alike(f"[{number},-{number}]")
    assert_read_alike(f'{{"a":[{number},-{number},{number}],"b":"8.0,","c":{number}}}')
    assert_read_alike(f'{{"a":{number},"b":"11111111111111111111"}}')
    assert_read_alike(f'{{"a":"11111111111111111111","b":-{number}}}')
    assert_read_alike(f'{{"b":{number},"a":"11111111111111111111"}}')


@record
class Item:
    b: Annotated[int, limits(le=9)]
    c: str | None = None

    @property
    def double(self) -> int:
        return 2 * self.b


@record
class Items:
    a: list[Item]
    d: bool


@example('{"a":[{"b":1,"c":"x"}]}')
@example('{"a":[{"b":1,"c":null}]}')
@example('{"a":[{"b":1}],"d":true}')
@example('{"a":[{"b":18446744073709551616}],"d":false}')
@example('{"a":[{"b":1.0}],"d":false}')
@example('{"a":[],"d":false,"e":0}')
@given(SPELLINGS)
def test_parser_of_known_members_reads_only_their_canonical_form(spelling: str) -> None:
    data = spelling.encode("utf-8", "surrogatepass")
    found = object_parser(Items)(data)
    if found is not None:
        items = [{"b": each.b} | ({} if each.c is None else {"c": each.c}) for each in found.a]
        assert canonical_bytes({"a": items, "d": found.d}) == data
    with patch("proofbox.core.canonical._PLAIN", None):
        assert object_parser(Item)(b'{"b":1}') is None


def test_parser_of_known_members_returns_their_values() -> None:
    parse = object_parser(Items)
    found = parse(b'{"a":[{"b":1},{"b":2,"c":"\xc3\xa9"}],"d":true}')
    assert found == Items([Item(1), Item(2, "é")], True)
    assert parse(b'{"a":[{"b":10}],"d":true}') is None


def test_record_is_the_same_with_and_without_msgspec() -> None:
    class Other:
        b: int
        c: str | None = None

        @property
        def double(self) -> int:
            return 2 * self.b

    kinds: list[Any] = [Item, record(Other)]
    with patch("proofbox.core.canonical._PLAIN", None):
        assert limits(le=9) is None
        kinds.append(record(Other))
    for kind in kinds:
        value = kind(1, "x")
        assert (value.b, value.c, value.double) == (1, "x", 2)
        assert value == kind(b=1, c="x")
        assert value != kind(1)
        assert hash(value) == hash(kind(1, "x"))
        with pytest.raises(AttributeError):
            value.b = 2


class Level(IntEnum):
    LOW = 1


class Word(str):
    pass


class Tagged(str, Enum):  # noqa: UP042  # the values of a StrEnum are what they are
    """An enum whose value is not the string that it is."""

    TAG = "tag"

    def __init__(self, text: str) -> None:
        self._value_ = text.upper()


@example({"a": Level.LOW})
@example({"a": Word("b")})
@example({Word("b"): 1})
@example({Tagged.TAG: 1, "b": 2})
@example({1: 1})
@example({"a": 1, None: 1})
@example({"a": 1, b"b": 1})
@example({("a",): 1})
@example({"a": 2**53})
@example({"a": 1.0, "b": -0.0, "c": 0.1 + 0.2, "d": 1e15 + 0.5, "e": 0.001, "f": 0.0009, "g": 1e22})
@example({"\uffff": 1, "\U0001f600": 2, "\x7f": "\x00"})
@example({"a": "\ud800"})
@example({"a": math.nan})
@example(dict.fromkeys(map(str, range(40)), 0))
@given(st.dictionaries(st.text(max_size=3), st.none() | st.booleans() | st.integers() | st.floats() | st.text()))
def test_every_object_is_written_alike_with_and_without_msgspec(members: dict[Any, Any]) -> None:
    def write() -> bytes | str:
        try:
            return canonical_bytes(members)
        except CanonicalError as error:
            return str(error)

    with patch("proofbox.core.canonical._PLAIN", None):
        expected = write()
    assert write() == expected


def assert_read_alike(spelling: str) -> None:
    def read(data: bytes) -> list[str]:
        try:
            strict = repr(parse_strict(data))
        except CanonicalError:
            strict = "refused"
        return [strict, repr(parse_canonical(data))]

    data = spelling.encode("utf-8", "surrogatepass")
    with patch("proofbox.core.canonical._PLAIN", None):
        expected = read(data)
    assert read(data) == expected


def test_names_that_look_like_formatting_are_names() -> None:
    assert canonical_bytes({"%s": "%d", "100%": 1, "%%": "%"}) == b'{"%%":"%","%s":"%d","100%":1}'


@pytest.mark.parametrize(
    ("element", "weight"), [("1", 1), ('""', 1), ("[]", 2), ("{}", 3), ('{"a":1}', 3), ("[1,2]", 3)]
)
def test_commas_and_brackets_count_once_and_braces_twice(element: str, weight: int) -> None:
    # Each element adds a comma as well; the outer list takes its bracket, and has one comma less.
    count = 900 // weight
    most = count * weight
    data = f"[{','.join([element] * count)}]".encode()
    with patch("proofbox.core.canonical.MAX_VALUES", most):
        check_values(data)
    with patch("proofbox.core.canonical.MAX_VALUES", most - 1), pytest.raises(CanonicalError, match="more than"):
        check_values(data)
