"""TOML as `tomllib` reads it, with one way to fail: `tomllib.TOMLDecodeError`.

Python itself refuses a number of some thousand digits and lists in lists some hundred deep, by errors that say nothing
of the document. A file that someone else wrote may hold either.
"""

from __future__ import annotations

import tomllib
from typing import Any


class TomlRefused(tomllib.TOMLDecodeError):
    """Valid as TOML, and more than is read here."""

    def __init__(self, message: str) -> None:
        ValueError.__init__(self, message)  # the parent's takes a place in the text, which is not known


def parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise TomlRefused("nested too deeply") from None
    except ValueError as error:
        raise TomlRefused(f"a value that can't be read: {str(error).partition(';')[0]}") from None
