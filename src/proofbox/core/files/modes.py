"""File modes as git writes them, which trees, manifests and deliveries compare."""

from __future__ import annotations

import stat
from typing import Literal

GitMode = Literal["100644", "100755", "120000"]


def git_mode(mode: int) -> GitMode:
    """Return the git mode of a regular file or symbolic link from its `st_mode`."""
    if stat.S_ISLNK(mode):
        return "120000"
    return "100755" if mode & stat.S_IXUSR else "100644"
