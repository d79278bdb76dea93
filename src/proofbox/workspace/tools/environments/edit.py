"""Replace exact text in a file's content."""

from __future__ import annotations

from typing import NamedTuple

from proofbox.core.text import printable
from proofbox.errors import EditRefused


class Edited(NamedTuple):
    data: bytes
    replacements: int
    first_line: int


def replace(data: bytes, old: bytes, new: bytes, *, path: str, everywhere: bool = False) -> Edited:
    """Replace `old`, which must occur exactly once, or with `everywhere` at least once. Replacements do not overlap,
    but overlapping occurrences count as more than one."""
    reason = ""
    if not old:
        reason, hint = "the text to replace is empty", "give the current text, or use write_file"
    elif old == new:
        reason, hint = "the new text is the same as the old text", "give a different text"
    elif old not in data:
        reason, hint = "the text to replace was not found", "read the file: whitespace and line endings must match"
    elif not everywhere and data.find(old) != data.rfind(old):
        reason, hint = "the text to replace occurs more than once", "include more surrounding lines, or replace all"
    if reason:
        raise EditRefused(f"{printable(path[:200])}: {reason}", op="edit_file", fix_hints=[hint])
    first_line = data.count(b"\n", 0, data.find(old)) + 1
    return Edited(data.replace(old, new), data.count(old), first_line)
