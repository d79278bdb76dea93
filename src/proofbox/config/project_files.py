"""Files that proofbox keeps in a project's `.proofbox` directory."""

from __future__ import annotations

import contextlib
from pathlib import Path

from proofbox.core.files.atomic import write_document
from proofbox.errors import PathRefused


def write_project_file(project: Path, name: Path, data: bytes) -> None:
    """Write `.proofbox/NAME` of a project, creating the directory; never follow a symbolic link in its place."""
    path = project / name
    try:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o755)
        write_document(path, data, follow=False)
    except OSError as error:
        if not path.parent.is_symlink() and path.parent.is_dir():
            raise
        kind = "a symbolic link" if path.parent.is_symlink() else "not a directory"
        raise PathRefused(
            f"{path.parent} is {kind}: {path.name} was not written",
            op="config",
            fix_hints=[f"inspect it, then remove it: rm {path.parent}"],
            details={"path": str(path.parent)},
        ) from error
