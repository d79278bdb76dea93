"""Find the programs that proofbox runs on the host, and recognize those that someone else could have planted.

PATH may contain a directory that someone else provided or that an agent writes to: `.`, `node_modules/.bin`, a virtual
environment of the project. A program there must not run outside a box.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from proofbox.core.files.path_walk import walk


def find_program(name: str, path: str | None = None) -> str | None:
    """Return the absolute path of a program on PATH, or None. A relative entry names a different directory in every
    working directory, so it is skipped."""
    searched = os.environ.get("PATH", os.defpath) if path is None else path
    for entry in searched.split(os.pathsep):
        found = os.path.join(entry, name)
        if os.path.isabs(entry) and os.access(found, os.X_OK) and os.path.isfile(found):
            return found
    return None


def directories_of(program: str) -> Iterator[Path]:
    """Yield every directory in which an entry could be replaced to run something else: of the program and of each link
    to it. Raises OSError if the program does not exist."""
    for entry in walk(program):
        yield Path(entry.path).parent


def is_inside(program: str, places: Iterable[Path]) -> bool:
    """Return whether a program, or a link that leads to it, is in one of these resolved directories."""
    untrusted = list(places)
    try:
        return any(found.is_relative_to(place) for found in directories_of(program) for place in untrusted)
    except OSError:  # it has just disappeared
        return True
