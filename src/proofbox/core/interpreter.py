"""Start child Python interpreters that import nothing from the current directory.

`python -m` and `python -c` put the current directory first on the import path, and PYTHONPATH may name it as well. A
directory that a user received from someone else can hold an `anyio.py`, so a child started that way would run it on
the host. Every Python child of proofbox is therefore built by one of the two functions here:

- `-I`: no current directory, no user site directory, no PYTHON* variables;
- the import path of this process, without the directories named above, so that proofbox and its dependencies are found
  wherever they are installed: a virtual environment, `pip install --user`, `pip install --target`, a checkout;
- a fixed working directory, unless the caller names one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from proofbox.errors import StartFailed

WORKING_DIRECTORY = "/"
_STARTED_IN = os.path.abspath(os.curdir) if os.path.exists(os.curdir) else WORKING_DIRECTORY
_PACKAGES = str(Path(__file__).absolute().parents[2])

# `runpy` is imported first, from the standard library. The child's default path comes last.
_RUN_MODULE = """\
import runpy, sys
sys.path[:] = dict.fromkeys({path!r} + sys.path)
runpy.run_module(sys.argv.pop(1), None, "__main__", True)
"""


class ChildInterpreter(NamedTuple):
    """The arguments of `subprocess.Popen` for one child interpreter."""

    argv: list[str]
    cwd: str
    env: dict[str, str]


def module_child(
    module: str,
    *arguments: str,
    cwd: str | os.PathLike[str] = WORKING_DIRECTORY,
    env: Mapping[str, str] | None = None,
    python: Sequence[str] = (),
) -> ChildInterpreter:
    """Build the command for an isolated `python -m MODULE ARGUMENTS`. `env` defaults to this process's environment.

    `python` is a command for another isolated interpreter of the same version.
    """
    code = _RUN_MODULE.format(path=safe_import_path())
    argv = [*(python or _interpreter()), "-c", code, module, *arguments]
    return ChildInterpreter(argv, os.fspath(cwd), dict(os.environ if env is None else env))


def script_child(script: str | os.PathLike[str], *arguments: str) -> ChildInterpreter:
    """Build the command for a script that needs only the standard library, with an empty environment."""
    return ChildInterpreter([*_interpreter(), "-S", os.fspath(script), *arguments], WORKING_DIRECTORY, {})


def safe_import_path() -> list[str]:
    """Return this process's import path for a child, without the current directory and the main script's directory.

    A relative entry names a different directory in each working directory, so it is dropped. The current directory and
    the main script's directory are dropped too, since Python adds them automatically, unless PYTHONPATH names them by
    absolute path. The directory that proofbox was imported from is always included.
    """
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = {_PACKAGES, *(os.path.abspath(entry) for entry in named if os.path.isabs(entry))}
    implicit = {_identity(place) for place in (os.curdir, _STARTED_IN, _main_directory())} - {None}
    found = [
        entry for entry in sys.path if entry in kept or (os.path.isabs(entry) and _identity(entry) not in implicit)
    ]
    return found if _PACKAGES in found else [_PACKAGES, *found]


def interpreter_path() -> str:
    """Return the path of this process's interpreter."""
    if not os.path.isabs(sys.executable or ""):
        raise StartFailed(
            "the path of the Python interpreter is unknown, so no child process can be started",
            op="start",
            fix_hints=["start Python by its absolute path"],
        )
    return sys.executable


def _interpreter() -> list[str]:
    # -I ignores the environment variables for these two options, which do not affect imports.
    bytecode = ["-B"] if sys.dont_write_bytecode else []
    utf8 = ["-X", "utf8"] if sys.flags.utf8_mode else []
    return [interpreter_path(), "-I", *bytecode, *utf8]


def _main_directory() -> str:
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.dirname(os.path.abspath(script)) if isinstance(script, str) else _STARTED_IN


def _identity(place: str) -> tuple[int, int] | None:
    """Return a directory's device and inode, since it may have several paths; None if it does not exist."""
    try:
        found = os.stat(place)
    except OSError:
        return None
    return found.st_dev, found.st_ino
