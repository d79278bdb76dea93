"""A terminal emulator: processes a program's output and returns the visible screen.

It supports text, colours, cursor movement and erasing. Unknown sequences are ignored and never shown as text.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from typing import NamedTuple

# CSI with its parameters, OSC up to its end, and the short ones.
ESCAPE = re.compile(
    r"\x1b(?:\[(?P<csi>[0-9;:?<=>]*)[ -/]*(?P<do>[@-~])|\](?:[^\x07\x1b]*)(?:\x07|\x1b\\)|[()#][ -~]|[0-~])"
)
UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:?<=>]*[ -/]*|\][^\x07\x1b]*\x1b?|[()#]?)\Z")


class Style(NamedTuple):
    colour: int | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underlined: bool = False


class Cell(NamedTuple):
    text: str = " "
    style: Style = Style()


PLAIN = Style()
BLANK = Cell()
Row = tuple[Cell, ...]


class Screen:
    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._lines = [[BLANK] * columns for _ in range(rows)]
        self._x = self._y = 0
        self._style = PLAIN
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    def feed(self, data: bytes) -> None:
        text = self._pending + self._decoder.decode(data)
        cut = UNFINISHED.search(text)
        self._pending = text[cut.start() :] if cut else ""
        text = text[: cut.start()] if cut else text
        at = 0
        while at < len(text):
            escape = ESCAPE.match(text, at)
            if escape:
                if escape["do"]:
                    self._control(escape["do"], escape["csi"])
                at = escape.end()
            else:
                self._put(text[at])
                at += 1

    def picture(self) -> tuple[Row, ...]:
        """Return the visible cells of each line, without trailing blanks."""
        return tuple(_trimmed(line) for line in self._lines)

    def _put(self, char: str) -> None:
        if char == "\n":
            self._down()
        elif char == "\r":
            self._x = 0
        elif char == "\b":
            self._x = max(0, self._x - 1)
        elif char == "\t":
            self._x = min(self.columns - 1, self._x // 8 * 8 + 8)
        elif unicodedata.combining(char):
            before = self._lines[self._y][max(0, self._x - 1)]
            self._lines[self._y][max(0, self._x - 1)] = Cell(before.text + char, before.style)
        elif char.isprintable():
            width = 2 if unicodedata.east_asian_width(char) in "WF" else 1
            if self._x + width > self.columns:
                self._x = 0
                self._down()
            self._lines[self._y][self._x] = Cell(char, self._style)
            if width == 2:
                self._lines[self._y][self._x + 1] = Cell("", self._style)
            self._x += width

    def _down(self) -> None:
        if self._y < self.rows - 1:
            self._y += 1
        else:
            self._lines = [*self._lines[1:], [BLANK] * self.columns]

    def _control(self, do: str, parameters: str) -> None:
        if parameters.startswith(("?", ">", "<", "=")):
            return  # private modes: the cursor's looks, the mouse
        numbers = [int(each) if each.isdigit() else 0 for each in re.split("[;:]", parameters)]
        first = min(numbers[0], 9999)
        step = max(1, first)
        if do == "m":
            self._style = _styled(self._style, numbers)
        elif do in "ABCDEFGHdf":
            self._move(do, step, max(1, numbers[1] if len(numbers) > 1 else 1))
        elif do == "K":
            self._erase(self._y, *{0: (self._x, self.columns), 1: (0, self._x + 1)}.get(first, (0, self.columns)))
        elif do == "J":
            if first == 0:
                self._erase(self._y, self._x, self.columns)
            else:
                self._erase(self._y, 0, self._x + 1 if first == 1 else self.columns)
            for y in {0: range(self._y + 1, self.rows), 1: range(self._y)}.get(first, range(self.rows)):
                self._erase(y, 0, self.columns)

    def _move(self, do: str, step: int, second: int) -> None:
        y = {"A": self._y - step, "F": self._y - step, "B": self._y + step, "E": self._y + step}.get(do, self._y)
        x = {"C": self._x + step, "D": self._x - step, "G": step - 1, "E": 0, "F": 0}.get(do, self._x)
        if do in "Hf":
            y, x = step - 1, second - 1
        elif do == "d":
            y = step - 1
        self._y, self._x = min(max(y, 0), self.rows - 1), min(max(x, 0), self.columns - 1)

    def _erase(self, y: int, start: int, end: int) -> None:
        end = min(end, self.columns)
        self._lines[y][start:end] = [BLANK] * (end - start)


def _styled(style: Style, numbers: list[int]) -> Style:
    rest = iter(numbers)
    for number in rest:
        if number == 0:
            style = PLAIN
        elif number in (1, 2, 3, 4):
            style = style._replace(**{("bold", "dim", "italic", "underlined")[number - 1]: True})
        elif number == 22:
            style = style._replace(bold=False, dim=False)
        elif number in (23, 24):
            style = style._replace(**{("italic", "underlined")[number - 23]: False})
        elif 30 <= number <= 37 or 90 <= number <= 97:
            style = style._replace(colour=number - 30 if number < 90 else number - 82)
        elif number == 39:
            style = style._replace(colour=None)
        elif number in (38, 48):  # one of 256, or red, green and blue: only the first sixteen colours are kept
            kind = next(rest, 0)
            values = [next(rest, 0) for _ in range({5: 1, 2: 3}.get(kind, 0))]
            if number == 38:
                style = style._replace(colour=values[0] if kind == 5 and values[0] < 16 else None)
    return style


def _trimmed(line: list[Cell]) -> Row:
    end = len(line)
    while end and line[end - 1].text == " " and not line[end - 1].style.underlined:
        end -= 1
    return tuple(line[:end])
