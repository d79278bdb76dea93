"""proofbox's own directories and code: hidden or read-only in a box whose project or mounts contain them.

State, cache and configuration are hidden: they hold evidence, sessions and settings. Code that the next call of
proofbox would run on the host is read-only. Mounting over the path itself is not enough: a command could rename a
directory above it, or replace a symbolic link that leads there, and the next call would find other files under the old
name. `covering.py` turns the paths found here into mounts.
"""

from __future__ import annotations

import functools
import os
import site
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from proofbox.core.dirs import cache_dir, config_dir, state_dir
from proofbox.core.files.path_walk import Entry, walk
from proofbox.errors import PathRefused
from proofbox.sandbox.host.mounts import mount_points_below

_COMMAND = "proofbox"
_PACKAGE = Path(os.path.abspath(__file__)).parents[1]


class View:
    """proofbox's own files below one directory of the host.

    Directories are compared by device and inode, so that bind mounts are recognized.
    """

    def __init__(self, host: Path) -> None:
        self._host = str(host)
        self._bases: dict[tuple[int, int] | None, list[str]] = {}
        for base in (self._host, *mount_points_below(self._host)):
            self._bases.setdefault(_identity(base), []).append(base)
        self._bases.pop(None, None)
        self._known: dict[str, list[str]] = {"": []}
        self._ways = [walk(own) for own in _directories()]

    def hidden(self) -> set[Path]:
        """Return the directories that no box may look into, as paths below the host directory."""
        return {Path(place) for way in self._ways for place in self._places(way[-1].path)}

    def frozen(self) -> set[Path]:
        """Return the paths that must be read-only in a box that can write here.

        Raises PathRefused where no mount can protect them.
        """
        code = [*_code_ways(), *self._user_site()]
        frozen = {place for way in code for place in self._places(way[-1].path)}
        inside = self._host if self._host in frozen else _above(self._host, _imported())
        if inside is not None:
            raise _refusal(self._host, f"proofbox itself runs code from {inside}")
        covered = frozen | {place for way in self._ways for place in self._places(way[-1].path)}
        for directory, name in self._links([*self._ways, *code]):
            if _within(directory, covered):
                continue
            if directory == self._host:
                link = f"{directory}/{name}"
                raise _refusal(
                    self._host,
                    f"proofbox's own files are reached through {link}, a symbolic link that a box could replace",
                    f"replace the link {link} with the directory that it leads to",
                )
            frozen.add(directory)
        for entry in _python_path():
            for place in self._places(entry):
                if not _within(place, covered):
                    raise _refusal(
                        self._host,
                        f"PYTHONPATH contains {place}, so that proofbox would import what a box writes there",
                        "unset it for proofbox: env -u PYTHONPATH proofbox …",
                    )
        return {Path(place) for place in frozen}

    def _user_site(self) -> list[list[Entry]]:
        """Return the user's site-packages. It is created if a box could create it and so control what is imported."""
        if not site.ENABLE_USER_SITE:
            return []
        path = Path(site.getusersitepackages())
        if not path.exists():
            if not self._places(str(next(each for each in path.parents if each.exists()).resolve())):
                return []
            path.mkdir(parents=True, exist_ok=True)
        return [walk(path)]

    def _links(self, ways: Iterable[list[Entry]]) -> Iterator[tuple[str, str]]:
        """Yield the symbolic links here that lead to proofbox's own files: directory and name."""
        for way in ways:
            for entry in way:
                if entry.target is not None:
                    above, _, name = entry.path.rpartition("/")
                    yield from ((place, name) for place in self._places(above))

    def _places(self, path: str) -> list[str]:
        """Return every path below the host directory that leads to `path`."""
        found = self._known.get(path)
        if found is None:
            above, _, name = path.rpartition("/")
            found = [*self._bases.get(_identity(path), ()), *(f"{place}/{name}" for place in self._places(above))]
            self._known[path] = found
        return found


def own_directory_above(path: Path) -> str | None:
    """Return the state, cache or configuration directory that contains `path`, if any."""
    return _above(str(path), (walk(own)[-1].path for own in _directories()))


def _above(path: str, directories: Iterable[str]) -> str | None:
    """Return the directory that is `path` or contains it."""
    known = {identity: each for each in directories if (identity := _identity(each)) is not None}
    while path:
        found = known.get(_identity(path) or (-1, -1))
        if found is not None:
            return found
        path = path.rpartition("/")[0]
    return None


def _directories() -> tuple[Path, ...]:
    """Return the state, cache and configuration directories, creating them so that a box can't."""
    return state_dir(), cache_dir(), config_dir()


@functools.cache
def _code_ways() -> tuple[list[Entry], ...]:
    """Return the path walks to the directories whose code this process runs. They do not change while it runs."""
    directories = dict.fromkeys((str(_PACKAGE), sys.prefix, sys.base_prefix))
    script = os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] else ""
    if os.path.basename(script) == _COMMAND and os.path.isfile(script):
        directories[os.path.dirname(script)] = None
    return tuple(walk(each) for each in directories if os.path.isdir(each))


def _imported() -> Iterator[str]:
    """Yield the directories of imported modules: the package, its dependencies, the standard library."""
    yield from (str(_PACKAGE), os.path.dirname(os.path.dirname(msgspec.__file__)), os.path.dirname(os.__file__))
    if site.ENABLE_USER_SITE:
        yield site.getusersitepackages()


def _python_path() -> list[str]:
    value = os.environ.get("PYTHONPATH", "")
    return [os.path.realpath(entry) for entry in value.split(os.pathsep)] if value else []


def _within(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _refusal(host: str, reason: str, *hints: str) -> PathRefused:
    return PathRefused(
        f"{host} can't be writable in a box: {reason}",
        op="start",
        fix_hints=[
            *hints,
            "let the box work on a copy: --access overlay, or --access ro",
            "or name a directory that does not contain it: --project DIRECTORY",
        ],
        details={"path": host, "reason": reason},
    )
