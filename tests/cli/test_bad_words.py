"""Command lines that no list has: words drawn at random, from those that mean something and from those that don't."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_lines import ANSWERED, Line, arguments
from bad_world import described, enter, problems
from hypothesis import given
from hypothesis import strategies as st

from proofbox.cli import COMMANDS, GROUPS, Command, main

# What a drawn line must not start: a server, a shell, an agent, a download, the demo.
QUIET = [
    command
    for command in COMMANDS
    if command.path.split()[0] not in ("demo", "doctor", "backend", "up", "runtime", "suite", "deliver", "init", "exec")
    and command.path not in ("mcp serve", "session start", "images pull", "session exec")
]
FLAGS = sorted({name for command in QUIET for each in arguments(command) for name in each.names})
# As argv holds them: anything but NUL, with the bytes that are no UTF-8 as surrogates.
ANY_WORD = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    st.binary(max_size=12).map(lambda data: os.fsdecode(data.replace(b"\0", b"\xff"))),
)
WORD = st.one_of(
    ANY_WORD,
    st.sampled_from(FLAGS),
    st.builds("{}={}".format, st.sampled_from(FLAGS), ANY_WORD),
    st.sampled_from([*GROUPS, "--", "-", "--json", "--help", "out", "nan", "-1", "1e999", "/dev/null", "/proc/self"]),
)
PASSES = frozenset({0, 124, 125, 126, 127})


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="words-") as made, pytest.MonkeyPatch.context() as patch:
        enter(Path(made).resolve(), patch)
        yield Path(made)


@given(command=st.sampled_from(QUIET), words=st.lists(WORD, max_size=6))
def test_no_words_end_in_a_stack_trace(command: Command, words: list[str], place: Path) -> None:
    line = Line("drawn", (*command.path.split(), *words), PASSES if command.passes_exit_code else ANSWERED)
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO())
        try:
            code = main(line.words)
        finally:
            sys.stdin = before
    out.flush()
    said, told = out.buffer.getvalue(), err.getvalue().encode(errors="backslashreplace")
    found = problems(line, code, said, told)
    if code == 0:  # help and the version are for people, whatever else was said
        found = [each for each in found if "JSON" not in each]
    assert not found, described(line, found, said, told)


def test_one_word_too_many_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attempt", "explain", "out", "answer.1", "\x1b[31m" + "x" * 500]) == 2
    said = capsys.readouterr().err
    assert "unexpected arguments: 'answer.1', '\\x1b[31m" in said
    assert "see: proofbox attempt explain --help" in said
    assert "\x1b" not in said
    assert len(said) < 500
