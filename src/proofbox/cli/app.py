"""Find and parse a command, and turn every failure into an error of the contract."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from proofbox.cli import COMMANDS, GROUPS, Command, redirect_to_null
from proofbox.cli.output import EXEC_FAILED, INTERRUPTED, OutputLost, report
from proofbox.cli.parameters import CommandSignature
from proofbox.cli.parser import bind, quoted
from proofbox.cli.preloading import preload_dataclasses
from proofbox.core.nearest import nearest
from proofbox.errors import InternalError, IoFailed, NotFoundError, ProofboxError, UsageError

# Error numbers that mean a wrong path, as opposed to a failing machine.
MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
UNSUITABLE = (errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY, errno.EINVAL, errno.ENXIO, errno.ENODEV)


def parse(words: Sequence[str]) -> Callable[[], int | None]:
    """Return the call that the words of a command line ask for."""
    command = find_command(words)
    if command is None:
        raise _unknown_command(words)
    function = function_of(command)
    signature = CommandSignature(function)
    if not {"--help", "-h"}.isdisjoint(_options(words)):
        from proofbox.cli.help import command_help

        return partial(print, command_help(command, function.__doc__ or "", signature))
    arguments, options = bind(signature, words[len(command.path.split()) :], command.path)
    if command.target.startswith(("agents.", "evidence.")):
        preload_dataclasses()
    return partial(function, *arguments, **options)


def report_failure(failure: Exception | KeyboardInterrupt, words: Sequence[str]) -> int:
    """Report why a command failed, and return its exit code."""
    command = find_command(words)
    passes = command is not None and command.passes_exit_code
    if isinstance(failure, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(failure, BrokenPipeError):
        redirect_to_null(1)  # the reader has exited (| head)
        return EXEC_FAILED if passes else 0
    error = _contract_error(failure, words)
    if error.fix_hints == UsageError.hints:
        error.fix_hints = (_help_for(command, words),)
    as_json = "--json" in _options(words) and not isinstance(failure, OutputLost)
    return report(error, as_json=as_json, passes_exit_code=passes)


def find_command(words: Sequence[str]) -> Command | None:
    named = {tuple(command.path.split()): command for command in COMMANDS}
    return named.get(tuple(words[:2])) or named.get(tuple(words[:1]))


def function_of(command: Command) -> Callable[..., Any]:
    module, _, name = command.target.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"proofbox.cli.commands.{module}"), name)
    return found


def _options(words: Sequence[str]) -> Sequence[str]:
    """Return the words that are proofbox's own, not those of a command to run."""
    return words[: words.index("--")] if "--" in words else words


def _contract_error(failure: Exception, words: Sequence[str]) -> ProofboxError:
    if isinstance(failure, ProofboxError):
        return failure
    if isinstance(failure, UnicodeEncodeError):
        return UsageError(f"a name cannot be encoded as UTF-8: {failure.object!r}", op="usage")
    if isinstance(failure, OSError):
        return _io_error(failure)
    if isinstance(failure, RecursionError):
        return UsageError("a path or a document is nested too deeply", op="usage")
    if isinstance(failure, RuntimeError) and "Symlink loop" in str(failure):  # Path.resolve, before Python 3.13
        return NotFoundError("a path contains a symbolic link that points to itself", op="io")
    if os.environ.get("PROOFBOX_DEBUG"):
        raise failure
    return InternalError(f"{type(failure).__name__}: {failure}", op=words[0])


def _io_error(error: OSError) -> ProofboxError:
    reason = error.strerror or type(error).__name__
    if error.filename is None or isinstance(error.filename, int):  # a descriptor, so the user named no path
        return IoFailed(reason, op="io")
    kind = NotFoundError if error.errno in MISSING else UsageError if error.errno in UNSUITABLE else IoFailed
    return kind(f"{reason} ({os.fsdecode(error.filename)[:200]})", op="io")


def _unknown_command(words: Sequence[str]) -> UsageError:
    group = words[0] if words[0] in GROUPS else ""
    wrong = words[1] if group else words[0]
    paths = [command.path.partition(" ") for command in COMMANDS]
    known = dict.fromkeys(rest if group else name for name, _, rest in paths if not group or name == group)
    return UsageError(f"unknown command {quoted(wrong)} ({nearest(wrong[:80], known)})", op="usage")


def _help_for(command: Command | None, words: Sequence[str]) -> str:
    path = command.path if command else words[0] if words[0] in GROUPS else ""
    return f"see: proofbox {path} --help".replace("  ", " ")
