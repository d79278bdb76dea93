"""Atomic file writes: a document is complete or absent, even if the writer is killed.

Every document is written to a temporary file beside it, synced and renamed; then the directory is synced. If the writer
is killed, readers see the old document or the new one; after the call returns, the new one survives a power cut.

Temporary files are called `.proofbox-tmp-<random>`. A living writer holds a lock on its temporary file, so
`sweep_temporaries` can distinguish a dead writer's leftover from a file in use without relying on process ids, which
are reused and mean nothing across pid namespaces.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

TEMPORARY_PREFIX = ".proofbox-tmp-"

_Path = str | os.PathLike[str]


def write_document(path: _Path, data: bytes, *, mode: int = 0o644, sync: bool = True, follow: bool = True) -> None:
    """Write `data` to `path`, replacing an existing file. `mode` is subject to the umask, as for any new file.

    A symbolic link at `path` is replaced, not followed. On failure raises OSError and leaves the old document.
    With `sync=False` the write is atomic if the process is killed, but not in a power cut; the caller syncs it later.
    With `follow=False` the parent directory must not be a symbolic link: for directories that others can write to.
    """
    with _directory_of(path, follow) as (directory, name), _temporary(directory, data, mode, sync) as temporary:
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        if sync:
            os.fsync(directory)


@contextmanager
def replacing(path: _Path, data: bytes, *, mode: int = 0o644) -> Iterator[str]:
    """Write `data` to a temporary file beside `path`, and replace the document with it at the end of the body.

    Yields the name of the temporary file, which the body has to sync, maybe together with other files. Then the
    directory is synced as by `write_document`. If the body fails, the old document is left.
    """
    with _directory_of(path) as (directory, name), _temporary(directory, data, mode, sync=False) as temporary:
        yield temporary
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)


def create_only(path: _Path, data: bytes | Iterable[bytes], *, mode: int = 0o644) -> None:
    """Write `data` to `path`, or raise FileExistsError if the path exists. One of several racing callers wins.

    `data` may be pieces. If reading them raises, nothing is created.

    The document appears as a hard link to a finished file, so even the first reader finds it complete. On a file system
    without hard links this raises OSError rather than using a weaker method.
    """
    with _directory_of(path) as (directory, name), _temporary(directory, data, mode) as temporary:
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        os.unlink(temporary, dir_fd=directory)
        os.fsync(directory)


def sweep_temporaries(directory: _Path) -> list[str]:
    """Remove dead writers' temporary files in `directory` (not recursively), and return their names."""
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
    """Sync a directory, so that its names survive a power cut: syncing a new file does not save its name."""
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
        raise IsADirectoryError(f"not a file name: {os.fspath(path)!r}")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    directory = os.open(parent or ".", flags if follow else flags | os.O_NOFOLLOW)
    try:
        yield directory, name
    finally:
        os.close(directory)


@contextmanager
def _temporary(directory: int, data: bytes | Iterable[bytes], mode: int, sync: bool = True) -> Iterator[str]:
    """Yield a complete, synced and locked temporary file. Remove it if the body fails."""
    fd, name = _locked_temporary(directory, mode)
    try:
        for piece in (data,) if isinstance(data, bytes) else data:
            view = memoryview(piece)
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
        name = TEMPORARY_PREFIX + os.urandom(8).hex()
        fd = os.open(name, flags, mode, dir_fd=directory)
        # A sweep may lock the file before this process does, and then unlinks it: start over.
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink == 1:
                return fd, name
        except BlockingIOError:
            pass
        os.close(fd)
