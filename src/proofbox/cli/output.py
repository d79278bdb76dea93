"""The only module that knows `--json` and exit codes.

A command returns a document (a frozen struct with its schema's name) and how a person reads it. With `--json` the
document goes to stdout, one line, and nothing else does; without it the text does. Errors are documents too.
"""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from proofbox.core.text import printable
from proofbox.errors import CommandNotExecutable, CommandNotFound, ProofboxError

EXEC_FAILED = 125
INTERRUPTED = 130
READER_LEFT = 141
EXIT_CODES = {
    0: "ok",
    1: "evaluated, and the answer is no: a verification, a gate, a lint, a mission that was not passed",
    2: "usage: an unknown name, a bad value",
    3: "known, but not available here",
    4: "internal, or the machine would not",
    INTERRUPTED: "interrupted",
    READER_LEFT: "whoever read its events left before the run had ended",
}
PASSING_EXIT_CODES = {
    124: "the command timed out",
    EXEC_FAILED: "proofbox failed, for any reason",
    126: "the command can't be executed",
    127: "the command is not there",
}
"""Of commands that pass on the code of the command inside. Every other code is that command's own."""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What a command says to a program. Subclasses give `schema` its value and add their members."""

    schema: str
    """Which document this is."""
    ok: bool = True
    """Whether proofbox did its job; of what evaluates, whether the answer is yes."""


class Streamed(Document, frozen=True, kw_only=True):
    """One line of what a command says as it happens, with `--jsonl`."""


class ErrorBody(msgspec.Struct, frozen=True):
    """Beyond these, an error carries the facts of its case: `details` of the class that raised it."""

    code: str
    message: str
    op: str
    fix_hints: tuple[str, ...]
    retryable: bool

    @classmethod
    def of(cls, error: ProofboxError) -> ErrorBody:
        return cls(error.code, error.message, error.op, error.fix_hints, error.retryable)


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
            print(words, flush=True)  # a server's word must be in its log while it serves


class OutputLost(OSError):
    """stdout took nothing: whatever is left to say goes to stderr."""


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
        raise OutputLost(error.errno, f"stdout can't be written: {error.strerror}") from None


def report(error: ProofboxError, *, as_json: bool, passes_exit_code: bool = False) -> int:
    """Print an error where the caller looks for it, and return its exit code."""
    told = False
    if as_json:
        with contextlib.suppress(OutputLost):
            write_json({"schema": "proofbox.error/1", "ok": False, "error": error.as_dict()})
            told = True
    if not told:
        lines = [f"proofbox: {error.message}", *(f"  fix: {hint}" for hint in error.fix_hints), f"  code: {error.code}"]
        with contextlib.suppress(OSError):  # stderr may be full, too; the exit code is left
            print(printable("\n".join(_clean(lines))), file=sys.stderr)
    if not passes_exit_code:
        return INTERRUPTED if error.exit_code == INTERRUPTED else min(error.exit_code, 4)
    return error.exit_code if isinstance(error, CommandNotFound | CommandNotExecutable) else EXEC_FAILED


def columns(rows: Sequence[Sequence[str]]) -> str:
    """A plain table: columns as wide as they need to be, two spaces between."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return printable("\n".join(lines))


def _clean(value: Any) -> Any:
    """JSON is UTF-8: what a file name smuggled in is replaced. Where bytes matter, a document has a `_b64` member."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_clean(key): _clean(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(member) for member in value]
    return value
