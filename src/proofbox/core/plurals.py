"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """Return `1 file`, `2 files` or `0 files`, for nouns with a regular plural."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
