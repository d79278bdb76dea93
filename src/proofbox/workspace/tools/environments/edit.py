"""Replacing text in a file's content, exactly."""

from __future__ import annotations

from typing import NamedTuple

from proofbox.core.text import printable
from proofbox.errors import EditRefused


class Edited(NamedTuple):
    data: bytes
    replacements: int
    first_line: int


def replace(data: bytes, old: bytes, new: bytes, *, path: str, everywhere: bool = False) -> Edited:
    """`old` must be there: once, or (`everywhere`) at all. Occurrences are counted as they are replaced, one after
    another and not overlapping, but one that overlaps another makes "once" untrue."""
    reason = ""
    if not old:
        reason, hint = "the text to replace is empty", "give the text that is there now, or use write_file"
    elif old == new:
        reason, hint = "the new text is the old one", "give another text"
    elif old not in data:
        reason, hint = "the text to replace is not in it", "read the file: every space and line end counts"
    elif not everywhere and data.find(old) != data.rfind(old):
        reason, hint = "the text to replace is in it more than once", "give more of the lines around it, or replace all"
    if reason:
        raise EditRefused(f"{printable(path[:200])}: {reason}", op="edit_file", fix_hints=[hint])
    first_line = data.count(b"\n", 0, data.find(old)) + 1
    return Edited(data.replace(old, new), data.count(old), first_line)
