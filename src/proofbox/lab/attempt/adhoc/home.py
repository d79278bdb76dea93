"""Where attempts made by hand are kept in the user's state directory:

    attempts/<id>/        the bundle, unless the caller chose another directory
    attempts/<id>.home/   the agent's own files, such as its threads; a fork gets a copy

Evidence is redacted, but an agent's home is as the agent left it. It is therefore never part of a bundle.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from proofbox.core.dirs import state_dir
from proofbox.errors import UsageError
from proofbox.workspace.scanning.scanner import beyond

HOME_SUFFIX = ".home"


def attempts_dir() -> Path:
    path = state_dir() / "attempts"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def home_of(attempt_id: str) -> Path:
    return attempts_dir() / f"{attempt_id}{HOME_SUFFIX}"


def copy_home(source: Path, dest: Path) -> None:
    """Copy an agent's home for another session; only regular files and directories are copied.

    The agent could write to its home. Reading a pipe would block, and a symbolic link could redirect later writes on
    the host to a path that the agent chose.
    """

    def special_files(directory: str, names: list[str]) -> list[str]:
        modes = {name: os.lstat(os.path.join(directory, name)).st_mode for name in names}
        return [name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))]

    for folder, _, _ in os.walk(source):  # find a path that is too deep before the recursive copy does
        if too_far := beyond(os.path.relpath(folder, source)):
            raise UsageError(
                f"can't copy a directory of the agent's home: {too_far}",
                op="fork",
                fix_hints=["fork an earlier attempt, or start a new one: proofbox runtime try"],
            )
    shutil.copytree(source, dest, symlinks=True, ignore=special_files, dirs_exist_ok=True)
    os.chmod(dest, 0o700)
