"""Find the programs that proofbox runs on the host, and recognize those that someone else could have planted.

PATH may contain a directory that someone else provided or that an agent writes to: `.`, `node_modules/.bin`, a virtual
environment of the project. A program there must not run outside a box. Every program that proofbox runs on the host,
and that is not at a fixed place, is found with `find_program`, which refuses such a program.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

from proofbox.core.files.path_walk import walk
from proofbox.errors import PathRefused

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of a distribution's own programs, which start others by name."""

_distrusted: set[str] = set()


def distrust(places: Iterable[Path]) -> None:
    """Refuse to run programs in these resolved directories from now on: a box of this process may write to them."""
    _distrusted.update(map(str, places))


def find_program(name: str, path: str | None = None) -> str | None:
    """Return the absolute path of a program to run on the host, or None if it is not on PATH.

    Raises PathRefused if it could be planted, instead of taking the next one: the user should know.
    """
    found = locate_program(name, path)
    if found is not None and is_planted(found):
        raise PathRefused(
            f"{name} on PATH is {found}, which a command in a box could have put there",
            op="start",
            fix_hints=[f"remove {os.path.dirname(found)} from PATH, or put it after the directory of the real {name}"],
            details={"program": found},
        )
    return found


def locate_program(name: str, path: str | None = None) -> str | None:
    """Return the absolute path of a program on PATH, or None. It must not be run without a check.

    A relative entry names a different directory in every working directory, so it is skipped.
    """
    searched = os.environ.get("PATH", os.defpath) if path is None else path
    known = _located.get((name, searched))
    if known is not None and os.access(known, os.X_OK):
        return known
    for entry in searched.split(os.pathsep):
        found = os.path.join(entry, name)
        if os.path.isabs(entry) and os.access(found, os.X_OK) and os.path.isfile(found):
            _located[name, searched] = found
            return found
    return None


_located: dict[tuple[str, str], str] = {}


def trusted_path() -> str:
    """Return PATH without the directories whose programs `find_program` refuses, for programs that start others."""
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if os.path.isabs(entry) and not is_planted(entry))


def directories_of(program: str) -> Iterator[Path]:
    """Yield every directory in which an entry could be replaced to run something else: of the program and of each link
    to it. Raises OSError if the program does not exist."""
    for entry in walk(program):
        yield Path(entry.path).parent


def is_planted(program: str) -> bool:
    """Return whether someone else could have put a program where it is: a box of this process, or the author of the
    current directory, unless that contains the user's home directory or is the system's."""
    untrusted = _distrusted
    with contextlib.suppress(OSError):  # the current directory has been removed
        here = os.getcwd()
        home = os.path.realpath(os.path.expanduser("~"))
        if here not in ("/", home) and not home.startswith(f"{here}/") and not f"{here}/".startswith("/usr/"):
            untrusted = untrusted | {here}
    return _passes(program, untrusted)


def is_inside(program: str, places: Iterable[Path]) -> bool:
    """Return whether a program, or a link that leads to it, is one of these resolved paths or in one of them."""
    return _passes(program, set(map(str, places)))


def _passes(program: str, places: AbstractSet[str]) -> bool:
    try:
        for entry in walk(program):
            way = entry.path
            while way:
                if way in places:
                    return True
                way = way.rpartition("/")[0]
    except OSError:  # it has just disappeared
        return True
    return "/" in places
