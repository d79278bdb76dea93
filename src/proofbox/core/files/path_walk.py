"""Path resolution that reports every directory entry it passes through.

`realpath` returns only the final path. To protect or trust a path, its directory entries matter as well: anyone who can
write to the parent directory of an entry can rename or replace it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec

from proofbox.errors import PathRefused

MAX_LINKS = 40  # the kernel's limit


class Entry(msgspec.Struct, frozen=True):
    path: str
    """The entry, below a directory whose own path contains no symbolic link."""
    target: str | None
    """The target of a symbolic link; None for anything else."""


def walk(path: str | os.PathLike[str]) -> list[Entry]:
    """Resolve an absolute path and return its entries in the order of resolution.

    The last entry is the resolved path. Raises OSError if the path does not exist or can't be followed.
    """
    here, entries, links = "", [], 0
    names = os.fspath(path).split("/")[::-1]
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = here.rpartition("/")[0]
            continue
        entry = f"{here}/{name}"
        target = _target(entry)
        entries.append(Entry(entry, target))
        if target is None:
            here = entry
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
        if target.startswith("/"):
            here = ""
        names += target.split("/")[::-1]
    if not entries or entries[-1].path != here:  # it ended in "..", or is the root
        entries.append(Entry(here or "/", None))
    return entries


def _target(entry: str) -> str | None:
    try:
        return os.readlink(entry)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: not a symbolic link
            raise
        return None


def entries_of(path: str | os.PathLike[str], what: str) -> list[Entry]:
    """Return every entry that a user's path leads through; the last is the resolved path."""
    text = os.fspath(path)
    if "\0" in text:
        raise PathRefused(f"{what} contains a NUL byte", op="start", fix_hints=["remove the NUL byte from the path"])
    try:
        expanded = os.path.expanduser(text)
        return walk(expanded if os.path.isabs(expanded) else os.path.join(os.getcwd(), expanded))
    except FileNotFoundError:
        raise PathRefused(f"{what} {text!r} does not exist", op="start", fix_hints=["check the spelling"]) from None
    except (OSError, RuntimeError, ValueError) as error:
        raise PathRefused(
            f"{what} {text!r} can't be resolved: {error}",
            op="start",
            fix_hints=["check the spelling and the permissions"],
        ) from None


def resolved_path(path: str | os.PathLike[str], what: str) -> Path:
    return Path(entries_of(path, what)[-1].path)
