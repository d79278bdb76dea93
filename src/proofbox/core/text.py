"""Make untrusted text and paths safe to display, truncate and store in JSON.

Agents and their commands write bytes that terminals execute (escape sequences), that readers misread (bidirectional
overrides, zero-width characters) and that JSON can't represent (invalid UTF-8). These are made visible, not dropped.
"""

from __future__ import annotations

import codecs
import os
import re
import unicodedata

from proofbox.errors import UsageError

# Patterns are compiled when they are used: a short command uses none of them.
_SUSPECT = r"[^\n\t -~]"
# Invisible, but "printable" in Unicode: fillers, the grapheme joiner, variation selectors other than for emoji.
_INVISIBLE = "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0\U000e0100-\U000e01ef]"


def printable(text: str) -> str:
    r"""Escape everything in `text` that isn't a visible character, a space, a newline or a tab.

    ESC becomes `\x1b`, a right-to-left override `\u202e`, a tag character `\U000e0041`; carriage return, C1 controls,
    zero-width and other format characters, line separators, private-use and unassigned code points likewise.
    Backslashes are not escaped: the result is for people to read, not for parsing.
    """
    return re.sub(_SUSPECT, _visible, text)


def one_line(text: str) -> str:
    """Return printable text with escaped newlines and tabs, so that it cannot imitate a line or a cell of a table."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _visible(match: re.Match[str]) -> str:
    char = match[0]
    if (char.isprintable() or unicodedata.category(char) == "Zs") and not re.match(_INVISIBLE, char):
        return char
    point = ord(char)
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


GAP = r"\n\[proofbox: \d+ bytes left out\]\n"


def gap(count: int) -> str:
    """Return the marker for the omitted middle of an output."""
    return f"\n[proofbox: {count} bytes left out]\n"


def preview(data: bytes | str, limit: int) -> tuple[str, bool]:
    """Return the beginning of `data` in at most `limit` bytes of UTF-8, and whether anything was omitted.

    The limit applies to the UTF-8 of the result, so a reader can check it. Characters are never split. Bytes that are
    not UTF-8, and unpaired surrogates, become U+FFFD.
    """
    if limit < 0:
        raise ValueError("the limit of a preview can't be negative")
    if isinstance(data, str):
        if len(data) <= limit and data.isascii():
            return data, False
        # Half a surrogate pair at the end becomes U+FFFD, whose three bytes exceed the limit: it is removed below.
        text = _valid(data[:limit])
    else:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data[:limit], final=len(data) <= limit)
    encoded = text.encode()
    kept = encoded[:limit].decode("utf-8", "ignore")
    return kept, len(data) > limit or len(encoded) > limit


def preview_end(data: bytes | str, limit: int) -> tuple[str, bool]:
    """Return the end of `data` in at most `limit` bytes of UTF-8, and whether anything was omitted."""
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
    """Return the JSON members for a path: `path`, and `path_b64` if the path is not UTF-8.

    If `path_b64` is present, `path` is an escaped form for people and `path_b64` has the exact bytes. A str is
    interpreted as Python represents file names, with undecodable bytes as surrogate escapes.
    """
    try:
        raw = path.encode("utf-8", "surrogateescape") if isinstance(path, str) else path
    except UnicodeEncodeError as error:
        raise UsageError("the path contains a surrogate that does not represent a byte", op="path") from error
    try:
        return {"path": raw.decode("utf-8")}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"path": raw.decode("utf-8", "backslashreplace"), "path_b64": b64encode(raw).decode("ascii")}


def require_utf8(path: str | os.PathLike[str], what: str, op: str) -> None:
    """Raise UsageError for a path that is not UTF-8, before anything is created there."""
    fields = path_fields(os.fspath(path))
    if "path_b64" in fields:
        raise UsageError(
            f"the name of {what} is not UTF-8: {fields['path']}",
            op=op,
            fix_hints=["rename or move it so that its whole path is UTF-8"],
        )
