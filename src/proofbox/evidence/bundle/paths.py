"""The layout of a bundle, its valid names, and walking its directory.

out/LATEST                       the id of the last committed run, without failed and dry runs
out/.runtime.lock                held while a run is created or committed, or LATEST is updated
out/<run_id>/run_status.json     in_progress, complete or failed
out/<run_id>/artifact_index.json the commit barrier, written last
out/<run_id>/…                   artifacts; a directory with its own index is a nested bundle
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from proofbox.core.files.atomic import TEMPORARY_PREFIX, sweep_temporaries
from proofbox.core.text import path_fields
from proofbox.errors import BundleNotFound, BundlePathRefused

INDEX = "artifact_index.json"
STATUS = "run_status.json"
REPAIR_LOG = "repair_log.json"
LATEST = "LATEST"
PACKED_SUFFIX = ".bundle.tar.gz"
LOCK = ".runtime.lock"
RESERVED = frozenset({INDEX, STATUS, REPAIR_LOG, LOCK})

MAX_PATH = 1024
NESTED_LEVELS = 2
"""Maximum number of directories between a nested bundle and the one around it, such as `attempts/NAME`."""
# Limits on files that are read whole, so that no reader needs more than 200 MB. An index entry takes 110 bytes plus its
# path, so about 150,000 entries fit. Logs are read line by line; their limit only bounds the time.
MAX_STATUS_BYTES = 1 << 24
MAX_INDEX_BYTES = 1 << 25
MAX_JSON_BYTES = 1 << 25
MAX_LOG_BYTES = 1 << 30
MAX_SCHEDULE_BYTES = 1 << 26

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SEGMENT = r"(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f\\\ud800-\udfff]{1,255}"
_PATH = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_USUAL = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}+"
_USUAL_PATHS = re.compile(rf"(?:{_USUAL}(?:/{_USUAL})*+\n)*+")

_Path = str | os.PathLike[str]


def is_artifact_path(path: str) -> bool:
    """Return whether a path is relative, normalised and portable: no control characters, no backslashes."""
    return len(path) <= MAX_PATH and _matches(path)


def are_artifact_paths(paths: Sequence[str]) -> bool:
    """Return whether every path is valid. Usual paths are checked together, in a fraction of the time."""
    joined = "\n".join([*paths, ""])
    usual = joined.count("\n") == len(paths) and max(map(len, paths), default=0) <= MAX_PATH
    return bool(usual and _USUAL_PATHS.fullmatch(joined)) or all(map(is_artifact_path, paths))


@lru_cache(maxsize=1024)  # the attempts of a run have the same names
def _matches(path: str) -> bool:
    return _PATH.fullmatch(path) is not None


def is_temporary(path: str) -> bool:
    """Return whether the path is the temporary file of an atomic write."""
    return path.rpartition("/")[2].startswith(TEMPORARY_PREFIX)


def check_artifact_path(path: str, op: str) -> str:
    """Return `path` if it is a valid artifact path; otherwise raise BundlePathRefused."""
    if type(path) is not str or not is_artifact_path(path):
        raise BundlePathRefused(
            f"not a path inside a bundle: {str(path)[:200]!r}",
            op=op,
        )
    name = path.rpartition("/")[2]
    if name in RESERVED or is_temporary(path):
        raise BundlePathRefused(f"the name {name} is reserved", op=op, fix_hints=["choose another name"])
    return path


IRREGULAR = {
    "symlink": "a symbolic link",
    "special": "a special file",
    "unreadable": "a directory that can't be read or whose path is too long",
}


@dataclass(slots=True)
class DirectoryContents:
    """The content of a directory: regular files, directories, and other entries by their kind in IRREGULAR."""

    files: set[str] = field(default_factory=set)
    directories: set[str] = field(default_factory=set)
    irregular: dict[str, str] = field(default_factory=dict)

    def split(self) -> tuple[set[str], list[str]]:
        """Return the files that this bundle's index must list, and the missing indexes of interrupted nested bundles.

        A nested bundle's own index lists its files; the outer index lists only that index.
        """
        nested = {path.removesuffix("/" + INDEX) for path in self.files if path.endswith("/" + INDEX)}
        begun = {path.removesuffix("/" + STATUS) for path in self.files if path.endswith("/" + STATUS)}
        own = (
            {path for path in self.files if not any(a in nested for a in above(_covered_as(path)))}
            if nested
            else set(self.files)
        )
        interrupted = sorted(
            f"{place}/{INDEX}" for place in begun - nested if not any(a in nested for a in above(place))
        )
        return own, interrupted


def walk(root: _Path, *, dir_fd: int | None = None, skip: Container[str] = ()) -> DirectoryContents:
    """List everything below `root` by relative path, without following links. Names may have surrogate escapes.

    A directory in `skip` is not entered, nor one whose path exceeds the maximum length of an artifact path. With
    `dir_fd`, `root` is relative to that directory.
    """
    found = DirectoryContents()
    top = os.open(root, _DIRECTORY, dir_fd=dir_fd)
    try:
        pending = _scan(top, "", found)
        while pending:
            below = pending.pop()
            if below in skip:
                continue
            try:
                inside = _open_below(top, below)
            except OSError:
                found.directories.discard(below)
                found.irregular[below] = "unreadable"
                continue
            try:
                pending += _scan(inside, below, found)
            finally:
                os.close(inside)
    finally:
        os.close(top)
    return found


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def _open_below(top: int, below: str) -> int:
    if len(below) > MAX_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return os.open(below, _DIRECTORY | os.O_NOFOLLOW, dir_fd=top)


def _scan(directory: int, below: str, found: DirectoryContents) -> list[str]:
    """Add the entries of a directory to `found`, and return its subdirectories."""
    inside, start, files = [], below and f"{below}/", found.files
    with os.scandir(directory) as entries:
        for entry in entries:
            path = start + entry.name
            if entry.is_file(follow_symlinks=False):
                files.add(path)
            elif entry.is_dir(follow_symlinks=False):
                found.directories.add(path)
                inside.append(path)
            else:
                found.irregular[path] = "symlink" if entry.is_symlink() else "special"
    return inside


def _covered_as(path: str) -> str:
    """Return a nested bundle's directory for its index, which the outer bundle covers; otherwise the path itself."""
    return path.removesuffix("/" + INDEX) if path.endswith("/" + INDEX) else path


