"""Untrusted text: control sequences are escaped, characters are never split, every path can be stored."""

from __future__ import annotations

import base64
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.core.text import path_fields, preview, printable
from proofbox.errors import UsageError

any_text = st.text(st.characters(codec=None, categories=None)) | st.text(
    st.sampled_from("\x1b[]0;31m\x07\x9b\r\u202e\u200b\ufeff\u2028\U000e0041é漢\n\t ")
)


@given(any_text)
def test_no_control_or_format_character_remains(text: str) -> None:
    shown = printable(text)
    for char in shown:
        assert char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    shown.encode()


def test_every_code_point_by_category() -> None:
    """All of Unicode, once: controls and formats are escaped, letters, marks, digits and spaces are kept."""
    for point in range(sys.maxunicode + 1):
        char = chr(point)
        category = unicodedata.category(char)
        if category[0] in "LNPS" or category == "Zs":
            kept = printable(char) == char
            assert kept or char in "\u115f\u1160\u3164\uffa0", hex(point)
        elif category in ("Cc", "Cf", "Zl", "Zp", "Cs"):
            assert (printable(char) == char) == (char in "\n\t"), hex(point)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]8;;http://x\x07link", "\\x1b]8;;http://x\\x07link"),
        ("\x9b2J", "\\x9b2J"),
        ("a\u202eb\u2066", "a\\u202eb\\u2066"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("over\rwrite", "over\\x0dwrite"),
        ("\U000e0041", "\\U000e0041"),
        ("\udcff", "\\udcff"),
        ("fill\u3164er\u034f", "fill\\u3164er\\u034f"),
        ("plain é 漢字 😀 C:\\dir\n\ttab", "plain é 漢字 😀 C:\\dir\n\ttab"),
    ],
)
def test_escapes_are_visible(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(), st.integers(0, 40))
def test_a_preview_of_text_is_a_whole_prefix_within_the_limit(text: str, limit: int) -> None:
    for data in (text, text.encode()):
        shown, truncated = preview(data, limit)
        assert text.startswith(shown)
        assert len(shown.encode()) <= limit
        assert truncated == (shown != text)
        if truncated:
            assert len((shown + text[len(shown)]).encode()) > limit


@given(st.binary(max_size=40), st.integers(0, 45))
def test_a_preview_of_any_bytes_is_valid_and_within_the_limit(data: bytes, limit: int) -> None:
    shown, truncated = preview(data, limit)
    assert len(shown.encode()) <= limit
    assert data.decode("utf-8", "replace").startswith(shown)
    assert truncated or shown == data.decode("utf-8", "replace")


def test_the_edge_of_a_character_and_of_the_limit() -> None:
    assert preview("😀".encode(), 3) == ("", True)
    assert preview("😀".encode(), 4) == ("😀", False)
    assert preview(b"ab\xf0\x9f\x98", 5) == ("ab\ufffd", False)


def test_surrogates() -> None:
    assert preview("\ud83d\ude00", 10) == ("😀", False)
    assert preview("ab\ud83d\ude00", 3) == ("ab", True)
    assert preview("a\ud800b", 10) == ("a\ufffdb", False)
    with pytest.raises(ValueError, match="negative"):
        preview("a", -1)


@given(st.binary(min_size=1).filter(lambda raw: b"\0" not in raw))
def test_a_path_is_named_exactly(raw: bytes) -> None:
    fields = path_fields(raw)
    assert path_fields(raw.decode("utf-8", "surrogateescape")) == fields
    fields["path"].encode()
    if "path_b64" in fields:
        assert base64.b64decode(fields["path_b64"]) == raw
        with pytest.raises(UnicodeDecodeError):
            raw.decode()
    else:
        assert fields == {"path": raw.decode()}


def test_a_path_that_is_not_utf8_is_escaped() -> None:
    assert path_fields(b"a/\xff.py") == {"path": "a/\\xff.py", "path_b64": base64.b64encode(b"a/\xff.py").decode()}
    with pytest.raises(UsageError):
        path_fields("\ud800")
