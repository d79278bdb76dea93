"""Numbers as a sentence has them."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """`1 file`, `2 files`, `0 files`: for nouns that take an s."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
