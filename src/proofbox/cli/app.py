"""Find and call a command, and turn every failure into an error of the contract."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from proofbox.cli import COMMANDS, GROUPS, Command, redirect_to_null
from proofbox.cli.output import EXEC_FAILED, INTERRUPTED, OutputLost, report
from proofbox.cli.parameters import CommandSignature
from proofbox.cli.parser import bind, quoted
from proofbox.core.nearest import nearest
from proofbox.errors import InternalError, IoFailed, NotFoundError, ProofboxError, UsageError

# Error numbers that mean a wrong path, as opposed to a failing machine.
MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
UNSUITABLE = (errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY, errno.EINVAL, errno.ENXIO, errno.ENODEV)


def run(words: Sequence[str]) -> int:
    command = find_command(words)
    passes = command is not None and command.passes_exit_code
    options = words[: words.index("--")] if "--" in words else words
    try:
        if command is None:
            raise _unknown_command(words)
        return _call(command, words, help="--help" in options or "-h" in options)
    except ProofboxError as error:
        if error.fix_hints == UsageError.hints:
            error.fix_hints = (_help_for(command, words),)
        return report(error, as_json="--json" in options, passes_exit_code=passes)
    except OutputLost as error:
        return report(_io_error(error), as_json=False, passes_exit_code=passes)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        redirect_to_null(1)  # the reader has exited (| head)
        return EXEC_FAILED if passes else 0


def find_command(words: Sequence[str]) -> Command | None:
    named = {tuple(command.path.split()): command for command in COMMANDS}
    return named.get(tuple(words[:2])) or named.get(tuple(words[:1]))


def function_of(command: Command) -> Callable[..., Any]:
    module, _, name = command.target.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"proofbox.cli.commands.{module}"), name)
    return found


def _call(command: Command, words: Sequence[str], *, help: bool) -> int:
    try:
        function = function_of(command)
        signature = CommandSignature(function)
        if help:
            from proofbox.cli.help import command_help

            print(command_help(command, function.__doc__ or "", signature))
            return 0
        arguments, options = bind(signature, words[len(command.path.split()) :], command.path)
        result = function(*arguments, **options)
    except (ProofboxError, KeyboardInterrupt, BrokenPipeError, OutputLost):
        raise
    except UnicodeEncodeError as error:
        raise UsageError(f"a name cannot be encoded as UTF-8: {error.object!r}", op="usage") from None
    except OSError as error:
        raise _io_error(error) from error
    except RecursionError:
        raise UsageError("a path or a document is nested too deeply", op="usage") from None
    except Exception as error:
        if isinstance(error, RuntimeError) and "Symlink loop" in str(error):  # Path.resolve, before Python 3.13
            raise NotFoundError("a path contains a symbolic link that points to itself", op="io") from None
        if os.environ.get("PROOFBOX_DEBUG"):
            raise
        raise InternalError(f"{type(error).__name__}: {error}", op=words[0]) from error
    return result if isinstance(result, int) else 0


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
