"""The only module that knows `--json` and exit codes.

A command produces a document (a frozen struct that names its schema) and text for people. With `--json` only the
document is printed to stdout, in one line; without it, only the text. Errors are documents as well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from proofbox.core.results import Document as Document
from proofbox.core.results import ErrorBody as ErrorBody
from proofbox.core.results import Streamed as Streamed
from proofbox.core.text import one_line, printable
from proofbox.errors import ProofboxError

NARROWEST_COLUMN = 24
"""Columns that are narrower than this are not wrapped, because each line would have only one word."""
EXEC_FAILED = 125
INTERRUPTED = 130
READER_LEFT = 141
EXIT_CODES = {
    0: "ok",
    1: "evaluated, and the answer is no: a failed verification, gate, lint or mission",
    2: "usage error: an unknown name or an invalid value",
    3: "known, but not available here",
    4: "internal error, or the system refused an operation",
    INTERRUPTED: "interrupted",
    READER_LEFT: "the reader of the events exited before the run ended",
}
PASSING_EXIT_CODES = {
    124: "the command timed out",
    EXEC_FAILED: "proofbox failed, for any reason",
    126: "the command cannot be executed",
    127: "the command was not found",
}
"""Exit codes of commands that pass on the exit code of the command they run. Every other code is that command's."""


class ErrorDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.error/1"
    ok: bool = False
    error: ErrorBody


def show(document: Document, text: Callable[[], str], *, as_json: bool) -> None:
    if as_json:
        write_json(document)
    else:
        words = text()
        if words:
            print(words, flush=True)  # the output of a server must reach its log while it runs


class OutputLost(OSError):
    """Stdout cannot be written, so the error goes to stderr."""


def write_json(document: object) -> None:
    data = msgspec.json.encode(_clean(msgspec.to_builtins(document, enc_hook=str)))
    if sys.stdout is None:
        raise OutputLost(errno.EBADF, "stdout is closed")
    try:
        sys.stdout.buffer.write(data + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLost(error.errno, f"cannot write to stdout: {error.strerror}") from None


def report(error: ProofboxError, *, as_json: bool, passes_exit_code: bool = False) -> int:
    """Print an error, as JSON on stdout or as text on stderr, and return its exit code."""
    printed = False
    if as_json:
        with contextlib.suppress(OutputLost):
            write_json({"schema": "proofbox.error/1", "ok": False, "error": error.as_dict()})
            printed = True
    if not printed:
        lines = [f"proofbox: {error.message}", *(f"  fix: {hint}" for hint in error.fix_hints), f"  code: {error.code}"]
        with contextlib.suppress(OSError):  # stderr may be full as well; the exit code remains
            print(printable("\n".join(_clean(lines))), file=sys.stderr)
    if not passes_exit_code:
        return INTERRUPTED if error.exit_code == INTERRUPTED else min(error.exit_code, 4)
    return error.exit_code if error.exit_code in PASSING_EXIT_CODES else EXEC_FAILED


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Format a plain table with two spaces between columns. On a narrower terminal, the last column is wrapped.

    The text of a cell cannot imitate a row.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    width = _terminal_width()
    start = sum(widths[:-1]) + 2 * len(widths[:-1])
    fits = width is None or start + widths[-1] <= width or width - start < NARROWEST_COLUMN
    lines = []
    for row in rows:
        head = "  ".join([*(cell.ljust(each) for cell, each in zip(row[:-1], widths, strict=False)), ""])
        lines += [(head + row[-1]).rstrip()] if fits else _wrapped(head, row[-1], width or 0)
    return "\n".join(lines)


def _wrapped(head: str, text: str, width: int) -> list[str]:
    from textwrap import wrap  # only for a person at a terminal

    found = wrap(text, width - len(head), break_long_words=False, break_on_hyphens=False) or [""]
    return [(head + found[0]).rstrip(), *(" " * len(head) + line for line in found[1:])]


def _terminal_width() -> int | None:
    """Return the width of the terminal that stdout is, or None if it is closed or another kind of file."""
    if sys.stdout is None:
        return None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def readable(value: object) -> str:
    """Return a member of a document as people write it: yes or no, `-` for null, no trailing `.0`."""
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: "-"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _clean(value: Any) -> Any:
    """Replace bytes from file names that are not UTF-8. Where bytes matter, a document has a `_b64` member."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_clean(key): _clean(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(member) for member in value]
    return value
