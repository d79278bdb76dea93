"""Finds commands in a task's scripts that write outside its working directory, where their text shows that.

In a box, the root file system is read-only, and only the working directory is verified. Such a command fails, or its
effect is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

MAX_SHOWN = 5
WRITABLE = ("/tmp", "/var/tmp", "/dev", "/proc", "/logs", "/tests", "/solution")  # noqa: S108
"""Where a box can write, or what belongs to the tests, besides the working directory."""
_INSTALLS = re.compile(
    r"\b(?:apt-get|apt|apk|dnf|yum)\s+(?:-\S+\s+)*(?:install|add|update|upgrade)\b|\bnpm\s+(?:install|i)\s+-g\b"
)
_PATH = r"(/[A-Za-z0-9._+@/-]+)"
_REDIRECTIONS = re.compile(rf"(?:^|[^<>&\d-])\d?>>?\s*[\"']?{_PATH}")
_MADE = re.compile(rf"\b(?:mkdir|touch|tee|truncate|rm|rmdir)\s+(?:-\S+\s+)*[\"']?{_PATH}")
_PUT = re.compile(rf"\b(?:cp|mv|ln|install|rsync)\s+(?:[^;|&\n]*\s)[\"']?{_PATH}[\"']?\s*(?:$|[;|&)])")
_EDITED = re.compile(rf"\bsed\s+(?:-\S+\s+)*-i[^;|&\n]*\s[\"']?{_PATH}[\"']?\s*(?:$|[;|&)])")


def outside_writes(script: str, workdir: str) -> list[str]:
    """Return what a script does outside the working directory, as the end of a sentence."""
    found: dict[str, None] = {}
    for line in _commands(script):
        if _INSTALLS.search(line):
            found["installs system packages, but the root of a box is read-only"] = None
        for pattern in (_REDIRECTIONS, _MADE, _PUT, _EDITED):
            for match in pattern.finditer(line):
                path = PurePosixPath(match[1])
                if not any(path.is_relative_to(each) for each in (workdir, *WRITABLE)):
                    found[f"writes to {str(path)[:100]}, which is outside {workdir}"] = None
    return list(found)[:MAX_SHOWN]


def _commands(script: str) -> Iterator[str]:
    """Yield the lines of a script without comments, each with its continuation lines."""
    for line in script.replace("\\\n", " ").splitlines():
        if not line.lstrip().startswith("#"):
            yield line
