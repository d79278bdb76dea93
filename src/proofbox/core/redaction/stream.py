"""Redacting bytes as they arrive."""

from __future__ import annotations

from proofbox.core.redaction.redactor import Redactor, before_spans


class StreamRedactor:
    """Redacts bytes that arrive in chunks, as if they had come at once: a secret split between chunks is found.

    Output is given out line by line (LF or CR), since no pattern but a private key block, and no secret without a line
    break of its own, crosses lines; where one may, its lines are held back until it is decided. At most HOLD_BACK bytes
    (or four times the longest secret, if that is more) are held. A longer line is given out in parts: exact secrets are
    still found across the parts, and patterns as long as they are shorter than the hold-back.
    """

    HOLD_BACK = 1 << 16

    def __init__(self, redactor: Redactor) -> None:
        layers = self._layers = redactor._raw
        self._held = bytearray()
        self._multiline = [form for form in layers.forms if "\n" in form or "\r" in form]
        self._limit = max(self.HOLD_BACK, 4 * layers.tail)

    def feed(self, chunk: bytes) -> bytes:
        """Take the next chunk, and return what can be given out now: redacted, and possibly empty."""
        self._held += chunk
        if len(self._held) <= self._limit and b"\n" not in chunk and b"\r" not in chunk:
            return b""
        held = self._held.decode("latin-1")
        cut = self._safe_cut(held)
        del self._held[:cut]
        return self._layers.redact(held[:cut]).encode("latin-1")

    def finish(self) -> bytes:
        """The rest, when the stream has ended."""
        rest = self._layers.redact(self._held.decode("latin-1")).encode("latin-1")
        self._held.clear()
        return rest

    def _safe_cut(self, held: str) -> int:
        """The furthest position that no secret reaches across, now or with bytes to come."""
        spans = self._layers.spans(held)
        cut = _line_start(held, min(len(held), self._partial_start(held)))
        for start, end in reversed(spans):
            if start < cut and (end > cut or end == len(held)):
                cut = _line_start(held, start)
        if len(held) - cut <= self._limit:
            return cut
        cut = before_spans(len(held) - self._layers.tail, spans)
        if len(held) - cut <= self._limit:
            return cut
        # Even a secret that repeats itself without end must not be held without end.
        cut = before_spans(len(held) - self._layers.tail, self._layers.exact_spans(held))
        return max(cut, len(held) - self._limit)

    def _partial_start(self, held: str) -> int:
        """Where the earliest beginning of a secret with line breaks stands at the end of `held`."""
        earliest = len(held)
        for form in self._multiline:
            at = held.find(form[:1], max(0, len(held) - len(form) + 1))
            while 0 <= at < earliest:
                if form.startswith(held[at:]):
                    earliest = at
                at = held.find(form[:1], at + 1)
        return earliest


def _line_start(data: str, position: int) -> int:
    return max(data.rfind("\n", 0, position), data.rfind("\r", 0, position)) + 1
