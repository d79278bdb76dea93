"""The text of a result for the model is bounded and contains no terminal control sequences."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.workspace.tools.rendering import bounded
from proofbox.workspace.tools.results import (
    CommandResult,
    FileContent,
    FileEdited,
    FileRemoved,
    FileWritten,
    Listing,
    ListingEntry,
    Match,
    PatchApplied,
    PatchedFile,
    SearchResult,
    ToolResult,
)

hostile = st.text(st.characters(exclude_categories=[]), max_size=400)


@given(hostile, st.integers(0, 300))
def test_text_is_bounded_and_has_no_control_characters(words: str, limit: int) -> None:
    shown = bounded(words, limit)
    assert len(shown.encode()) <= limit
    assert all(c.isprintable() or c in "\n\t" or c.isspace() for c in shown)
    assert "\x1b" not in shown
    assert "\r" not in shown


@given(st.text("ab", min_size=100, max_size=5000), st.integers(60, 99))
def test_long_text_keeps_its_beginning_and_end(words: str, limit: int) -> None:
    shown = bounded(words, limit)
    assert shown[:10] == words[:10]
    assert shown[-10:] == words[-10:]
    assert "middle omitted" in shown


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (FileContent(path="a", content="x\x1b[31m\n", size=6), "x\\x1b[31m\n"),
        (FileContent(path="a", content="x\n", size=9, truncated=True), "x\n\n[more follows: the file has 9 bytes]"),
        (FileWritten(path="a", size=3, created=True), "created a (3 bytes)"),
        (FileRemoved(path="a\u202eb"), "removed a\\u202eb"),
        (Listing(path=".", entries=(ListingEntry("a", "file", 3), ListingEntry("b", "directory"))), "a\nb/"),
        (Listing(path=".", entries=()), "[nothing]"),
        (SearchResult(pattern="x", matches=()), "[no match]"),
        (
            SearchResult(pattern="x", matches=(Match("a", 2, "x", before=("w",), after=("y",)),), truncated=True),
            "a-1-w\na:2:x\na-3-y\n--\n[more follows: narrow the pattern, path or glob]",
        ),
        (CommandResult(command=("x",), cwd=".", exit_code=3, stdout="o\n", stderr="e\n"), "o\n[stderr]\ne\n[exit 3]"),
        (
            CommandResult(
                command=("x",), cwd=".", exit_code=124, stdout="", stderr="", timed_out=True, duration_ms=1500
            ),
            "[timed out after 1.5 s]",
        ),
        (FileEdited(path="a", replacements=2, size=1, first_line=4), "edited a: 2 replacements, first in line 4"),
        (PatchApplied(files=(PatchedFile("b", "renamed", "a"),)), "renamed b (was a)"),
    ],
)
def test_text_of_each_result(result: ToolResult, shown: str) -> None:
    assert result.text() == shown
    assert msgspec.convert(msgspec.to_builtins(result), type(result)) == result
