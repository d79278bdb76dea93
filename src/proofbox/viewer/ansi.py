r"""Turn the text of a terminal into styled pieces, for display in a page.

Only SGR sequences (colours, bold, faint, italic, underline, inverse) have an effect, as names of classes; no text from
an agent becomes markup. Other escape sequences, control characters and characters that change the direction or are
invisible are shown: `\x1b[2J`, `\u202e`. The script of the export (`static/evidence.js`) does the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from proofbox.core.text import printable

_SGR = re.compile(r"\x1b\[([0-9;]{0,64})m")
_NEWLINE = re.compile(r"\r\n")
_STYLES = {1: "bold", 2: "faint", 3: "italic", 4: "underline", 7: "inverse"}
_ENDS = {22: ("bold", "faint"), 23: ("italic",), 24: ("underline",), 27: ("inverse",)}


class StyledText(NamedTuple):
    """Text with the classes that style it; empty: plain."""

    classes: str
    text: str


def styled(text: str) -> Iterator[StyledText]:
    """Split text at its SGR sequences."""
    style = _Style()
    position = 0
    text = _NEWLINE.sub("\n", text)
    for found in _SGR.finditer(text):
        if found.start() > position:
            yield StyledText(style.classes, printable(text[position : found.start()]))
        style.apply([int(each or 0) for each in found[1].split(";")])
        position = found.end()
    if position < len(text):
        yield StyledText(style.classes, printable(text[position:]))


class _Style:
    def __init__(self) -> None:
        self._on: set[str] = set()
        self._foreground = self._background = ""

    @property
    def classes(self) -> str:
        return " ".join(filter(None, [*sorted(self._on), self._foreground, self._background]))

    def apply(self, codes: list[int]) -> None:
        while codes:
            code = codes.pop(0)
            if code == 0:
                self._on.clear()
                self._foreground = self._background = ""
            elif code in _STYLES:
                self._on.add(_STYLES[code])
            elif code in _ENDS:
                self._on.difference_update(_ENDS[code])
            elif 30 <= code <= 37 or 90 <= code <= 97:
                self._foreground = f"fg{code % 10 + (8 if code >= 90 else 0)}"
            elif 40 <= code <= 47 or 100 <= code <= 107:
                self._background = f"bg{code % 10 + (8 if code >= 100 else 0)}"
            elif code == 39:
                self._foreground = ""
            elif code == 49:
                self._background = ""
            elif code in (38, 48):  # a colour out of 256, or an RGB value: shown only if it is one of the first 16
                kind = codes.pop(0) if codes else 0
                values = [codes.pop(0) for _ in range(min(len(codes), {5: 1, 2: 3}.get(kind, 0)))]
                name = str(values[0]) if kind == 5 and values and values[0] < 16 else ""
                if code == 38:
                    self._foreground = name and f"fg{name}"
                else:
                    self._background = name and f"bg{name}"
