"""Parts of a project that a box may not see, or not change: mounts over them.

What is hidden is covered by something empty that nobody may open. What is frozen is mounted over itself, read-only. A
mount can't be renamed or removed, but the directories above it could be, and what the host then finds under the old
name would be another thing than what was covered: so these are mounted over themselves too, as they are.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from proofbox.core.dirs import state_dir
from proofbox.errors import PathRefused
from proofbox.sandbox.contract import Policy


class Cover(NamedTuple):
    source: Path
    place: Path
    """Below the project, by the path it has on the host."""
    writable: bool


def covers(project: Path, policy: Policy) -> list[Cover]:
    """What to mount, parents first. Raises PathRefused for a path that is not there or leads elsewhere."""
    hidden = {_checked(project, each) for each in policy.hidden}
    frozen = {_checked(project, each) for each in policy.frozen}
    above = {parent for each in hidden | frozen for parent in each.parents if parent != project}
    found: list[Cover] = []
    for path in sorted(hidden | frozen | {each for each in above if each.is_relative_to(project)}):
        if any(path.is_relative_to(each) for each in hidden - {path}):
            continue  # its parent is not there to be seen
        if path in hidden:
            found.append(Cover(_nothing(path.is_dir()), path, False))
        elif any(path.is_relative_to(each) for each in frozen):
            if path in frozen:
                found.append(Cover(path, path, False))
        elif _writable(path, project, policy):
            found.append(Cover(path, path, True))
    return found


def _writable(path: Path, project: Path, policy: Policy) -> bool:
    inside = [
        mount for mount in policy.mounts if mount.host.is_relative_to(project) and path.is_relative_to(mount.host)
    ]
    return any(mount.writable for mount in inside) or (not inside and policy.access != "ro")


def _checked(project: Path, name: str) -> Path:
    path = project / name
    if not name or ".." in Path(name).parts or not path.is_relative_to(project) or path == project:
        raise PathRefused(f"{name!r} is not a path below the project", op="start")
    try:
        kinds = [stat.S_IFMT(each.lstat().st_mode) for each in _steps(project, path)]
    except OSError as error:
        raise PathRefused(
            f"{name!r} is to be hidden or frozen, and is not there: {error.strerror}",
            op="start",
            fix_hints=["make it, or leave it out: what does not exist can't be covered"],
            details={"path": name},
        ) from None
    if stat.S_IFLNK in kinds:
        raise PathRefused(
            f"{name!r} goes through a symbolic link, which can't be covered", op="start", details={"path": name}
        )
    return path


def _steps(project: Path, path: Path) -> Iterator[Path]:
    for name in path.relative_to(project).parts:
        project = project / name
        yield project


def _nothing(directory: bool) -> Path:
    """An empty file or directory that nobody may open, made once for this user."""
    home = state_dir() / "covers"
    home.mkdir(mode=0o700, exist_ok=True)
    path = home / ("directory" if directory else "file")
    if directory:
        path.mkdir(mode=0, exist_ok=True)
    elif not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0))
    return path
