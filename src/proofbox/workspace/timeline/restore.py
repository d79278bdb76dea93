"""Restore a stored tree into a directory.

A file is written to a temporary in the workspace's root and renamed, so that readers see either the old file or the new
one. Directories are opened relative to their parents and never through symbolic links. Entries that no snapshot
contains (ignored names, FIFOs, sockets, devices, unreadable files) stay, together with their directories, unless the
tree has another entry at exactly that path. Paths that may not be changed are skipped, and the rest is restored. Hard
links are broken: each name becomes a separate file. Runs of zeros in large files become holes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from proofbox.core.files.nofollow import opened_directory
from proofbox.core.files.removal import remove_tree
from proofbox.workspace.store.large_objects import write_sparse
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.store.trees import entries_of
from proofbox.workspace.tree import UNSETTLED, Directory, KnownFile, StoredEntry

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FICLONE = 0x40049409
_FEW = 16
_FULL = (errno.ENOTEMPTY, errno.EEXIST)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.ETXTBSY, errno.ENAMETOOLONG)
"""Errors that affect one path only."""
SWAPPED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, *_FULL)
"""Errors that mean that another process changed the files in the meantime: scan again."""


class Restorer:
    """Makes the directory at `root` match a tree. `keep` lists paths that must not be removed."""

    def __init__(self, root: str, store: ObjectStore, temporary: str, keep: Collection[str] = ()) -> None:
        self._root = root
        self._store = store
        self._temporary = temporary
        self._keep = frozenset(keep)
        self.left: dict[str, str] = {}
        self.visited: set[str] = set()
        """The directories in which something may have been changed."""
        self._written = 0
        self._devices: set[int] = set()

    def restore(self, current: Directory, tree: bytes) -> None:
        """Restore a tree and sync it. `current` is the directory's known state, which is updated."""
        with opened_directory(self._root, None) as self._root_fd:
            self.remove_temporary()
            self._directory(self._root_fd, current, tree, "")
            if len(self._devices) > 1:
                os.sync()
            elif self._written > _FEW:
                _sync_file_system(self._root_fd)

    def remove_temporary(self) -> None:
        """Remove the temporary of a restore that was killed, or any other entry with that name."""
        remove_tree(os.path.join(self._root, self._temporary))

    def _directory(self, fd: int, current: Directory, tree: bytes, path: str) -> None:
        target = entries_of(self._store, tree)
        self.visited.add(path)
        _make_writable(fd)
        current.invalidate()
        current.ctime_ns = UNSETTLED
        for name in [*current.files, *current.dirs]:
            entry = target.get(name)
            if entry is None or (entry.kind == "directory") != (name in current.dirs):
                with self._recording_skips(_join(path, name)):
                    self._remove(fd, current, name, _join(path, name))
        for name, entry in target.items():
            if entry.kind == "directory":
                with self._recording_skips(_join(path, name)):
                    self._subdirectory(fd, current, name, entry, _join(path, name))
                continue
            known = current.files.get(name)
            if known is None or known.digest != entry.digest or known.mode != entry.mode:
                with self._recording_skips(_join(path, name)):
                    self._file(fd, name, entry)
                    current.files[name] = KnownFile(entry.mode, entry.digest, 0, 0, UNSETTLED, 0)
        if self._written <= _FEW:
            os.fsync(fd)

    def _subdirectory(self, fd: int, current: Directory, name: str, entry: StoredEntry, path: str) -> None:
        child = current.dirs.get(name)
        if child is not None and child.tree_id == entry.digest and child.mode == entry.mode:
            return
        if child is None:
            child = Directory(mode=entry.mode)
            try:
                os.mkdir(name, 0o700, dir_fd=fd)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=fd)
                    os.mkdir(name, 0o700, dir_fd=fd)
        with opened_directory(name, fd) as below:
            current.dirs[name] = child
            self.visited.add(path)
            if child.tree_id != entry.digest:
                self._directory(below, child, entry.digest, path)
            if stat.S_IMODE(os.fstat(below).st_mode) != stat.S_IMODE(entry.mode):
                os.fchmod(below, stat.S_IMODE(entry.mode))
            child.mode = entry.mode

    def _file(self, fd: int, name: str, entry: StoredEntry) -> None:
        self._written += 1
        # In the root, where leftovers of a killed process are found. A rename cannot cross a mount point.
        place = self._root_fd if self._same_device(fd) else fd
        try:
            write_file(self._store, place, self._temporary, entry, sync=self._written <= _FEW)
        except OSError:
            unlink_if_there(self._temporary, place)
            raise
        try:
            os.rename(self._temporary, name, src_dir_fd=place, dst_dir_fd=fd)
        except OSError as error:
            unlink_if_there(self._temporary, place)
            if error.errno not in (errno.EISDIR, *_FULL):
                raise
            raise _NotRestored("a directory with entries that no snapshot contains is in its place") from None

    def _same_device(self, fd: int) -> bool:
        device = os.fstat(fd).st_dev
        self._devices.add(device)
        return device == os.fstat(self._root_fd).st_dev

    def _remove(self, fd: int, current: Directory, name: str, path: str) -> None:
        if path in self._keep:
            raise _NotRestored("it could not be read when the snapshot was taken")
        child = current.dirs.get(name)
        if child is None:
            unlink_if_there(name, fd)
            del current.files[name]
            return
        child.invalidate()
        child.ctime_ns = UNSETTLED
        with opened_directory(name, fd) as below:
            _make_writable(below)
            for each in [*child.files, *child.dirs]:
                with self._recording_skips(_join(path, each)):
                    self._remove(below, child, each, _join(path, each))
        try:
            os.rmdir(name, dir_fd=fd)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise _NotRestored("it is a mount point") from None
            if error.errno not in _FULL:
                raise
            raise _NotRestored("it contains entries that could not be removed") from None
        del current.dirs[name]

    @contextmanager
    def _recording_skips(self, path: str) -> Iterator[None]:
        """Handle one path: if it may not be changed, record it and continue."""
        try:
            yield
        except _NotRestored as reason:
            self.left[path] = str(reason)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            self.left[path] = error.strerror or str(error)