def above(path: str) -> list[str]:
    """Return the parent directories of a path, innermost last, without the root."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def tidy(root: _Path) -> DirectoryContents:
    """Remove dead writers' temporary files and empty directories, and return the content of `root`."""
    found = walk(root)
    left = {path for path in found.files if is_temporary(path)}
    for directory in {os.path.dirname(path) for path in left}:
        sweep_temporaries(os.path.join(root, directory))
    in_use = {place for path in [*(found.files - left), *found.irregular] for place in above(path)}
    for directory in sorted(found.directories - in_use, reverse=True):
        os.rmdir(os.path.join(root, directory))
    return walk(root) if left or found.directories - in_use else found


def shown(path: str) -> str:
    """Return a path as text that can be stored in JSON."""
    return path_fields(path)["path"]


class TooLarge(OSError):
    """The file exceeds the size limit for its kind."""


def read_bounded(path: _Path, limit: int, *, dir_fd: int | None = None) -> bytes:
    """Read a whole regular file without following a link. Raises TooLarge beyond `limit` bytes, and OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(f"{shown(os.fspath(path))} is not a regular file")
        if info.st_size > limit:
            raise TooLarge(f"{shown(os.fspath(path))} is larger than {limit} bytes")
        # Not `limit`: a read allocates memory for the requested size.
        data = os.read(fd, info.st_size + 1)
        while 0 < len(data) < info.st_size and (more := os.read(fd, info.st_size + 1 - len(data))):
            data += more  # some file systems return less than was asked for
    finally:
        os.close(fd)
    if len(data) > info.st_size:
        raise OSError(f"{shown(os.fspath(path))} grew while it was read")
    return data


def read_latest(out: _Path) -> str | None:
    """Return the run that LATEST names; None without LATEST. Raises BundleNotFound if it is not a run id."""
    try:
        name = read_bounded(os.path.join(out, LATEST), 4096).decode("ascii", "replace").removesuffix("\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BundleNotFound(f"LATEST can't be read: {error}", op="bundle resolve") from error
    if not RUN_ID.fullmatch(name):
        raise BundleNotFound(
            "LATEST does not contain a valid run id",
            op="bundle resolve",
            fix_hints=["give the path of the run's directory, and check the program that wrote LATEST"],
        )
    return name


def resolve(path: _Path) -> str:
    """Return the bundle directory for `path`: itself, the run that its LATEST names, or a packed bundle, unpacked."""
    place = os.fspath(path)
    if place.endswith(PACKED_SUFFIX) and os.path.isfile(place):
        from proofbox.evidence.bundle.packed import unpacked  # few bundles are packed

        return unpacked(place)
    if not os.path.isdir(place):
        raise BundleNotFound(f"there is no directory {shown(place)}", op="bundle resolve", fix_hints=["check the path"])
    if any(os.path.lexists(os.path.join(place, name)) for name in (INDEX, STATUS)):
        return place
    name = read_latest(place)
    if name is None:
        runs = list_runs(place)
        raise BundleNotFound(
            f"{shown(place)} has no successfully committed run",
            op="bundle resolve",
            fix_hints=[f"give a run's directory: {os.path.join(shown(place), runs[-1])}"]
            if runs
            else ["check the path"],
            details={"runs": runs[-20:]},
        )
    directory = os.path.join(place, name)
    if os.path.islink(directory) or not os.path.isdir(directory):
        raise BundleNotFound(
            f"LATEST names {name}, which does not exist",
            op="bundle resolve",
            fix_hints=["give the path of a run's directory"],
        )
    return directory


def list_runs(out: _Path) -> list[str]:
    """Return the run directories of an output directory, sorted by name; generated ids sort by time."""
    with os.scandir(out) as entries:
        return sorted(
            entry.name
            for entry in entries
            if RUN_ID.fullmatch(entry.name)
            and entry.is_dir(follow_symlinks=False)
            and any(os.path.lexists(os.path.join(entry.path, name)) for name in (INDEX, STATUS))
        )


def enclosing(directory: _Path) -> str:
    """Return the outermost bundle that contains the bundle `directory`; itself, unless it is nested.

    A nested bundle is at most `NESTED_LEVELS` directories below the next. Directories further up may belong to other
    people, whose files decide nothing about a bundle.
    """
    place = os.path.realpath(directory)
    outermost, left = place, NESTED_LEVELS
    while left and (parent := os.path.dirname(place)) != place:
        place = parent
        left -= 1
        if os.path.lexists(os.path.join(place, STATUS)):
            outermost, left = place, NESTED_LEVELS
    return outermost


def is_inside_bundle(directory: _Path) -> bool:
    """Return whether a directory is a bundle, or anywhere in one."""
    place = os.path.realpath(directory)
    while not os.path.lexists(os.path.join(place, STATUS)):
        if (parent := os.path.dirname(place)) == place:
            return False
        place = parent
    return True
