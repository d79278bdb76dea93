"""Canonical JSON (RFC 8785, "JCS"): each value has exactly one encoding, so its digest is well defined.

    canonical_bytes({"b": 1.0, "a": "é"})   ->  b'{"a":"\\xc3\\xa9","b":1}'
    parse_strict(b'{"a":1,"a":2}')          ->  CanonicalError

Members are sorted by the UTF-16 code units of their names, there is no white space, and numbers are formatted as in
ECMAScript. Input that JSON libraries interpret differently is refused rather than normalised: duplicate names, NaN and
infinities, lone surrogates, and integers that a double can't represent.

The two functions are consistent: `parse_strict` reads everything that `canonical_bytes` writes, and encoding the result
again gives the same bytes. Both use the same limits on nesting and on the number of values, so a writer can't produce a
document that a reader must refuse.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring
from operator import itemgetter
from typing import Annotated, Any, TypeVar, cast, dataclass_transform, get_type_hints

MAX_DEPTH = 128
MAX_INTEGER = 2**53 - 1
_LEAST = -MAX_INTEGER
MAX_VALUES = 1_000_000
"""Two bytes of JSON can take a hundred bytes of memory. With this limit the values of a document fit in 100 MB."""
MAX_WIDE_BYTES = 1 << 23
"""Maximum size of a document with characters beyond the BMP: Python stores its text in four times the size."""
MAX_PARSED_TOGETHER = 1 << 16
"""Maximum size of log lines that are parsed together."""
_WIDE = re.compile(rb"[\xf0-\xf4]")
_INTEGRAL = re.compile(rb"\.0[,}\]](?<=[:,\[0-9][0-9]\.0.)")
"""Finds numbers that end in `.0`, and some text. A search for a pattern that begins with a literal is fast."""
_NO_SEPARATORS = bytes(set(range(256)) - set(b",[{"))
_PLAIN_DEPTH = 6  # of most documents and logs; each further level doubles the time that msgspec takes to load the type
_SMALL = 32  # members; layouts of larger objects are not cached, so hostile ones can't fill the memory


class CanonicalError(ValueError):
    """The value has no canonical form, or the bytes are not strict JSON.

    A ValueError and not a proofbox error: only the caller knows whether the bytes were a user's input (usage) or a
    stored document (corruption).
    """


def canonical_bytes(value: Any) -> bytes:
    """Encode `value` by RFC 8785: None, bool, int, float, str, list, tuple and dict with string keys, nested.

    Subclasses of these types are refused: an enum or a named tuple has a meaning that JSON would silently drop.
    """
    if type(value) is dict:
        plain = encode_flat(value)
        if plain is not None:
            return plain
    try:
        data = _encode(value, MAX_DEPTH).encode()
    except UnicodeEncodeError as error:
        raise CanonicalError("a string contains a lone surrogate, which UTF-8 can't represent") from error
    check_values(data)
    return data


def encode_flat(members: dict[Any, Any]) -> bytes | None:
    """Encode a small object without nested values with msgspec, like most log lines; None for any other one.

    `_parse_plain` says where msgspec's encoding is the canonical one. It refuses names that are not strings.
    """
    if _PLAIN is None or len(members) > _SMALL:
        return None
    for item in members.values():
        # Most are strings and integers; a call for each would double the cost.
        if type(item) is not str and not (type(item) is int and _LEAST <= item <= MAX_INTEGER) and not _is_flat(item):
            return None
    try:
        data = _PLAIN[1](members)
    except (TypeError, ValueError):
        return None
    return data if data.isascii() else None


def _is_flat(item: Any) -> bool:
    kind = type(item)
    return item is None or kind is bool or (kind is float and 0.001 <= abs(item) < 1e15 and not item.is_integer())


def _encode(value: Any, depth: int) -> str:
    kind = type(value)
    if kind is str:
        return encode_basestring(value)
    if kind is int:
        if -MAX_INTEGER <= value <= MAX_INTEGER:
            return str(value)
        raise CanonicalError("an integer is outside ±(2**53-1); write it as a string")
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is float:
        return _encode_float(value)
    if kind is dict:
        if depth == 0:
            raise CanonicalError(f"nested deeper than {MAX_DEPTH} levels")
        depth -= 1
        if 1 < len(value) <= _SMALL:
            # Most values in documents and traces are strings and integers; a call for each would double the cost.
            values, layout = _layout(tuple(value))
            return layout % tuple(
                [
                    encode_basestring(item)
                    if (kind := type(item)) is str
                    else item
                    if kind is int and -MAX_INTEGER <= item <= MAX_INTEGER
                    else _encode(item, depth)
                    for item in values(value)
                ]
            )
        members = [f"{encode_basestring(name)}:{_encode(value[name], depth)}" for name in _sorted_names(value)]
        return "{" + ",".join(members) + "}"
    if kind is list or kind is tuple:
        if depth == 0:
            raise CanonicalError(f"nested deeper than {MAX_DEPTH} levels")
        items = [encode_basestring(item) if type(item) is str else _encode(item, depth - 1) for item in value]
        return "[" + ",".join(items) + "]"
    raise CanonicalError(f"a value of type {kind.__name__} has no JSON form")


@lru_cache(maxsize=512)
def _layout(names: tuple[Any, ...]) -> tuple[itemgetter[Any], str]:
    """Return a getter for an object's values in canonical order, and the format string for them.

    Cached, because logs repeat a few sets of names.
    """
    ordered = _sorted_names(names)
    return itemgetter(*ordered), "{" + ",".join(
        encode_basestring(name).replace("%", "%%") + ":%s" for name in ordered
    ) + "}"


def _sorted_names(names: Iterable[Any]) -> list[str]:
    try:
        ascii_only = "".join(names).isascii()
    except TypeError:
        raise CanonicalError("a member name is not a string") from None
    # Code points and UTF-16 code units sort alike except beyond the BMP; testing for ASCII is cheap.
    return sorted(names) if ascii_only else sorted(names, key=lambda name: name.encode("utf-16-be"))


def _encode_float(value: float) -> str:
    """Format as ECMAScript's Number::toString. `repr` finds the same shortest digits but formats them differently."""
    if not math.isfinite(value):
        raise CanonicalError("NaN and infinities have no JSON form")
    if value == 0:
        return "0"
    mantissa, marker, exponent_text = repr(value).partition("e")
    if not marker:
        return mantissa.removesuffix(".0")
    exponent = int(exponent_text)
    sign = "-" if value < 0 else ""
    digits = mantissa.lstrip("-").replace(".", "")
    if 0 < exponent < 21:
        return sign + digits.ljust(exponent + 1, "0")
    if -7 < exponent < 0:
        return sign + "0." + "0" * (-exponent - 1) + digits
    return f"{mantissa}e{exponent:+d}"


