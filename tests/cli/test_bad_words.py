"""Random command lines, from meaningful and meaningless words."""

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

# Random lines must not start a server, a shell, an agent, a download, a build or the demo.
QUIET = [
    command
    for command in COMMANDS
    if command.path.split()[0] not in ("demo", "doctor", "backend", "up", "runtime", "suite", "deliver", "init", "exec")
    and command.path not in ("mcp serve", "session start", "images pull", "images build", "session exec")
]
FLAGS = sorted({name for command in QUIET for each in arguments(command) for name in each.declared.names})
# As in argv: anything but NUL, with bytes that are not UTF-8 as surrogates.
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
def test_random_arguments_print_no_stack_trace(command: Command, words: list[str], place: Path) -> None:
    line = Line("drawn", (*command.path.split(), *words), PASSES if command.passes_exit_code else ANSWERED)
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO())
        try:
            code = main(line.words)
        finally:
            sys.stdin = before
    out.flush()
    stdout, stderr = out.buffer.getvalue(), err.getvalue().encode(errors="backslashreplace")
    found = problems(line, code, stdout, stderr)
    if code == 0:  # help and the version are printed as text
        found = [each for each in found if "JSON" not in each]
    assert not found, described(line, found, stdout, stderr)


def test_unexpected_arguments_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attempt", "explain", "out", "answer.1", "\x1b[31m" + "x" * 500]) == 2
    stderr = capsys.readouterr().err
    assert "unexpected arguments: 'answer.1', '\\x1b[31m" in stderr
    assert "see: proofbox attempt explain --help" in stderr
    assert "\x1b" not in stderr
    assert len(stderr) < 500
