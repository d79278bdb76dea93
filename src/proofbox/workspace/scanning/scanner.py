"""Bring the directory in memory up to date with the disk, reading only files whose times have changed.

A file counts as unchanged if its size, inode, mtime and ctime are the same as when it was read. Times are coarse: a
second write within one clock tick does not change them. A file whose ctime is not older than the start of the scan is
therefore marked UNSETTLED and read again next time. `touch -d` cannot set ctime back.

A process that has mapped a file can write to it without changing its times. `writeback.py` decides whether a file's
times reveal such writes; if not, the file is UNSETTLED. A sealed scan ignores times and reads every file.

Special cases:
- FIFOs, sockets and devices, unreadable files and directories, files larger than MAX_FILE_SIZE bytes, and directories
  deeper than MAX_DEPTH levels or with a path longer than MAX_PATH bytes are skipped and listed in the snapshot with the
  reason;
- a file that changes while it is read is read up to three times; then the last content is stored and the snapshot
  lists the file as unstable;
- each name of a hard link is a separate file; a sparse file is stored as its bytes, including zeros;
- directories are opened relative to their parents and never through symbolic links, so a directory that is replaced by
  a link during the scan is not followed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from proofbox.core.files.nofollow import DIRECTORY, opened_directory
from proofbox.workspace.scanning.candidates import changed_candidates
from proofbox.workspace.scanning.ignore import Ignore
from proofbox.workspace.scanning.mappings import MappedFiles
from proofbox.workspace.scanning.writeback import Writeback, protects_on_writeback
from proofbox.workspace.store import pack
from proofbox.workspace.store.large_objects import LARGE, chunks_of
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.tree import PAGED, UNSETTLED, Directory, KnownFile, int64, kept_mode, times_of

MAX_DEPTH = 200
MAX_PATH = 3839
"""Leaves room for a file name: the kernel accepts paths of up to 4096 bytes, including the terminating NUL."""
MAX_FILE_SIZE = 16 << 30
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_TRIES = 3
_TELL_EVERY = 500
_PAGE = 4096
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SECOND = 1_000_000_000
_CLOCK_REALTIME_COARSE = 5  # the clock of file timestamps on Linux; Python has no constant for it


def beyond(path: str) -> str:
    """Return why a directory with this path is not scanned, or an empty string if it is."""
    if path.count("/") >= MAX_DEPTH:
        return f"deeper than {MAX_DEPTH} levels"
    # A character takes at most four bytes, so most paths can be checked without encoding them.
    if len(path) > MAX_PATH // 4 and len(os.fsencode(path)) > MAX_PATH:
        return f"its path is longer than {MAX_PATH} bytes"
    return ""


class ContentStore(Protocol):
    """Receives the content of every file that is read, and the list of every changed directory."""

    def __contains__(self, digest: bytes) -> bool: ...

    def put(self, kind: bytes, data: bytes) -> bytes:
        """Add content. Return 32 bytes that stand for it, usually its digest."""

    def put_stream(self, chunks: Iterable[bytes]) -> bytes:
        """Add the content of a large file."""


class Watcher(Protocol):
    """Receives every directory just before it is listed, every removed directory, and failures to watch one."""

    def watch(self, path: str, fd: int) -> None: ...

    def watches(self, path: str) -> bool: ...

    def forget(self, path: str) -> None: ...

    def mark_incomplete(self) -> None: ...


class Scanner:
    def __init__(
        self,
        root: str,
        store: ContentStore,
        ignore: Ignore,
        watcher: Watcher | None = None,
        *,
        max_file_size: int = MAX_FILE_SIZE,
    ) -> None:
        self._root = root
        self._store = store
        self._ignore = ignore
        self._max_file_size = max_file_size
        self._watcher = watcher
        self._started_at = 0
        self._skipped: dict[str, dict[str, str]] = {}
        self.unstable: dict[str, str] = {}
        self.on_progress: Callable[[int], None] | None = None
        self._read = 0
        self._removed: dict[int, Directory] = {}
        self._added: list[tuple[str, str]] | None = None
        self._writeback = Writeback()
        self._mapped = MappedFiles(root)
        self._relies_on_watcher = False
        """Whether every change was reported by the watcher. A full scan does not rely on reports."""
        self._reads_all = False
        """Whether files are read even when their times have not changed."""
        self._only_within = False
        """Whether the directories below one that was replaced are not scanned on their own."""
        self.steps = 0
        """The work of the last scan: one step for each name listed, each file read, and each 4 KiB of content."""
        self.changed = 0
        """Number of paths the last scan found changed: the same as `diff.differences` between the old and new tree."""

    @property
    def skipped(self) -> dict[str, str]:
        """The skipped paths, with the reason."""
        return {
            f"{folder}/{name}" if folder else name: reason
            for folder, names in self._skipped.items()
            for name, reason in names.items()
        }

    def all(
        self, directory: Directory, *, thorough: bool = False, within: Mapping[str, set[str] | None] | None = None
    ) -> None:
        """Scan everything. `thorough` lists every directory and reads every file regardless of times.

        `within` lists the directories in which something may have changed, if they are known, and then only those of
        them and new ones are scanned.
        """
        self._begin(relies=False, reads_all=thorough, only_within=within is not None)
        for path in list(self._skipped) if within is None else within:
            self._skipped.pop(path, None)
        with opened_directory(self._root, None) as root:
            if self._watcher:
                self._watch(root, [path for path, _ in directory.walk()] if within is None else within)
            if within is None and thorough:
                within = dict.fromkeys([path for path, _ in directory.walk()])
            self._scan_dirty(root, directory, changed_candidates(root, directory) if within is None else within)
        self._name_trees(directory)
        for _, each in directory.walk():
            if each.weight <= PAGED:
                each.pack()

    def scan_names(self, directory: Directory, dirty: Mapping[str, set[str]], within: Iterable[str] = ()) -> None:
        """Scan these names in these directories, and everything below the names that are directories.

        Also scans files that a process has mapped, because writes through a mapping are not reported, and the
        directories of `within` that have not been watched so far.
        """
        self._begin(relies=True, only_within=True)
        unwatched = [path for path in within if not self._watched(path)]
        changed: dict[str, set[str] | None] = {path: set(names) for path, names in dirty.items()}
        changed.update(dict.fromkeys(unwatched))
        for folder, name in self._mapped.changed(directory):
            names = changed.setdefault(folder, set())
            if names is not None:
                names.add(name)
        with opened_directory(self._root, None) as root:
            self._watch(root, unwatched)
            self._scan_dirty(root, directory, changed)
        self._name_trees(directory)

    def _begin(self, *, relies: bool, only_within: bool, reads_all: bool = False) -> None:
        self._started_at = _file_clock()
        self._relies_on_watcher = relies
        self._reads_all = reads_all
        self._only_within = only_within
        self._writeback.forget_devices()
        self.unstable.clear()
        self.changed = self.steps = self._read = 0

    def _watch(self, root: int, paths: Iterable[str]) -> None:
        """Watch known directories before scanning, so that later changes are reported."""
        assert self._watcher is not None  # noqa: S101
        for path in paths:
            try:
                with opened_directory(path or ".", root) as fd:
                    self._watcher.watch(path, fd)
            except OSError as error:
                if error.errno not in (*_GONE, errno.EACCES):  # the scan handles these
                    self._watcher.mark_incomplete()

    def _scan_dirty(self, root: int, directory: Directory, dirty: Mapping[str, set[str] | None]) -> None:
        # Process added directories after removed ones: an added directory may be a removed one that was moved.
        self._removed, self._added = {}, []
        for path in sorted(dirty):
            self._dirty_directory(root, directory, path, dirty[path])
        added, self._added = self._added, None
        for path, name in added:
            self._dirty_directory(root, directory, path, {name})
        self._removed = {}

    def _dirty_directory(self, root: int, directory: Directory, path: str, names: set[str] | None) -> None:
        parts = path.split("/") if path else []
        line = [directory]
        fd = os.dup(root)
        try:
            for part in parts:
                child = line[-1].dirs.get(part)
                if child is None:
                    return  # removed or new: its parent is dirty as well, and handles it
                line.append(child)
                try:
                    below = os.open(part, DIRECTORY, dir_fd=fd)
                except OSError as error:
                    parts = parts[: len(line) - 1]
                    self._not_opened(line[-2], "/".join(parts[:-1]), part, error)
                    break
                os.close(fd)
                fd = below
            else:
                self._names_of(fd, line, parts, path, names)
        finally:
            os.close(fd)
        for parent, part, child in zip(line[-2::-1], reversed(parts), line[:0:-1], strict=True):
            if not child.tree_id:
                parent.touch(part)

    def _names_of(self, fd: int, line: list[Directory], parts: list[str], path: str, names: set[str] | None) -> None:
        info = os.fstat(fd)
        mode = stat.S_IFDIR | stat.S_IMODE(info.st_mode)
        if parts and line[-1].mode != mode:
            line[-1].mode = mode
            self._touch(line[-2], parts[-1])
        if names is None and parts and self._only_within and line[-1].ino != info.st_ino:
            self._directory(fd, line[-1], path)  # not the directory known so far
            return
        if names is None:
            names = self._list_again(fd, line[-1], path, info)
        for name in names:
            self._entry(fd, line[-1], path, name)

    def _list_again(self, fd: int, directory: Directory, path: str, info: os.stat_result) -> set[str]:
        """List a directory again. Return new names and files to read. Removes missing names from `directory`."""
        with os.scandir(fd) as entries:
            listed = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        self.steps += len(listed)
        # Also a name that is no longer a directory: what was below it need not be scanned on its own.
        to_scan = {
            name for name, is_dir in listed.items() if name not in (directory.dirs if is_dir else directory.files)
        }
        for name in [name for name in (*directory.files, *directory.dirs) if name not in listed]:
            self._remove(directory, path, name)
        if self._reads_all:
            to_scan.update(directory.files)
        for name, known in directory.files.items() if not self._reads_all else ():
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                to_scan.add(name)
                continue
            if times_of(found) != known[2:]:
                to_scan.add(name)
        directory.ctime_ns, directory.ino = self._settled(info.st_ctime_ns), info.st_ino
        return to_scan

    def _directory(self, fd: int, directory: Directory, path: str) -> None:
        """Scan everything in and below a directory."""
        if self._watcher:
            self._watcher.watch(path, fd)
        to_scan = self._list_again(fd, directory, path, os.fstat(fd))
        for name in to_scan:
            self._entry(fd, directory, path, name)
        for name, child in list(directory.dirs.items()):
            if name not in to_scan:
                self._descend(fd, directory, path, name, child)

    def _entry(self, fd: int, parent: Directory, folder: str, name: str) -> None:
        """Scan one name."""
        path = f"{folder}/{name}" if folder else name
        self._skipped.get(folder, {}).pop(name, None)
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return self._remove(parent, folder, name)
        except OSError as error:
            return self._skip(parent, folder, name, error.strerror or "unreadable")
        if self._ignore and self._ignore.matches(folder, name):
            return self._remove(parent, folder, name)
        if stat.S_ISDIR(info.st_mode):
            if name in parent.files:
                self._remove(parent, folder, name)
            child = parent.dirs.get(name)
            if child is None and self._added is not None:
                self._added.append((folder, name))
                return None
            # The same directory as before, and watched: changes inside were reported separately.
            reported = (
                self._relies_on_watcher and child is not None and child.ino == info.st_ino and self._watched(path)
            )
            return self._descend(fd, parent, folder, name, child, whole=not reported)
        if name in parent.dirs:
            self._remove(parent, folder, name)
        if stat.S_ISREG(info.st_mode) and info.st_size > self._max_file_size:
            return self._skip(parent, folder, name, f"larger than {self._max_file_size} bytes")
        if not (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
            return self._skip(parent, folder, name, "not a file, directory or symbolic link")
        try:
            if stat.S_ISLNK(info.st_mode):
                known = self._link(fd, name, info)
            else:
                known = self._file(fd, path, name, parent.files.get(name))
        except FileNotFoundError:
            return self._remove(parent, folder, name)
        except OSError as error:
            # ELOOP, EINVAL: it was replaced since. Its new content is read by the next scan.
            return self._skip(parent, folder, name, error.strerror or "unreadable")
        before = parent.files.get(name)
        if before is None or before.digest != known.digest or before.mode != known.mode:
            self._touch(parent, name)
        parent.files[name] = known
        self._mapped.note(known.ino, folder, name)
        return None

    def _watched(self, path: str) -> bool:
        return self._watcher is not None and self._watcher.watches(path)

    def _touch(self, parent: Directory, name: str) -> None:
        parent.touch(name)
        self.changed += 1

    def _descend(
        self, fd: int, parent: Directory, folder: str, name: str, child: Directory | None, *, whole: bool = True
    ) -> None:
        path = f"{folder}/{name}" if folder else name
        if too_far := beyond(path):
            return self._skip(parent, folder, name, too_far)
        try:
            with opened_directory(name, fd) as below:
                info = os.fstat(below)
                mode = stat.S_IFDIR | stat.S_IMODE(info.st_mode)
                if child is None:
                    # Reuse what is known of a directory that was moved here, instead of reading it again.
                    child = parent.dirs[name] = self._removed.pop(info.st_ino, Directory())
                    self._touch(parent, name)
                    before, child.mode = self.changed, mode
                    self._directory(below, child, path)
                    self.changed = before + _paths_below(child)
                    return None
                if child.mode != mode:
                    child.mode = mode
                    self._touch(parent, name)
                if whole:
                    self._directory(below, child, path)
        except OSError as error:
            return self._not_opened(parent, folder, name, error)
        if not child.tree_id:
            parent.touch(name)
        return None

    def _not_opened(self, parent: Directory, folder: str, name: str, error: OSError) -> None:
        """Handle a directory that could not be opened: removed, replaced by something else, or not readable."""
        if error.errno in _GONE:
            parent.ctime_ns = UNSETTLED
            self._remove(parent, folder, name)
        else:
            self._skip(parent, folder, name, error.strerror or "unreadable")

    def _link(self, fd: int, name: str, info: os.stat_result) -> KnownFile:
        digest = self._store.put(pack.BLOB, os.fsencode(os.readlink(name, dir_fd=fd)))
        return self._known(stat.S_IFLNK, digest, info)

    def _file(self, folder: int, path: str, name: str, before: KnownFile | None) -> KnownFile:
        self._read += 1
        if self.on_progress is not None and self._read % _TELL_EVERY == 0:
            self.on_progress(self._read)
        fd = os.open(name, _OPEN_FILE, dir_fd=folder)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise OSError(errno.EINVAL, "replaced while it was scanned")
            if self._reads_all and before is not None and before[2:] == times_of(info):
                # If its times revealed all writes so far, they still do.
                digest, _ = self._content(fd, info.st_size)
                if digest == before.digest and times_of(os.fstat(fd)) == before[2:]:
                    return before
            start = not self._relies_on_watcher or info.st_ino in self._mapped
            shown = self._writeback.times_show_edits(fd, info.st_dev, start=start)
            info = os.fstat(fd)
            for _ in range(_TRIES):
                if info.st_size > self._max_file_size:  # it has grown since
                    raise OSError(errno.EFBIG, f"larger than {self._max_file_size} bytes")
                digest, size = self._content(fd, info.st_size)
                earlier, info = info, os.fstat(fd)
                if size == info.st_size and earlier.st_mtime_ns == info.st_mtime_ns:
                    known = self._known(info.st_mode, digest, info)
                    return known if shown else known._replace(ctime_ns=UNSETTLED)
            self.unstable[path] = "changed while it was read"
            return self._known(info.st_mode, digest, info)._replace(ctime_ns=UNSETTLED)
        finally:
            os.close(fd)

    def _content(self, fd: int, size: int) -> tuple[bytes, int]:
        self.steps += 1 + size // _PAGE
        if size <= LARGE:
            data = os.pread(fd, size + 1, 0)
            return self._store.put(pack.BLOB, data), len(data)
        found, position = hashlib.sha256(), 0
        for chunk in chunks_of(fd, self._max_file_size):
            found.update(chunk)
            position += len(chunk)
        if found.digest() not in self._store:
            return self._store.put_stream(chunks_of(fd, self._max_file_size)), position
        return found.digest(), position

    def _known(self, mode: int, digest: bytes, info: os.stat_result) -> KnownFile:
        known = KnownFile(kept_mode(mode), digest, *times_of(info))
        return known._replace(ctime_ns=self._settled(info.st_ctime_ns))

    def _settled(self, ctime_ns: int) -> int:
        return _settled(ctime_ns, self._started_at)

    def _skip(self, parent: Directory, folder: str, name: str, reason: str) -> None:
        self._remove(parent, folder, name)
        self._skipped.setdefault(folder, {})[name] = reason
        parent.ctime_ns = UNSETTLED  # so that the next scan lists it and reports this name again

    def _remove(self, parent: Directory, folder: str, name: str) -> None:
        if parent.files.pop(name, None) is not None:
            self._touch(parent, name)
        child = parent.dirs.pop(name, None)
        if child is not None:
            self._touch(parent, name)
            self.changed += _paths_below(child)
            self._removed[child.ino] = child
            for below, _ in child.walk(f"{folder}/{name}" if folder else name):
                self._skipped.pop(below, None)
                if self._watcher:
                    self._watcher.forget(below)

    def _name_trees(self, directory: Directory) -> None:
        if not directory.tree_id:
            for name, child in directory.dirs.items():
                if not child.tree_id:
                    self._name_trees(child)
                    directory.touch(name)
            directory.tree_id = self._store.put(
                pack.TREE, directory.encode(lambda page: self._store.put(pack.TREE, page))
            )


def invalidate_missing(directory: Directory, store: ObjectStore) -> bool:
    """Mark content that the store no longer has, so that it is read again. Return whether all content is stored."""
    missing = [name for name, record in directory.records() if record[1] not in store]
    for name in missing:
        del directory.files[name]
    below = [invalidate_missing(child, store) for child in directory.dirs.values()]
    if missing:
        directory.ctime_ns = UNSETTLED
    unknown = not directory.tree_id or directory.tree_id not in store
    if missing or unknown or not all(below) or directory.weight > PAGED:
        directory.invalidate()
    return bool(directory.tree_id)


def _paths_below(directory: Directory) -> int:
    return sum(each.weight + len(each.dirs) for _, each in directory.walk())


def _file_clock() -> int:
    """Return the current timestamp for files, or a slightly earlier one."""
    if sys.platform == "linux":
        return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
    return time.time_ns() - _SECOND


def settle(directory: Directory, root: str) -> None:
    """Mark files and directories that were just written as UNSETTLED if they can change without a change of their
    times."""
    with opened_directory(root, None) as fd:
        _settle(directory, _file_clock(), protects_on_writeback(fd))


def _settle(directory: Directory, now: int, times_show_edits: bool) -> None:
    for _, each in directory.walk():
        each.ctime_ns = _settled(each.ctime_ns, now)
        # Files that were just written share a few times.
        unsettled = {
            ctime_ns for ctime_ns in each.ctimes() if not times_show_edits or _settled(ctime_ns, now) == UNSETTLED
        }
        if unsettled:
            for name, known in each.files.items():
                if known.ctime_ns in unsettled:
                    each.files[name] = known._replace(ctime_ns=UNSETTLED)
            each.pack()


def _settled(ctime_ns: int, now: int) -> int:
    """Return a ctime if every change from `now` on will alter it, else UNSETTLED."""
    # A file system with a resolution of one second cannot distinguish changes within the last one or two seconds.
    latest = now - (2 * _SECOND if ctime_ns % _SECOND == 0 else 0)
    return int64(ctime_ns) if ctime_ns < latest else UNSETTLED
