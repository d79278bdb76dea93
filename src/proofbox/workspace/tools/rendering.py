"""Text for a model: bounded, and with nothing in it that a terminal or a reader would obey."""

from __future__ import annotations

from proofbox.core.text import preview, printable

TEXT_LIMIT = 32 * 1024
LINE_LIMIT = 500


def bounded(words: str, limit: int = TEXT_LIMIT) -> str:
    """At most `limit` bytes of UTF-8: what is too long keeps its beginning and its end."""
    # Cut before escaping too: an escape is up to ten times what it stands for, and what is cut need not be escaped.
    text = printable(words if len(words) <= 2 * limit else words[:limit] + words[-limit:])
    if len(text.encode()) <= limit:
        return text
    gap = "\n[… the middle is left out …]\n"
    room = limit - len(gap.encode())
    if room < 2:
        return preview(text, limit)[0]
    head = preview(text, room // 2)[0]
    tail = preview(text[: -room - 1 : -1], room - room // 2)[0][::-1]
    return head + gap + tail


def one_line(data: bytes) -> str:
    """One line of a file as it appears in a result: what is not UTF-8 replaced, what is long cut."""
    text = data.decode("utf-8", "replace")
    return text if len(text) <= LINE_LIMIT else text[: LINE_LIMIT - 1] + "…"
