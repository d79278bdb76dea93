"""Finds the position of each key in a TOML text, for error messages.

`tomllib` has parsed the text already, so it is valid: this reads only as much of the grammar as needed to tell keys
from values.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from typing import Any, NamedTuple

from proofbox.core.parsing.toml import TomlRefused, parse_toml

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r"""[ \t]*("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)[ \t]*""")
_STRING = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|' + r"'''.*?'{3,5}|" + r""""(?:[^"\\\n]|\\.)*"|'[^'\n]*'""", re.DOTALL)
_BARE = re.compile(r"[^,\]}#\n]+")


class Position(NamedTuple):
    line: int
    column: int


def read_toml(text: str) -> tuple[dict[str, Any], dict[Path, Position]]:
    """Return the values and their positions. Raises `tomllib.TOMLDecodeError`."""
    values = parse_toml(text)
    try:
        return values, key_positions(text)
    except RecursionError:
        raise TomlRefused("nested too deeply") from None


def key_positions(text: str) -> dict[Path, Position]:
    """Return the position of every key and array element, by its path in the parsed document."""
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._found: dict[Path, Position] = {}
        self._lines = [0, *(newline.end() for newline in re.finditer("\n", text))]
        self._tables: dict[Path, int] = {}
        """How many elements each array of tables has so far."""

    def read(self) -> dict[Path, Position]:
        table: Path = ()
        while self._skip():
            if self._text.startswith("[[", self._at):
                table = self._header(2)
            elif self._text[self._at] == "[":
                table = self._header(1)
            else:
                self._pair(table)
        return self._found

    def _skip(self) -> bool:
        self._at = self._match(_BLANK).end()
        return self._at < len(self._text)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise ValueError(f"not valid TOML at offset {self._at}")
        return found

    def _key(self) -> list[tuple[str, int]]:
        """Return the parts of a dotted key, each with its offset."""
        parts = []
        while True:
            found = self._match(_KEY)
            self._at = found.end()
            raw = found.group(1)
            name = next(iter(tomllib.loads(f"{raw} = 0"))) if raw[0] in "\"'" else raw
            parts.append((name, found.start(1)))
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _header(self, brackets: int) -> Path:
        self._at += brackets
        parts = self._key()
        self._at += brackets
        path: Path = ()
        for number, (name, offset) in enumerate(parts):
            path += (name,)
            self._note(path, offset)
            if brackets == 2 and number == len(parts) - 1:
                self._tables[path] = self._tables.get(path, 0) + 1
            if path in self._tables:
                path += (self._tables[path] - 1,)
                self._note(path, offset)
        return path

    def _pair(self, table: Path) -> None:
        path = table
        for name, offset in self._key():
            path += (name,)
            self._note(path, offset)
        self._at += 1  # the equals sign
        self._value(path)

    def _value(self, path: Path) -> None:
        self._at = self._match(re.compile(r"[ \t]*")).end()
        first = self._text[self._at]
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        else:
            self._at = self._match(_STRING if first in "\"'" else _BARE).end()

    def _array(self, path: Path) -> None:
        self._at += 1
        number = 0
        while self._skip() and self._text[self._at] != "]":
            self._note((*path, number), self._at)
            self._value((*path, number))
            number += 1
            self._skip()
            if self._text[self._at] == ",":
                self._at += 1
        self._at += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        while self._skip() and self._text[self._at] != "}":
            self._pair(path)
            self._skip()
            if self._text[self._at] == ",":
                self._at += 1
        self._at += 1

    def _note(self, path: Path, offset: int) -> None:
        line = bisect_right(self._lines, offset)
        self._found.setdefault(path, Position(line, offset - self._lines[line - 1] + 1))
