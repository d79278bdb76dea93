"""Memory and disk sizes, in one format for flags, settings, SDK options and suites: 512, "512m", "2g"."""

from __future__ import annotations

import re

from proofbox.errors import RequestInvalid

Size = int | str
"""A number of MB (2^20 bytes), or text with a unit: `512m`, `2g`, `1t`."""

PATTERN = r"^[0-9]{1,9}[mMgGtT]$"
_MEGABYTES = {"m": 1, "g": 1 << 10, "t": 1 << 20}


def megabytes(size: Size, name: str) -> int:
    """Return the number of MB. `name` is the option's name, for the error message."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    if isinstance(size, str) and re.fullmatch(PATTERN, size):
        return int(size[:-1]) * _MEGABYTES[size[-1].lower()]
    raise RequestInvalid(
        f"{name} {size!r} is not a valid size",
        op="start",
        fix_hints=["use a whole number of MB, or text with a unit: 512, '512m', '2g'"],
    )
