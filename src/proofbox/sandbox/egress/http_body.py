"""The body of one HTTP/1 request: its length by its headers, and its end in a stream.

A proxy that copied everything after the head would also pass on a second request, which may be for another host.
"""

from __future__ import annotations

import re

_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")
LINE_LIMIT = 16 << 10


class Malformed(Exception):
    """The request is ambiguous or malformed."""


def parse_fields(lines: list[str]) -> list[tuple[str, str]]:
    """Return names and values. A folded line, a control character or a space before the colon is malformed."""
    fields = []
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise Malformed("a header line is malformed")
        fields.append((found[1], found[2].rstrip(" \t")))
    return fields


class RequestBody:
    """Finds the end of a request's body in the stream that a client sends."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        lengths = [value for name, value in fields if name.lower() == "content-length"]
        codings = [value for name, value in fields if name.lower() == "transfer-encoding"]
        if len(lengths) + len(codings) > 1:
            raise Malformed("the length of the body is stated more than once")
        if codings and codings[0].lower() != "chunked":
            raise Malformed("unsupported transfer encoding: only chunked is supported")
        if lengths and not re.fullmatch(r"[0-9]{1,15}", lengths[0]):
            raise Malformed("the content length is malformed")
        self._left = int(lengths[0]) if lengths else 0
        self._chunked = bool(codings)
        self._line = b""
        self._after_chunk = self._in_trailer = False

    @property
    def complete(self) -> bool:
        return not self._chunked and not self._left

    def take(self, data: bytes) -> bytes:
        """Return the part of the data that belongs to the body; the caller drops the rest."""
        at = 0
        while at < len(data) and not self.complete:
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
            else:
                end = data.find(b"\n", at)
                step = (end + 1 if end >= 0 else len(data)) - at
                self._line += data[at : at + step]
                at += step
                if len(self._line) > LINE_LIMIT:
                    raise Malformed("a line between chunks is too long")
                if end >= 0:
                    self._end_line()
        return data[:at]

    def _end_line(self) -> None:
        line, self._line = self._line, b""
        if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
            raise Malformed("a line of a chunked body is malformed")
        line = line[:-2]
        if self._after_chunk:
            if line:
                raise Malformed("a chunk is longer than its stated size")
            self._after_chunk = False
        elif self._in_trailer:
            if not line:
                self._chunked = False  # the end of the body
            else:
                parse_fields([line.decode("latin-1")])
        else:
            size = _CHUNK.fullmatch(line)
            if size is None:
                raise Malformed("the size of a chunk is malformed")
            self._left = int(size[1], 16)
            self._after_chunk, self._in_trailer = self._left > 0, self._left == 0
