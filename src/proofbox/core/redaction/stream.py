"""Redaction of byte streams."""

from __future__ import annotations

from proofbox.core.redaction.redactor import Redactor, before_spans


class StreamRedactor:
    """Redacts a stream with the same result as redacting it at once: a secret split between chunks is found.

    Output is returned line by line (LF or CR). Only private key blocks and secrets that contain a line break can span
    lines; lines that may be part of one are held back until that is decided. At most HOLD_BACK bytes (or four times the
    longest secret, if that is more) are held. A longer line is returned in parts: exact secrets are still found across
    the parts, and so are pattern matches that are shorter than the hold-back.
    """

    HOLD_BACK = 1 << 16

    def __init__(self, redactor: Redactor) -> None:
        layers = self._layers = redactor._raw
        self._held = bytearray()
        self._multiline = [form for form in layers.forms if "\n" in form or "\r" in form]
        self._limit = max(self.HOLD_BACK, 4 * layers.tail)

    def feed(self, chunk: bytes) -> bytes:
        """Add the next chunk, and return the redacted output that is final; possibly empty."""
        self._held += chunk
        if len(self._held) <= self._limit and b"\n" not in chunk and b"\r" not in chunk:
            return b""
        held = self._held.decode("latin-1")
        cut = self._safe_cut(held)
        del self._held[:cut]
        return self._layers.redact(held[:cut]).encode("latin-1")

    def finish(self) -> bytes:
        """Return the rest of the output at the end of the stream."""
        rest = self._layers.redact(self._held.decode("latin-1")).encode("latin-1")
        self._held.clear()
        return rest

    def _safe_cut(self, held: str) -> int:
        """Return the furthest position that no secret crosses, now or with later bytes."""
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
        # Even a secret that repeats endlessly must not be held back forever.
        cut = before_spans(len(held) - self._layers.tail, self._layers.exact_spans(held))
        return max(cut, len(held) - self._limit)

    def _partial_start(self, held: str) -> int:
        """Return where `held` ends with the beginning of a multi-line secret; its length if it does not."""
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