def parse_strict(data: bytes) -> Any:
    """Parse one JSON document, refusing everything that parsers interpret differently.

    Raises CanonicalError for invalid UTF-8, a byte order mark, duplicate names, NaN, infinities and numbers that
    overflow to one, integers a double would round, lone surrogates, nesting beyond MAX_DEPTH, and more values than
    MAX_VALUES. The input need not be canonical; a caller that requires it compares
    `canonical_bytes(parse_strict(data))` with `data`.
    """
    check_values(data)
    value = _parse_plain(data, canonical=False)
    if value is not None:
        return value
    try:
        text = data.decode("utf-8")
        value = _DECODER.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # only an escape can contain a lone surrogate
    except CanonicalError:
        raise
    except UnicodeDecodeError as error:
        raise CanonicalError(f"not UTF-8 at byte {error.start}") from error
    except UnicodeEncodeError as error:
        raise CanonicalError("a string contains a lone surrogate") from error
    except json.JSONDecodeError as error:
        raise CanonicalError(f"not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError:
        raise CanonicalError(f"nested deeper than {MAX_DEPTH} levels") from None
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    return value


def parse_canonical(data: bytes) -> Any:
    """Parse JSON in canonical form; None for most other input, which `parse_strict` then accepts or refuses by name.

    Encoding the result again shows that no name occurs twice and that every number is exact, so that the parser need
    not call a function for each of them. Integers beyond ±(2**53-1), which canonical doubles may look like, are left to
    `parse_strict`.
    """
    try:
        check_values(data)
        value = _parse_plain(data, canonical=True)
        if value is not None:
            return value
        value = json.loads(data.decode("utf-8"))
        return value if canonical_bytes(value) == data else None
    except (ValueError, RecursionError):
        return None


def _parse_plain(data: bytes, *, canonical: bool) -> Any:
    """Parse a small JSON object in canonical form with msgspec, in a fifth of the time; None for most other input.

    msgspec accepts duplicate names and numbers that it rounds, but then its own encoding differs from the input. That
    encoding is the canonical one of `_plain_object`, except for numbers ending in `.0`, and for the order of names with
    characters beyond the BMP. Without `canonical`, such numbers and members in any order are also accepted.
    """
    if _PLAIN is None or not _has_plain_names(data) or (canonical and _INTEGRAL.search(data)):
        return None
    decode, encode = _PLAIN if canonical else _STRICT
    try:
        value = decode(data)
        return value if encode(value) == data else None
    except ValueError:
        return None


def parse_lines(data: bytes) -> list[dict[str, Any]] | None:
    """Parse lines of canonical JSON objects, all ended by LF, as `_parse_plain` does; None for most other input.

    Together, small objects take half the time.
    """
    if _PLAIN is None or len(data) > MAX_PARSED_TOGETHER or not _has_plain_names(data) or _INTEGRAL.search(data):
        return None
    try:
        values: list[dict[str, Any]] = _LINES[0](data)
        return values if _LINES[1](values) == data else None
    except ValueError:
        return None


def _has_plain_names(data: bytes) -> bool:
    return data.isascii() or _WIDE.search(data) is None


_Kind = TypeVar("_Kind")


@dataclass_transform(frozen_default=True)
def record(kind: type[_Kind]) -> type[_Kind]:
    """Make a class for `object_parser`: a msgspec struct, or a frozen dataclass if msgspec is not installed."""
    if _PLAIN is None:
        return dataclass(frozen=True, slots=True)(kind)
    members = dict(vars(kind))
    fields = [
        (name, hint, members.pop(name)) if name in members else (name, hint)
        for name, hint in get_type_hints(kind, include_extras=True).items()
    ]
    for name in ("__annotations__", "__dict__", "__weakref__"):
        members.pop(name, None)
    made = defstruct(kind.__name__, fields, namespace=members, module=kind.__module__, frozen=True, **_EXACT)
    return cast("type[_Kind]", made)


def limits(**values: Any) -> Any:
    """Return what `object_parser` checks of `Annotated[str, limits(max_length=64)]`; a constructor checks nothing."""
    return None if _PLAIN is None else Meta(**values)


def object_parser(kind: type[_Kind]) -> Callable[[bytes], _Kind | None]:
    """Return a function that parses objects with the members of a `record`, if they are in canonical form.

    It returns None for any other input, which `parse_strict` reads or refuses, and for all input if msgspec is not
    installed. Members that are None are absent. Integers without limits are exact, but may be beyond ±(2**53-1).
    """
    if _PLAIN is None:
        return lambda _: None
    decoder, encode = Decoder(kind), _PLAIN[1]

    def parse(data: bytes) -> _Kind | None:
        # As in `_parse_plain`; there are no floats.
        try:
            value = decoder.decode(data)
            return value if encode(value) == data else None
        except ValueError:
            return None

    return parse


def check_values(data: bytes) -> None:
    """Raise CanonicalError for JSON with more than MAX_VALUES values.

    The count is a cheap upper bound: it counts separators, including those inside strings. Braces count twice, since
    an object takes twice the memory of a list.
    """
    if len(data) > MAX_WIDE_BYTES and not data.isascii() and _WIDE.search(data) is not None:
        raise CanonicalError(f"more than {MAX_WIDE_BYTES} bytes with characters beyond the BMP")
    if 2 * len(data) <= MAX_VALUES:
        return
    # One pass over the data: `bytes.count` takes four times as long if what it counts is frequent.
    separators = data.translate(None, _NO_SEPARATORS)
    if len(separators) + separators.count(b"{") > MAX_VALUES:
        raise CanonicalError(
            f"more than {MAX_VALUES} values, counting each comma and bracket once and each brace twice"
        )


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise CanonicalError(f"nested deeper than {MAX_DEPTH} levels")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise CanonicalError("an object has the same member name twice")
    return members


def _integer(literal: str) -> int | float:
    if len(literal) <= 17:
        value = int(literal)
        if -MAX_INTEGER <= value <= MAX_INTEGER:
            return value
    # ECMAScript writes large doubles without an exponent (1e20 is 100000000000000000000), so these are parsed as
    # doubles. Any other integer of this size would be rounded silently.
    double = float(literal)
    if math.isfinite(double) and _encode_float(double) == literal:
        return double
    raise CanonicalError("an integer is outside ±(2**53-1)")


def _float(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise CanonicalError("a number is too large for a double")
    return value


def _constant(literal: str) -> Any:
    raise CanonicalError(f"{literal} is not JSON")


def _plain_object() -> Any:
    """Return the type of objects whose numbers msgspec writes as RFC 8785 does, and whose depth it limits.

    It checks them while it decodes, which takes no time. It writes other floats with an exponent, or in another form.
    """
    exact = Annotated[int, Meta(ge=_LEAST, le=MAX_INTEGER)]
    scalar: Any = exact | Annotated[float, Meta(ge=0.001, lt=1e15)] | str | bool | None
    value = scalar
    for _ in range(_PLAIN_DEPTH - 1):
        value = scalar | list[value] | dict[str, value]  # type: ignore[valid-type]
    return dict[str, value]  # type: ignore[valid-type]


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant)
try:
    from msgspec import Meta, defstruct
    from msgspec.json import Decoder, Encoder
except ImportError:  # an auditor may have only the standard library
    _PLAIN = None
else:
    _EXACT: Any = {"omit_defaults": True, "forbid_unknown_fields": True, "gc": False}
    _decoder, _encoder = Decoder(_plain_object()), Encoder(order="sorted")
    _PLAIN = _decoder.decode, _encoder.encode
    _STRICT = _decoder.decode, Encoder().encode
    _LINES = _decoder.decode_lines, _encoder.encode_lines
