r"""The pattern dialect: the subset that ripgrep and Python interpret identically.

A pattern is matched against each line separately. It may contain

- literal characters; `\` before a punctuation character makes it literal; `\t \r \f \v`;
- `.` any character, `[abc]`, `[a-z]`, `[^…]`, `\d \w \s` and `\D \W \S` (ASCII), also inside brackets;
- `a|b`, `(…)`, `(?:…)`; `* + ? {m} {m,} {m,n}`, each optionally followed by `?`;
- `^` and `$` for the start and end of a line, `\b` for an ASCII word boundary.

Refused with a specific message: look-around, back references, flags, named groups, `\n`, numeric code points, POSIX
classes and set operations, nested repetitions, and repetitions that are too large for an engine.

A character is a code point of valid UTF-8. Invalid bytes match nothing and are not an error. Ignoring case applies to
ASCII letters only. Every pattern is parsed here and rewritten for each engine in a form that both read identically.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from proofbox.core.text import printable
from proofbox.errors import PatternRefused

MAX_LENGTH = 1000
MAX_REPEAT = 1000
MAX_WEIGHT = 2000
MAX_DEPTH = 50

_Ranges = list[tuple[int, int]]
_LAST = 0x10FFFF
_NEVER: _Ranges = [(0x0A, 0x0A), (0xD800, 0xDFFF)]  # newline; surrogates, which are not characters
_SETS: dict[str, _Ranges] = {
    "d": [(0x30, 0x39)],
    "w": [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
    "s": [(0x09, 0x09), (0x0B, 0x0D), (0x20, 0x20)],
}
_SPECIAL = frozenset(".^$*+?{}[]|()\\")
_CONTROLS = {"t": "\t", "r": "\r", "f": "\f", "v": "\v"}


class SearchPattern(NamedTuple):
    """One pattern, translated for each engine."""

    python: str
    rust: str
    literal: bytes | None = None
    """The text it matches, if it is literal: no engine is needed then."""


class _Piece(NamedTuple):
    python: str
    rust: str
    weight: int = 1
    anchor: bool = False


def compile_pattern(text: str, *, ignore_case: bool = False, literal: bool = False) -> SearchPattern:
    """Compile a pattern. Raises PatternRefused with the reason and the position."""
    parser = _Parser(text, ignore_case)
    if not text or len(text) > MAX_LENGTH:
        parser.refuse(f"a pattern must have 1 to {MAX_LENGTH} characters")
    piece = parser.literally() if literal else parser.pattern()
    plain = literal or not _SPECIAL.intersection(text)
    cased = ignore_case and any(sign.isascii() and sign.isalpha() for sign in text)
    return SearchPattern(piece.python, piece.rust, text.encode() if plain and not cased else None)


class _Parser:
    def __init__(self, text: str, ignore_case: bool) -> None:
        self._text = text
        self._at = 0
        self._ignore_case = ignore_case
        self._depth = 0

    def literally(self) -> _Piece:
        return _joined([self._character(sign) for sign in self._text])

    def pattern(self) -> _Piece:
        piece = self._alternatives()
        if self._at < len(self._text):
            self.refuse("unmatched )")
        if piece.weight > MAX_WEIGHT:
            self.refuse("its repetitions multiply to too large a size")
        return piece

    def refuse(self, reason: str) -> NoReturn:
        raise PatternRefused(
            f"unsupported pattern {printable(self._text[:200])!r}: {reason}",
            op="search_text",
            details={"reason": reason, "at": self._at},
        )

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, sign: str) -> bool:
        if self._text.startswith(sign, self._at):
            self._at += len(sign)
            return True
        return False

    def _alternatives(self) -> _Piece:
        found = [self._sequence()]
        while self._take("|"):
            found.append(self._sequence())
        if len(found) == 1:
            return found[0]
        weight = sum(each.weight for each in found)
        return _Piece(
            f"(?:{'|'.join(each.python for each in found)})", f"(?:{'|'.join(each.rust for each in found)})", weight
        )

    def _sequence(self) -> _Piece:
        pieces = []
        while self._peek() not in ("", "|", ")"):
            pieces.append(self._repeated(self._atom()))
        return _joined(pieces)

    def _repeated(self, piece: _Piece) -> _Piece:
        bounds = self._bounds()
        if bounds is None:
            return piece
        if piece.anchor:
            self.refuse("an anchor such as ^, $ or \\b can't be repeated")
        least, most = bounds
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            self.refuse(f"repetition bounds must be ascending, and the lower bound at most {MAX_REPEAT}")
        self._take("?")
        if self._peek() in ("*", "+", "?", "{"):
            self.refuse("nested repetition")
        sign = f"{{{least},{'' if most is None else most}}}"
        weight = piece.weight * max(1, most if most is not None else least + 1)
        return _Piece(f"(?:{piece.python}){sign}", f"(?:{piece.rust}){sign}", weight)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if not self._take("{"):
            return None
        least = self._number()
        most: int | None = least
        if self._take(","):
            most = self._number() if self._peek() != "}" else None
        if not self._take("}"):
            self.refuse("a { that does not start a repetition (write \\{ for the character)")
        return least, most

    def _number(self) -> int:
        digits = ""
        while self._peek() and self._peek() in "0123456789":
            digits += self._peek()
            self._at += 1
        if not digits or len(digits) > 6:
            self.refuse("a { that does not start a repetition (write \\{ for the character)")
        return int(digits)

    def _atom(self) -> _Piece:
        sign = self._peek()
        self._at += 1
        if sign == "(":
            return self._group()
        if sign == "[":
            return self._class()
        if sign == ".":
            return _class_piece(_without(_NEVER))
        if sign in ("^", "$"):
            return _Piece(sign, sign, anchor=True)
        if sign == "\\":
            return self._escape()
        if sign in ("*", "+", "?", "{", "}", "]"):
            self.refuse(f"nothing to repeat before {sign}")
        return self._character(sign)

    def _group(self) -> _Piece:
        if self._peek() == "?" and not self._take("?:"):
            self.refuse("look-around, flags and named groups are not supported")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self.refuse("its groups are nested too deeply")
        inside = self._alternatives()
        self._depth -= 1
        if not self._take(")"):
            self.refuse("missing )")
        return _Piece(f"(?:{inside.python})", f"(?:{inside.rust})", max(1, inside.weight))

    def _escape(self) -> _Piece:
        sign = self._peek()
        self._at += 1
        if sign == "b":
            return _Piece(r"(?a:\b)", r"(?-u:\b)", anchor=True)
        if sign.lower() in _SETS:
            return _class_piece(_set(sign))
        return self._character(self._escaped(sign))

    def _escaped(self, sign: str) -> str:
        if sign in _CONTROLS:
            return _CONTROLS[sign]
        if not sign or sign.isalnum() or not sign.isascii() or sign.isspace():
            self.refuse(f"unsupported escape \\{sign}")
        return sign

    def _character(self, sign: str) -> _Piece:
        if sign in ("\n", "\0") or 0xD800 <= ord(sign) <= 0xDFFF:
            self.refuse("it contains a character that can't occur in a line")
        other = sign.swapcase()
        if self._ignore_case and sign.isascii() and sign.isalpha():
            return _Piece(f"[{sign}{other}]", f"[{sign}{other}]")
        if sign.isalnum() and sign.isascii():
            return _Piece(sign, sign)
        return _Piece(_python_point(ord(sign)), _rust_point(ord(sign)))

    def _class(self) -> _Piece:
        negated = self._take("^")
        ranges: _Ranges = []
        while not ranges or self._peek() != "]":
            for operator in ("&&", "--", "~~"):
                if self._text.startswith(operator, self._at):
                    self.refuse(f"{operator} inside brackets is not supported")
            ranges += self._member(first=not ranges)
        self._at += 1
        if self._ignore_case:
            ranges += _other_case(ranges)
        kept = _without([*ranges, *_NEVER]) if negated else _minus(_merged(ranges), _NEVER)
        if not kept:
            self.refuse("brackets that match no character")
        return _class_piece(kept)

    def _member(self, *, first: bool) -> _Ranges:
        sign = self._peek()
        if not sign or (first and sign == "]"):
            self.refuse("missing ], or empty brackets")
        low = self._single()
        if isinstance(low, list):
            return low
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in ("", "]"):
            return [(low, low)]
        self._at += 1
        high = self._single()
        if isinstance(high, list) or high < low:
            self.refuse("invalid range inside brackets")
        return [(low, high)]

    def _single(self) -> int | _Ranges:
        sign = self._peek()
        self._at += 1
        if sign == "[":
            self.refuse("unescaped [ inside brackets")
        if sign == "\\":
            sign = self._peek()
            self._at += 1
            if sign.lower() in _SETS and sign:
                return _set(sign)
            sign = self._escaped(sign)
        if sign in ("\n", "\0") or 0xD800 <= ord(sign) <= 0xDFFF:
            self.refuse("it contains a character that can't occur in a line")
        return ord(sign)


def _joined(pieces: list[_Piece]) -> _Piece:
    weight = sum(piece.weight for piece in pieces)
    anchor = len(pieces) == 1 and pieces[0].anchor
    return _Piece("".join(p.python for p in pieces), "".join(p.rust for p in pieces), weight, anchor)


def _set(sign: str) -> _Ranges:
    ranges = _SETS[sign.lower()]
    return _without([*ranges, *_NEVER]) if sign.isupper() else ranges


def _merged(ranges: _Ranges) -> _Ranges:
    merged: _Ranges = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _without(ranges: _Ranges) -> _Ranges:
    """Return every code point outside the ranges."""
    found: _Ranges = []
    begin = 0
    for low, high in _merged(ranges):
        if begin < low:
            found.append((begin, low - 1))
        begin = high + 1
    if begin <= _LAST:
        found.append((begin, _LAST))
    return found


def _minus(ranges: _Ranges, taken: _Ranges) -> _Ranges:
    return _without([*_without(ranges), *taken])


def _other_case(ranges: _Ranges) -> _Ranges:
    found: _Ranges = []
    for low, high in ranges:
        for begin, end, shift in ((0x41, 0x5A, 0x20), (0x61, 0x7A, -0x20)):
            if low <= end and high >= begin:
                found.append((max(low, begin) + shift, min(high, end) + shift))
    return found


def _class_piece(ranges: _Ranges) -> _Piece:
    python = "".join(_python_point(low) + (f"-{_python_point(high)}" if high > low else "") for low, high in ranges)
    rust = "".join(_rust_point(low) + (f"-{_rust_point(high)}" if high > low else "") for low, high in ranges)
    return _Piece(f"[{python}]", f"[{rust}]")


def _python_point(point: int) -> str:
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def _rust_point(point: int) -> str:
    return f"\\x{{{point:x}}}"
