"""Documents that are there whole or not at all, whenever the writer is killed.

Every document is written to a temporary file beside it, synced, moved into place, and the directory synced. Killed at
any instant, a reader sees the old document or the new one; once the call returned, the new one survives a power cut.

Temporary files are called `.proofbox-tmp-<random>`. A writer holds a lock on its temporary for as long as it lives, so
`sweep_temporaries` can tell a dead writer's leftover from a file in use without trusting process ids, which are reused
and mean nothing across pid namespaces.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager

TEMPORARY_PREFIX = ".proofbox-tmp-"

_Path = str | os.PathLike[str]


def write_document(path: _Path, data: bytes, *, mode: int = 0o644, sync: bool = True, follow: bool = True) -> None:
    """Put `data` at `path`, replacing what was there. `mode` is subject to the umask, as for any new file.

    A symbolic link at `path` is replaced, not followed. Raises OSError and leaves the old document when it can't.
    Without `sync` it is whole after a kill, and need not be after a power cut: for what is synced later anyway.
    Without `follow` the directory of `path` may not be a symbolic link either: for one that others may have put there.
    """
    with _directory_of(path, follow) as (directory, name), _temporary(directory, data, mode, sync) as temporary:
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        if sync:
            os.fsync(directory)


def create_only(path: _Path, data: bytes, *, mode: int = 0o644) -> None:
    """Put `data` at `path`, or raise FileExistsError if there is anything at all. Of several racing callers one wins.

    The document appears by a hard link to a finished file, so even the first reader finds it complete. On a file system
    without hard links this raises OSError rather than fall back to something weaker.
    """
    with _directory_of(path) as (directory, name), _temporary(directory, data, mode) as temporary:
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        os.unlink(temporary, dir_fd=directory)
        os.fsync(directory)


def sweep_temporaries(directory: _Path) -> list[str]:
    """Remove the temporary files of writers that have died in `directory` (not below it), and return their names."""
    removed = []
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in sorted(os.listdir(folder)):
            if name.startswith(TEMPORARY_PREFIX) and _remove_if_dead(folder, name):
                removed.append(name)
    finally:
        os.close(folder)
    return removed


def sync_directory(path: _Path) -> None:
    """Make the names in a directory survive a power cut: syncing a new file alone does not save its name."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove_if_dead(folder: int, name: str) -> bool:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=folder)
    except (BlockingIOError, FileNotFoundError):
        return False
    else:
        return True
    finally:
        os.close(fd)


@contextmanager
def _directory_of(path: _Path, follow: bool = True) -> Iterator[tuple[int, str]]:
    parent, name = os.path.split(os.fspath(path))
    if name in ("", ".", ".."):
        raise IsADirectoryError(f"not the name of a document: {os.fspath(path)!r}")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    directory = os.open(parent or ".", flags if follow else flags | os.O_NOFOLLOW)
    try:
        yield directory, name
    finally:
        os.close(directory)


@contextmanager
def _temporary(directory: int, data: bytes, mode: int, sync: bool = True) -> Iterator[str]:
    """A finished, synced and locked temporary file; removed again if the body fails."""
    fd, name = _locked_temporary(directory, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
        yield name
    except BaseException:
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            pass
        raise
    finally:
        os.close(fd)


def _locked_temporary(directory: int, mode: int) -> tuple[int, str]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        name = TEMPORARY_PREFIX + secrets.token_hex(8)
        fd = os.open(name, flags, mode, dir_fd=directory)
        # A sweep may take the file between its creation and its lock. Then it is unlinked, or about to be: start over.
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink == 1:
                return fd, name
        except BlockingIOError:
            pass
        os.close(fd)
