"""TOML as `tomllib` reads it, with one way to fail: `tomllib.TOMLDecodeError`.

Python itself refuses a number of some thousand digits and lists in lists some hundred deep, by errors that say nothing
of the document; and its time for a dotted name grows with the square of its parts. A file that someone else wrote may
hold any of these.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

MOST_PARTS = 100
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = re.compile(rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*")


class TomlRefused(tomllib.TOMLDecodeError):
    """Valid as TOML, and more than is read here."""

    def __init__(self, message: str, at: int | None = None) -> None:
        ValueError.__init__(self, message)  # the parent's takes a place in the text, which is seldom known
        self.at = at


def parse_toml(text: str) -> dict[str, Any]:
    for name in _DOTTED.finditer(text) if text.count(".") > MOST_PARTS else ():
        if name[0].count(".") >= MOST_PARTS and len(re.findall(_PART, name[0])) > MOST_PARTS:
            raise TomlRefused(f"a name of more than {MOST_PARTS} parts", name.start())
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise TomlRefused("nested too deeply") from None
    except ValueError as error:
        raise TomlRefused(f"a value that can't be read: {str(error).partition(';')[0]}") from None
