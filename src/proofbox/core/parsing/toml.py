"""Parse untrusted TOML with `tomllib`. Every failure is a `tomllib.TOMLDecodeError`.

For numbers of thousands of digits and lists nested hundreds of levels deep, `tomllib` raises other errors that do not
mention the document, and its time for a dotted name grows with the square of the number of parts.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

MAX_PARTS = 100
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = re.compile(rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*")


class TomlRefused(tomllib.TOMLDecodeError):
    """The document exceeds a limit of this parser, though it may be valid TOML."""

    def __init__(self, message: str, at: int | None = None) -> None:
        ValueError.__init__(self, message)  # the parent's requires a position, which is rarely known
        self.at = at


def parse_toml(text: str) -> dict[str, Any]:
    for name in _DOTTED.finditer(text) if text.count(".") > MAX_PARTS else ():
        if name[0].count(".") >= MAX_PARTS and len(re.findall(_PART, name[0])) > MAX_PARTS:
            raise TomlRefused(f"a dotted name has more than {MAX_PARTS} parts", name.start())
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise TomlRefused("nested too deeply") from None
    except ValueError as error:
        raise TomlRefused(f"a value can't be read: {str(error).partition(';')[0]}") from None
