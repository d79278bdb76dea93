"""The paths of programs: those on PATH, and the C programs.

The C programs are built at installation; a wheel contains them for both architectures.
"""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

from proofbox.errors import ProviderUnavailable

_BIN = Path(__file__).parents[1] / "agent" / "bin"


def find_program(name: str, path: str | None = None) -> str | None:
    """Return the path of a program that can be executed, as `shutil.which` does; None if PATH has no such program.

    `shutil` loads every compression module, which takes longer than all imports of this package.
    """
    if os.path.dirname(name):
        directories = [""]
    else:
        path = os.environ.get("PATH", os.defpath) if path is None else path
        directories = path.split(os.pathsep) if path else []
    found = (os.path.join(directory, name) for directory in directories)
    return next((each for each in found if os.path.isfile(each) and os.access(each, os.X_OK)), None)


@functools.cache
def program(name: str) -> Path:
    """Return the path of `boxagent`, `boxlaunch`, `boxrun` or `treestat` for this machine."""
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())
    path = _BIN / f"{name}-{arch}"
    if not os.access(path, os.X_OK):
        raise ProviderUnavailable(
            f"{name} is not installed for {platform.system()} {arch}",
            op="start",
            fix_hints=[
                "in a clone: scripts/setup builds it",
                "otherwise: pip install --force-reinstall proofbox, on Linux x86_64 or aarch64",
            ],
            details={"looked_for": str(path)},
        )
    return path
