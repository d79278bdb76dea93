"""The mounts of a box: the project and the requested mounts, and covers over parts of them.

A hidden part is covered by an empty file or directory. A frozen part is mounted over itself, read-only. A mount can't
be renamed or removed, but a directory above it could be, and the host would then find something else under the old
name: these directories are mounted over themselves as well, unchanged.

Covers come from the policy (`hidden`, `frozen`) and from proofbox's own files (`proofbox.sandbox.own_files`). They
apply to every mount through which such a part can be reached, at any path in the box.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from proofbox.core.dirs import state_dir
from proofbox.core.files.path_walk import walk
from proofbox.errors import PathRefused
from proofbox.sandbox.contract import BoxMount, Mount, Policy
from proofbox.sandbox.own_files import View


class _Covers(msgspec.Struct, frozen=True):
    """Parts of one host directory, by their paths on the host."""

    hidden: set[Path]
    """Covered by a file or directory that can't be opened."""
    emptied: set[Path]
    frozen: set[Path]


def placed(project: Path, policy: Policy) -> list[BoxMount]:
    """Return every mount of a box, in the order in which they must be made; no two are at the same place.

    Raises PathRefused for a part that is missing or behind a link, and where proofbox's own files can't be protected.
    """
    hidden = {_checked(project, each) for each in policy.hidden}
    frozen = {_checked(project, each) for each in policy.frozen}
    mounts = [Mount(project, str(project), writable=policy.access != "ro"), *_mounts(project, policy)]
    reached = {project, *(mount.host for mount in policy.mounts if mount.writable)}
    found: list[BoxMount] = []
    for count, mount in enumerate(mounts):
        if policy.layers is None:
            _check_place(mount, mounts[:count])
        own = _own(project, mount, policy)
        covers = _Covers(
            {each for each in hidden if each.is_relative_to(mount.host)},
            own.emptied,
            {each for each in frozen if each.is_relative_to(mount.host)} | own.frozen,
        )
        # This mount hides the covers of earlier mounts below its place.
        found = [each for each in found if not (each.cover and Path(each.place).is_relative_to(mount.guest))]
        found += [BoxMount(mount.host, mount.guest, mount.writable), *_covering(mount, covers)]
    return [
        msgspec.structs.replace(each, loose=each.source is not None and not reached.isdisjoint(each.source.parents))
        for each in found
    ]


def _mounts(project: Path, policy: Policy) -> Iterator[Mount]:
    """Yield the mounts of a policy. If one shows the project at another place, the same parts are writable there."""
    parts = [each for each in policy.mounts if each.guest == str(each.host) and project in each.host.parents]
    for mount in policy.mounts:
        if mount.host != project:
            yield mount
            continue
        yield Mount(project, mount.guest, writable=mount.writable and policy.access != "ro")
        if policy.access == "ro":
            for part in parts:
                yield Mount(part.host, str(Path(mount.guest) / part.host.relative_to(project)), part.writable)


def sources(mounts: Iterable[BoxMount]) -> dict[str, tuple[int, int]]:
    """Identify the sources that could be replaced while a box starts, for a provider that can't pin them.

    Raises PathRefused if one was replaced by a symbolic link since it was resolved.
    """
    found = {}
    for mount in mounts:
        if mount.loose:
            path = str(mount.source)
            try:
                way = walk(path)
                st = os.lstat(path)
            except OSError as error:
                raise _replaced(path, str(error.strerror)) from None
            if any(entry.target is not None for entry in way):
                raise _replaced(path, "it is now a symbolic link, or behind one")
            found[path] = st.st_dev, st.st_ino
    return found


def check_sources(before: Mapping[str, tuple[int, int]], mounts: Iterable[BoxMount]) -> None:
    """Raise PathRefused unless the sources are unchanged."""
    now = sources(mounts)
    for path, identity in before.items():
        if now.get(path) != identity:
            raise _replaced(path, "another file or directory is in its place")


def _replaced(path: str, reason: str) -> PathRefused:
    return PathRefused(
        f"{path} was replaced while a box started: {reason}",
        op="start",
        fix_hints=["stop the sessions that write to that directory, and try again"],
        details={"path": path},
    )


