"""The paths of the C programs. They are built at installation; a wheel contains them for both architectures."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from proofbox.errors import ProviderUnavailable

_BIN = Path(__file__).parents[1] / "agent" / "bin"


@functools.cache
def program(name: str) -> Path:
    """Return the path of a program of `sandbox/agent` for this machine, such as `boxagent` or `treestat`."""
    system = os.uname()
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(system.machine.lower(), system.machine)
    path = _BIN / f"{name}-{arch}"
    if not os.access(path, os.X_OK):
        raise ProviderUnavailable(
            f"{name} is not installed for {system.sysname} {arch}",
            op="start",
            fix_hints=[
                "in a clone: scripts/setup builds it",
                "otherwise: pip install --force-reinstall proofbox, on Linux x86_64 or aarch64",
            ],
            details={"looked_for": str(path)},
        )
    return path


def version_of(path: Path) -> str:
    """Return a string that changes when the program at a path is replaced, for a provider's identity."""
    found = path.stat()
    return f"{path}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"
