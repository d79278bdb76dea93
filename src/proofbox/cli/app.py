"""Parse a command line with cyclopts, call the command, and turn every failure into an error of the contract."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import cyclopts

from proofbox import __version__
from proofbox.cli import COMMANDS, GROUPS, Command, redirect_to_null
from proofbox.cli.output import EXEC_FAILED, INTERRUPTED, OutputLost, report
from proofbox.errors import InternalError, IoFailed, NotFoundError, ProofboxError, UsageError

# Error numbers that mean a wrong path, as opposed to a failing machine.
MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
UNSUITABLE = (errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY, errno.EINVAL, errno.ENXIO, errno.ENODEV)


def build() -> cyclopts.App:
    app = cyclopts.App(
        name="proofbox",
        help="Run coding agents in a box, and keep the proof.",
        version=__version__,
        help_format="plaintext",
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    groups = {name: cyclopts.App(name=name, help=summary, help_format="plaintext") for name, summary in GROUPS.items()}
    for each in groups.values():
        app.command(each)
    for command in COMMANDS:
        first, _, rest = command.path.partition(" ")
        target = f"proofbox.cli.commands.{command.target}"
        (groups[first] if rest else app).command(target, name=rest or first)
    return app


def run(words: Sequence[str]) -> int:
    _drop_invalid_terminal_size()
    command = _command_for(words)
    passes = command is not None and command.passes_exit_code
    options = words[: words.index("--")] if "--" in words else words
    try:
        return _call(words)
    except ProofboxError as error:
        if error.fix_hints == UsageError.hints:
            error.fix_hints = (_help_for(words),)
        return report(error, as_json="--json" in options, passes_exit_code=passes)
    except OutputLost as error:
        return report(_io_error(error), as_json=False, passes_exit_code=passes)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        redirect_to_null(1)  # the reader has exited (| head)
        return EXEC_FAILED if passes else 0


def _call(words: Sequence[str]) -> int:
    app = build()
    try:
        result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except cyclopts.CycloptsError as error:
        raise UsageError(_plain(error), op="usage", fix_hints=[_help_for(words)]) from None
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


def _drop_invalid_terminal_size() -> None:
    """Unset COLUMNS and LINES where their values are implausible: laying out help for them can take forever."""
    for name in ("COLUMNS", "LINES"):
        value = os.environ.get(name)
        if value is not None and not (value.isdecimal() and len(value) < 5 and int(value) >= 10):
            del os.environ[name]


def _io_error(error: OSError) -> ProofboxError:
    reason = error.strerror or type(error).__name__
    if error.filename is None or isinstance(error.filename, int):  # a descriptor, so the user named no path
        return IoFailed(reason, op="io")
    kind = NotFoundError if error.errno in MISSING else UsageError if error.errno in UNSUITABLE else IoFailed
    return kind(f"{reason} ({os.fsdecode(error.filename)[:200]})", op="io")


def _command_for(words: Sequence[str]) -> Command | None:
    named = {command.path: command for command in COMMANDS}
    return named.get(" ".join(words[:2])) or named.get(words[0])


def _plain(error: cyclopts.CycloptsError) -> str:
    if isinstance(error, cyclopts.UnusedCliTokensError):
        unused = ", ".join(repr(each[:80]) for each in error.unused_tokens or ())
        return f"unexpected arguments: {unused[:200]}"
    return " ".join(str(error).split())


def _help_for(words: Sequence[str]) -> str:
    command = _command_for(words)
    group = words[0] if words[0] in GROUPS else None
    return f"see: proofbox {command.path if command else group or ''} --help".replace("  ", " ")
