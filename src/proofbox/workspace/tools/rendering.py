"""Text for a model: bounded, and without control characters."""

from __future__ import annotations

from proofbox.core.text import preview, printable

TEXT_LIMIT = 32 * 1024
LINE_LIMIT = 500


def bounded(words: str, limit: int = TEXT_LIMIT) -> str:
    """Return at most `limit` bytes of UTF-8. A longer text keeps its beginning and its end."""
    # Cut before escaping as well: an escape may be ten times as long, and the part that is cut need not be escaped.
    text = printable(words if len(words) <= 2 * limit else words[:limit] + words[-limit:])
    if len(text.encode()) <= limit:
        return text
    gap = "\n[… middle omitted …]\n"
    room = limit - len(gap.encode())
    if room < 2:
        return preview(text, limit)[0]
    head = preview(text, room // 2)[0]
    tail = preview(text[: -room - 1 : -1], room - room // 2)[0][::-1]
    return head + gap + tail


def one_line(data: bytes) -> str:
    """Decode one line of a file for a result: invalid UTF-8 is replaced, and long lines are cut."""
    text = data.decode("utf-8", "replace")
    return text if len(text) <= LINE_LIMIT else text[: LINE_LIMIT - 1] + "…"
