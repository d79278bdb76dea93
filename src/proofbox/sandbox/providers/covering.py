"""The mounts of a box: the project and what else was asked for, and the covers over parts of them.

A part that is hidden is covered by something empty. A part that is frozen is mounted over itself, read-only. A mount
can't be renamed or removed, but the directories above it could be, and the host would then find something else under
the old name: these are mounted over themselves too, as they are.

Both come from the policy (`hidden`, `frozen`) and from what is proofbox's own (`proofbox.sandbox.own`). They hold for
every mount through which such a part can be reached, wherever in the box it is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from proofbox.core.dirs import state_dir
from proofbox.errors import PathRefused
from proofbox.sandbox.contract import Mount, Policy
from proofbox.sandbox.own import View


class Placed(NamedTuple):
    """One mount of a box."""

    source: Path | None
    """None for an empty directory of the box's own."""
    place: str
    writable: bool
    cover: bool = False
    """Over a part of another mount, so that the place exists."""


class _Covers(NamedTuple):
    """Parts of one host directory, by their paths on the host."""

    hidden: set[Path]
    """By something that can't be opened."""
    emptied: set[Path]
    frozen: set[Path]


def placed(project: Path, policy: Policy) -> list[Placed]:
    """Return every mount of a box, in the order in which they are to be made; no two are at the same place.

    Raises PathRefused for a part that is missing or lies behind a link, and where proofbox's own files can't be
    protected.
    """
    hidden = {_checked(project, each) for each in policy.hidden}
    frozen = {_checked(project, each) for each in policy.frozen}
    found: list[Placed] = []
    for mount in (Mount(project, str(project), writable=policy.access != "ro"), *policy.mounts):
        own = _own(project, mount, policy)
        covers = _Covers(
            {each for each in hidden if each.is_relative_to(mount.host)},
            own.emptied,
            {each for each in frozen if each.is_relative_to(mount.host)} | own.frozen,
        )
        # What an earlier mount has there can't be seen any more.
        found = [each for each in found if not (each.cover and Path(each.place).is_relative_to(mount.guest))]
        found += [Placed(mount.host, mount.guest, mount.writable), *_covering(mount, covers)]
    return found


def _own(project: Path, mount: Mount, policy: Policy) -> _Covers:
    """What is proofbox's own below the mount. Changes that are thrown away replace nothing on the host."""
    thrown_away = policy.access == "overlay" and mount.host.is_relative_to(project)
    if thrown_away and policy.layers is not None:  # they are what the box sees in place of the directory
        seen = {project / place.relative_to(each) for each in policy.layers.lower for place in View(each).hidden()}
        return _Covers(set(), {each for each in seen if each.is_relative_to(mount.host)}, set())
    view = View(mount.host)
    return _Covers(set(), view.hidden(), view.frozen() if mount.writable and not thrown_away else set())


def _covering(mount: Mount, covers: _Covers) -> Iterator[Placed]:
    covered = covers.hidden | covers.emptied | covers.frozen
    above = {parent for each in covered for parent in each.parents if parent.is_relative_to(mount.host)}
    unseen = covers.hidden | covers.emptied
    for path in sorted(covered | (above - {mount.host})):
        place = str(Path(mount.guest) / path.relative_to(mount.host))
        if not unseen.isdisjoint(path.parents):
            continue  # inside something that can't be seen
        if path in covers.emptied:
            yield Placed(None, place, True, cover=True)
        elif path in covers.hidden:
            yield Placed(_nothing(path.is_dir()), place, False, cover=True)
        elif path in covers.frozen:
            yield Placed(path, place, False, cover=True)
        elif mount.writable and covers.frozen.isdisjoint(path.parents):
            yield Placed(path, place, True, cover=True)


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
