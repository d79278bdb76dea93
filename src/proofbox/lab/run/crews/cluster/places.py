"""Temporary directories on a machine of a cluster: one per worker, and one for the files of Ray.

Each is locked by its process and readable only by its user. If the process was killed, the directory stays without a
lock, until the next worker on the node or `proofbox gc` removes it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

from proofbox.core.files.locks import locked
from proofbox.core.files.removal import remove_tree
from proofbox.errors import IoFailed
from proofbox.lab.run.resources import size_of
from proofbox.sandbox.host.scratch import Scratch, abandoned_scratch

RAY_PREFIX = "proofbox-ray-"
RAY_MARKER = ".made-by-proofbox"
"""A file in each directory for Ray. Directories without it are never removed, regardless of their names."""
MAX_TEMPORARY = 19
"""The longest path of a directory for temporary files below which Ray's sockets can be. Their paths, which are up to 88
bytes longer, are limited to 107."""


MEASURING = "measuring"
"""The link in a worker's directory to the temporary files of the checks of its node."""
MEASURE_PREFIX = "pbm-"
"""Short, because the checks create sockets below it, whose paths are limited."""


def ray_place() -> Scratch:
    """Create the directory for Ray's files of this process. Ray must use one below it: it opens that to all users."""
    made = Scratch(_temporary(), RAY_PREFIX)
    (made.path / RAY_MARKER).touch()
    return made


def sweep_ray(*, remove: bool) -> Iterator[tuple[str, int]]:
    """Yield Ray's directories of killed processes, with the bytes on disk, and remove them, if asked."""
    for path in abandoned_scratch(_temporary(), RAY_PREFIX):
        marker = path / RAY_MARKER
        if marker.is_symlink() or not marker.is_file():
            continue
        found = str(path), size_of(path, sys.maxsize)
        if not remove or not remove_tree(path):
            yield found


def _temporary() -> Path:
    usual = gettempdir()
    return Path(usual if len(usual) <= MAX_TEMPORARY else "/tmp")  # noqa: S108


def sweep_node(*, remove: bool = True, killed_run: str = "") -> list[tuple[str, int]]:
    """Return what killed workers left on this node, with the bytes on disk, and remove it, if asked.

    The workers of `killed_run` have just been killed: wait until they are dead. Other live workers are left alone, and
    so is a directory with this name that another user made.
    """
    found: list[tuple[str, int]] = []
    try:
        locks = sorted(worker_places().glob("*.lock")) if _is_own(worker_places()) else []
    except FileNotFoundError:  # nothing is left, or it was removed in the meantime, because it was empty
        return found
    for lock in locks:
        place = lock.with_suffix("")
        dying = bool(killed_run) and lock.name.startswith(f"{killed_run}.")
        # A worker is alive, or another process sweeps at the same time and removed it first.
        with contextlib.suppress(BlockingIOError, FileNotFoundError), locked(lock, wait=dying):
            if place.exists():
                found.append((str(place), size_of(place, sys.maxsize)))
            if remove:
                remove_worker_place(place)
    return found


def worker_places() -> Path:
    """Return the directory for all workers of this user on this machine."""
    return Path(gettempdir()) / f"proofbox-nodes-{os.getuid()}"


def claim_worker_place(name: str, lock: contextlib.ExitStack) -> Path:
    """Create and lock the directory of a worker. The one above it must not have been made by another user."""
    above = worker_places()
    while True:
        with contextlib.suppress(FileNotFoundError):  # a worker that has just ended removed the empty directory
            above.mkdir(mode=0o700, exist_ok=True)
            if not _is_own(above):
                raise IoFailed(f"{above} does not belong to this user alone", op="node", fix_hints=[f"rm -r {above}"])
            lock.enter_context(locked(_lock_of(above / name)))
            (above / name).mkdir(mode=0o700)
            return above / name


@contextlib.contextmanager
def measuring_place(place: Path) -> Iterator[None]:
    """Use a separate directory for temporary files while a node is measured, and remove it at the end.

    It is not below the worker's directory, which other users can't enter: the checks must find that a box hides files,
    not that their modes do. If the worker is killed, the directory is removed together with the worker's.
    """
    made, link, before = Path(gettempdir(), MEASURE_PREFIX + secrets.token_hex(4)), place / MEASURING, tempfile.tempdir
    link.symlink_to(made)
    try:
        made.mkdir()
        made.chmod(0o755)
        tempfile.tempdir = str(made)
        yield
    finally:
        tempfile.tempdir = before
        _remove_measuring(link)


def _remove_measuring(link: Path) -> None:
    with contextlib.suppress(OSError):  # no link: nothing was measured
        made = Path(os.readlink(link))
        known = made.parent == Path(gettempdir()) and made.name.startswith(MEASURE_PREFIX)
        if known and os.path.lexists(made) and made.lstat().st_uid == os.getuid():
            remove_tree(made)
        link.unlink()


def remove_worker_place(place: Path) -> None:
    _remove_measuring(place / MEASURING)
    remove_tree(place)
    _lock_of(place).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # others are there
        place.parent.rmdir()


def _is_own(place: Path) -> bool:
    found = place.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _lock_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.lock")
