"""Making hostile text safe to show, to cut and to name.

Agents and their commands write bytes that terminals obey (escape sequences), that readers misread (bidirectional
overrides, zero-width characters) and that JSON can't hold (invalid UTF-8). None of it is dropped: it is made visible.
"""

from __future__ import annotations

import base64
import codecs
import os
import re
import unicodedata

from proofbox.errors import UsageError

_SUSPECT = re.compile(r"[^\n\t -~]")

# Invisible, and yet "printable" to Unicode: fillers, the grapheme joiner, variation selectors beyond the emoji ones.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0\U000e0100-\U000e01ef]")


def printable(text: str) -> str:
    r"""`text` with everything that isn't a visible character, a space, a newline or a tab written as an escape.

    ESC becomes `\x1b`, a right-to-left override `\u202e`, a tag character `\U000e0041`; carriage return, C1 controls,
    zero-width and other format characters, line separators, private-use and unassigned code points likewise.
    Backslashes are left alone: the result is for people to read, not to be parsed back.
    """
    return _SUSPECT.sub(_visible, text)


def _visible(match: re.Match[str]) -> str:
    char = match[0]
    if (char.isprintable() or unicodedata.category(char) == "Zs") and not _INVISIBLE.match(char):
        return char
    point = ord(char)
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


GAP = re.compile(r"\n\[proofbox: \d+ bytes left out\]\n")


def gap(count: int) -> str:
    """What stands where the middle of an output was left out."""
    return f"\n[proofbox: {count} bytes left out]\n"


def preview(data: bytes | str, limit: int) -> tuple[str, bool]:
    """The beginning of `data` in at most `limit` bytes of UTF-8, and whether anything was left out.

    The limit is on the UTF-8 of the result, whatever came in, so a reader can check it. A character is kept whole or
    left out. Bytes that are not UTF-8, and surrogates without their other half, become U+FFFD.
    """
    if limit < 0:
        raise ValueError("a preview can't have a negative limit")
    if isinstance(data, str):
        # Half a pair at the end becomes U+FFFD, whose three bytes are over the limit: it is left out below.
        text = _valid(data[:limit])
    else:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data[:limit], final=len(data) <= limit)
    encoded = text.encode()
    kept = encoded[:limit].decode("utf-8", "ignore")
    return kept, len(data) > limit or len(encoded) > limit


def preview_end(data: bytes | str, limit: int) -> tuple[str, bool]:
    """The same of its end."""
    part = data[max(0, len(data) - limit) :]
    if isinstance(part, bytes):
        for _ in range(3 if len(part) < len(data) else 0):
            part = part[1:] if part and part[0] & 0xC0 == 0x80 else part  # the rest of a character
    encoded = (_valid(part) if isinstance(part, str) else part.decode("utf-8", "replace")).encode()
    kept = encoded[max(0, len(encoded) - limit) :].decode("utf-8", "ignore")
    return kept, len(data) > limit or len(encoded) > limit


def _valid(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def path_fields(path: bytes | str) -> dict[str, str]:
    """The members by which a JSON document names a path: `path`, and `path_b64` where the path is not UTF-8.

    With `path_b64` present, `path` is an escaped rendering for people and `path_b64` the exact bytes. A str is taken as
    Python gives file names, with undecodable bytes as surrogate escapes.
    """
    try:
        raw = path.encode("utf-8", "surrogateescape") if isinstance(path, str) else path
    except UnicodeEncodeError as error:
        raise UsageError("the path holds a surrogate that stands for no byte", op="path") from error
    try:
        return {"path": raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {"path": raw.decode("utf-8", "backslashreplace"), "path_b64": base64.b64encode(raw).decode("ascii")}


def require_utf8(path: str | os.PathLike[str], what: str, op: str) -> None:
    """Refuse a path that no JSON document can name by itself, before anything is made there."""
    fields = path_fields(os.fspath(path))
    if "path_b64" in fields:
        raise UsageError(
            f"the name of {what} is not UTF-8: {fields['path']}",
            op=op,
            fix_hints=["name or move it so that every directory on the way to it has a name in UTF-8"],
        )