class _NotRestored(Exception):
    """The reason why a path could not be restored."""


def write_file(store: ObjectStore, fd: int, name: str, entry: StoredEntry, *, sync: bool = False) -> os.stat_result:
    """Create a file or link, and return its stat result."""
    if stat.S_ISLNK(entry.mode):
        os.symlink(store.get(entry.digest), os.fsencode(name), dir_fd=fd)
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    mode = stat.S_IMODE(entry.mode)
    out = os.open(name, _CREATE, mode & 0o777, dir_fd=fd)
    try:
        large = store.large_file(entry.digest)
        if large is None:
            data = store.get(entry.digest)
            written = os.write(out, data) if data else 0
            while written < len(data):
                written += os.write(out, memoryview(data)[written:])
        elif not _cloned(large, out):
            write_sparse(out, store.chunks(entry.digest))
        info = os.fstat(out)
        if stat.S_IMODE(info.st_mode) != mode:  # usually because of the umask
            os.fchmod(out, mode)
            info = os.fstat(out)
        if sync:
            os.fsync(out)
        return info
    finally:
        os.close(out)


def _cloned(source: Path, out: int) -> bool:
    """Share the blocks of a file if the file system supports it (btrfs, XFS). The content is not read and therefore
    not checked: `verify` does that."""
    with source.open("rb") as file:
        try:
            fcntl.ioctl(out, _FICLONE, file.fileno())
        except OSError:
            return False
    return True


def _sync_file_system(fd: int) -> None:
    if sys.platform != "linux" or ctypes.CDLL(None).syncfs(fd) != 0:
        os.sync()


def _make_writable(fd: int) -> None:
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & 0o300 != 0o300:
        with suppress(PermissionError):  # another user's directory: changing its entries may still be allowed
            os.fchmod(fd, mode | 0o300)


def unlink_if_there(name: str, fd: int) -> None:
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        pass


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
