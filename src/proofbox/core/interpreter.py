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
from collections.abc import Mapping
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
) -> ChildInterpreter:
    """Build the start of `python -m MODULE ARGUMENTS`, isolated. `env` is by default the caller's own."""
    code = _RUN_MODULE.format(path=safe_import_path())
    argv = [*_interpreter(), "-c", code, module, *arguments]
    return ChildInterpreter(argv, os.fspath(cwd), dict(os.environ if env is None else env))


def script_child(script: str | os.PathLike[str], *arguments: str) -> ChildInterpreter:
    """Build the start of a file that needs the standard library alone, with an empty environment."""
    return ChildInterpreter([*_interpreter(), "-S", os.fspath(script), *arguments], WORKING_DIRECTORY, {})


def safe_import_path() -> list[str]:
    """Return this process's import path for a child, without the current directory and the main script's.

    A relative entry means another directory in every working directory, so it is dropped. The current directory and
    the directory of the main script are dropped too, since Python adds them by itself; they are kept where PYTHONPATH
    names them by an absolute path. The directory that proofbox itself was imported from is always in it.
    """
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = {_PACKAGES, *(os.path.abspath(entry) for entry in named if os.path.isabs(entry))}
    implicit = {_identity(place) for place in (os.curdir, _STARTED_IN, _main_directory())} - {None}
    found = [
        entry for entry in sys.path if entry in kept or (os.path.isabs(entry) and _identity(entry) not in implicit)
    ]
    return found if _PACKAGES in found else [_PACKAGES, *found]


def _interpreter() -> list[str]:
    if not os.path.isabs(sys.executable or ""):
        raise StartFailed(
            "the path of the Python interpreter is not known, so that no child can be started",
            op="start",
            fix_hints=["start Python by its absolute path"],
        )
    # -I ignores the variables that ask for these two, which do not change what is imported.
    bytecode = ["-B"] if sys.dont_write_bytecode else []
    utf8 = ["-X", "utf8"] if sys.flags.utf8_mode else []
    return [sys.executable, "-I", *bytecode, *utf8]


def _main_directory() -> str:
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.dirname(os.path.abspath(script)) if isinstance(script, str) else _STARTED_IN


def _identity(place: str) -> tuple[int, int] | None:
    """A directory's own identity: it may be named in several ways. None where there is no such directory."""
    try:
        found = os.stat(place)
    except OSError:
        return None
    return found.st_dev, found.st_ino
