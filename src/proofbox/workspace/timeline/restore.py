"""Putting a stored tree back into a directory, and making a new directory of one.

A file appears by a rename from a finished temporary in the workspace's root, so whoever looks finds the old file or the
new one. Directories are opened one from the other and never through a symbolic link. What no snapshot holds (ignored
names, FIFOs, sockets, devices, unreadable files) is left where it is, with the directories that hold it, unless the
tree has something else under the very name of a file like that. What may not be changed is left, too, and the rest is
put back. Hard links are cut: each name becomes its own file. Runs of zeros in large files become holes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from proofbox.core.files.removal import remove_tree
from proofbox.workspace.scanning.directories import opened
from proofbox.workspace.store.large_objects import write_sparse
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.store.trees import entries_of
from proofbox.workspace.tree import UNSETTLED, Directory, KnownFile, StoredEntry, times_of

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_THREADS = 2
_FICLONE = 0x40049409
_FEW = 16
_FULL = (errno.ENOTEMPTY, errno.EEXIST)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.ETXTBSY, errno.ENAMETOOLONG)
"""Of one path, which the others do not suffer from."""
SWAPPED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, *_FULL)
"""Something else changed the files meanwhile: to be looked at again."""


class Restorer:
    """Makes the directory at `root` hold a tree. `keep` are paths that are not to be removed."""

    def __init__(self, root: str, store: ObjectStore, temporary: str, keep: Collection[str] = ()) -> None:
        self._root = root
        self._store = store
        self._temporary = temporary
        self._keep = frozenset(keep)
        self.left: dict[str, str] = {}
        self._written = 0
        self._devices: set[int] = set()

    def restore(self, current: Directory, tree: bytes) -> None:
        """`current` is what the directory holds now, and is kept up to date. When it returns, all is on the disk."""
        with opened(self._root, None) as self._root_fd:
            self.remove_temporary()
            self._directory(self._root_fd, current, tree, "")
            if len(self._devices) > 1:
                os.sync()
            elif self._written > _FEW:
                _sync_file_system(self._root_fd)

    def remove_temporary(self) -> None:
        """Of a restore that was killed, or whatever somebody put there."""
        remove_tree(os.path.join(self._root, self._temporary))

    def _directory(self, fd: int, current: Directory, tree: bytes, path: str) -> None:
        target = entries_of(self._store, tree)
        _make_writable(fd)
        current.distrust()
        current.ctime_ns = UNSETTLED
        for name in [*current.files, *current.dirs]:
            entry = target.get(name)
            if entry is None or (entry.kind == "directory") != (name in current.dirs):
                with self._noting(_join(path, name)):
                    self._remove(fd, current, name, _join(path, name))
        for name, entry in target.items():
            if entry.kind == "directory":
                with self._noting(_join(path, name)):
                    self._subdirectory(fd, current, name, entry, _join(path, name))
                continue
            known = current.files.get(name)
            if known is None or known.digest != entry.digest or known.mode != entry.mode:
                with self._noting(_join(path, name)):
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
        with opened(name, fd) as below:
            current.dirs[name] = child
            if child.tree_id != entry.digest:
                self._directory(below, child, entry.digest, path)
            if stat.S_IMODE(os.fstat(below).st_mode) != stat.S_IMODE(entry.mode):
                os.fchmod(below, stat.S_IMODE(entry.mode))
            child.mode = entry.mode

    def _file(self, fd: int, name: str, entry: StoredEntry) -> None:
        self._written += 1
        # In the root, where a dead process's leftover is found; across a mount point nothing can be moved.
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
            raise _Left("a directory with something that no snapshot holds is in its place") from None

    def _same_device(self, fd: int) -> bool:
        device = os.fstat(fd).st_dev
        self._devices.add(device)
        return device == os.fstat(self._root_fd).st_dev

    def _remove(self, fd: int, current: Directory, name: str, path: str) -> None:
        if path in self._keep:
            raise _Left("it was not read when the snapshot was taken")
        child = current.dirs.get(name)
        if child is None:
            unlink_if_there(name, fd)
            del current.files[name]
            return
        child.distrust()
        child.ctime_ns = UNSETTLED
        with opened(name, fd) as below:
            _make_writable(below)
            for each in [*child.files, *child.dirs]:
                with self._noting(_join(path, each)):
                    self._remove(below, child, each, _join(path, each))
        try:
            os.rmdir(name, dir_fd=fd)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise _Left("something is mounted there") from None
            if error.errno not in _FULL:
                raise
            raise _Left("it holds something that is left") from None
        del current.dirs[name]

    @contextmanager
    def _noting(self, path: str) -> Iterator[None]:
        """Around what is done for one path: where that may not be, it is left as it is."""
        try:
            yield
        except _Left as reason:
            self.left[path] = str(reason)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            self.left[path] = error.strerror or str(error)


class _Left(Exception):
    """A path is not as the tree has it, for this reason."""


def write_file(store: ObjectStore, fd: int, name: str, entry: StoredEntry, *, sync: bool = False) -> os.stat_result:
    """A new file or link of that name; what the file system says of it."""
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
        if stat.S_IMODE(info.st_mode) != mode:  # the umask's doing, most often
            os.fchmod(out, mode)
            info = os.fstat(out)
        if sync:
            os.fsync(out)
        return info
    finally:
        os.close(out)


def write_new(store: ObjectStore, root: str, tree: bytes) -> Directory:
    """Write a tree into an empty directory that nobody else knows of. What it then holds."""
    made: list[tuple[str, Directory, dict[str, StoredEntry]]] = []

    def directories(path: str, tree: bytes, mode: int) -> Directory:
        directory = Directory(mode=mode, tree_id=tree)
        entries = entries_of(store, tree)
        made.append((path, directory, entries))
        for name, entry in entries.items():
            if stat.S_ISDIR(entry.mode):
                os.mkdir(_join(path, name), 0o700, dir_fd=top)
                directory.dirs[name] = directories(_join(path, name), entry.digest, entry.mode)
        return directory

    def files(job: tuple[str, Directory, dict[str, StoredEntry]]) -> None:
        path, directory, entries = job
        with opened(path or ".", top) as fd:
            for name, entry in entries.items():
                if not stat.S_ISDIR(entry.mode):
                    info = write_file(store, fd, name, entry)
                    directory.files[name] = KnownFile(entry.mode, entry.digest, *times_of(info))
        directory.pack()
        entries.clear()

    # From a handle on it: a path in a snapshot may be as long as any may be, and here more would come before it.
    with opened(root, None) as top:
        whole = directories("", tree, 0)
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(files, made):
                pass
        for path, directory, _ in reversed(made[1:]):
            os.chmod(path, stat.S_IMODE(directory.mode), dir_fd=top)
    return whole


def _cloned(source: Path, out: int) -> bool:
    """Share the blocks of a file, where the file system can (btrfs, XFS). What isn't read isn't checked: `verify` is
    for that."""
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
        with suppress(PermissionError):  # of somebody else: what is to be changed in it says whether it may be
            os.fchmod(fd, mode | 0o300)


def unlink_if_there(name: str, fd: int) -> None:
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        pass


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
