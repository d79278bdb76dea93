"""Suggestions for unknown names."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint: the most similar known name, or a list of all known names."""
    from difflib import get_close_matches  # only errors need it

    names = list(known)
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