def _check_place(mount: Mount, earlier: Sequence[Mount]) -> None:
    """Check the place of a mount inside another mount, where earlier boxes may have left links or files."""
    outers = [each for each in earlier if Path(mount.guest).is_relative_to(each.guest)]
    if not outers:
        return
    outer = max(outers, key=lambda each: len(Path(each.guest).parts))
    place = outer.host / Path(mount.guest).relative_to(outer.guest)
    for path in _steps(outer.host, place):
        if path.is_symlink():
            raise PathRefused(
                f"mount {mount.host} at {mount.guest}: {path} is a symbolic link, which a command in a box could"
                " have created",
                op="start",
                fix_hints=[f"remove the link, or choose another path: {mount.host}:/mnt/{mount.host.name}"],
                details={"link": str(path)},
            )
    refuse_missing_place(mount, place, outer.guest, writable=outer.writable)


def refuse_missing_place(mount: Mount, place: Path, outer: str, *, writable: bool) -> None:
    """Raise PathRefused if a mount can't be made at `place`, a path on the host below `outer`."""
    if place.exists():
        problem = "" if place.is_dir() == mount.host.is_dir() else "one of the two is a directory, the other is not"
    else:
        problem = "" if writable else f"that path does not exist in {outer}, which is read-only in the box"
    if problem:
        raise PathRefused(
            f"mount {mount.host} at {mount.guest}: {problem}",
            op="start",
            fix_hints=[f"choose another path: {mount.host}:/mnt/{mount.host.name}"],
            details={"host": str(mount.host), "guest": mount.guest},
        )


def _own(project: Path, mount: Mount, policy: Policy) -> _Covers:
    """Return proofbox's own parts below a mount. With an overlay nothing is frozen: changes never reach the host."""
    thrown_away = policy.access == "overlay" and mount.host.is_relative_to(project)
    if thrown_away and policy.layers is not None:  # the box sees the layers in place of the directory
        seen = {project / place.relative_to(each) for each in policy.layers.lower for place in View(each).hidden()}
        return _Covers(set(), {each for each in seen if each.is_relative_to(mount.host)}, set())
    view = View(mount.host)
    return _Covers(set(), view.hidden(), view.frozen() if mount.writable and not thrown_away else set())


def _covering(mount: Mount, covers: _Covers) -> Iterator[BoxMount]:
    covered = covers.hidden | covers.emptied | covers.frozen
    above = {parent for each in covered for parent in each.parents if parent.is_relative_to(mount.host)}
    unseen = covers.hidden | covers.emptied
    for path in sorted(covered | (above - {mount.host})):
        place = str(Path(mount.guest) / path.relative_to(mount.host))
        if not unseen.isdisjoint(path.parents):
            continue  # inside a hidden directory
        if path in covers.emptied:
            yield BoxMount(None, place, True, cover=True)
        elif path in covers.hidden:
            yield BoxMount(_empty_cover(path.is_dir()), place, False, cover=True)
        elif path in covers.frozen:
            yield BoxMount(path, place, False, cover=True)
        elif mount.writable and covers.frozen.isdisjoint(path.parents):
            yield BoxMount(path, place, True, cover=True)


def _checked(project: Path, name: str) -> Path:
    path = project / name
    if not name or ".." in Path(name).parts or not path.is_relative_to(project) or path == project:
        raise PathRefused(f"{name!r} is not a path below the project", op="start")
    try:
        kinds = [stat.S_IFMT(each.lstat().st_mode) for each in _steps(project, path)]
    except OSError as error:
        raise PathRefused(
            f"{name!r} can't be hidden or frozen: {error.strerror}",
            op="start",
            fix_hints=["create it, or leave it out: only existing paths can be hidden or frozen"],
            details={"path": name},
        ) from None
    if stat.S_IFLNK in kinds:
        raise PathRefused(
            f"{name!r} leads through a symbolic link, so it can't be hidden or frozen",
            op="start",
            details={"path": name},
        )
    return path


def _steps(project: Path, path: Path) -> Iterator[Path]:
    for name in path.relative_to(project).parts:
        project = project / name
        yield project


def covers_dir() -> Path:
    """Return the directory of the sources that cover hidden parts."""
    return state_dir() / "covers"


def _empty_cover(directory: bool) -> Path:
    """Return an empty file or directory that can't be opened, created once per user."""
    home = covers_dir()
    home.mkdir(mode=0o700, exist_ok=True)
    path = home / ("directory" if directory else "file")
    if directory:
        path.mkdir(mode=0, exist_ok=True)
    elif not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0))
    return path
