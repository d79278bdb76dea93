"""Write a stored tree to a new directory.

`treewrite`, a small C program, writes all of it except large files. Python writes these, a small tree, and everything
if `treewrite` is not available.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import NamedTuple

from proofbox.core.files.nofollow import directory_below, opened_directory
from proofbox.errors import ProviderUnavailable, WorkspaceCorrupt
from proofbox.sandbox.host.binaries import program
from proofbox.workspace.scanning.candidates import unnamed_file
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.store.trees import rows_of
from proofbox.workspace.timeline.restore import write_file
from proofbox.workspace.tree import RECORD_SIZE, Directory, KnownFile, StoredEntry, int64, times_of

_WORTH_A_PROCESS = 100
"""Trees with fewer entries are written in Python: starting `treewrite` would take longer."""
_OBJECTS = 1000
"""Telling `treewrite` the places of this many objects takes about as long as writing one file in Python."""
_PROCESSES = 2, 8
"""The minimum and maximum number of processes. More than a few wait for each other in the file system."""
_HEAD = struct.Struct("=III32s4352s")
_FOLDER = struct.Struct("=IIIII32sqQ??")
_CORRUPT = {250: "object {} is damaged", 251: "object {} is missing", 252: "malformed tree {}"}


def write_new(store: ObjectStore, root: str, tree: bytes) -> Directory:
    """Write a tree into an empty directory. Return its known state.

    If another process changes the directory at the same time, that state may be wrong, but nothing is written outside
    it.
    """
    # Relative to a descriptor: a path in a snapshot may already have the maximum length without a prefix.
    with opened_directory(root, None) as top:
        written = _written_by_program(store, top, tree) if _is_worth_a_process(store, tree) else None
        if written is None:
            written = _Written(Directory(tree_id=tree), [])
            _write(store, top, "", written.whole, written.incomplete)
        # Children first: afterwards, a directory may not be searchable.
        for path, directory in reversed(written.incomplete):
            _complete(store, top, path, directory)
    return written.whole


class _Written(NamedTuple):
    whole: Directory
    incomplete: list[tuple[str, Directory]]
    """Directories whose modes have to be set, parents first. Their files without an inode have not been written."""


def _is_worth_a_process(store: ObjectStore, tree: bytes) -> bool:
    missing = max(_WORTH_A_PROCESS, len(store) // _OBJECTS)
    waiting = [tree]
    while waiting and missing > 0:
        rows = rows_of(store, waiting.pop())
        missing -= len(rows)
        waiting += [row[2] for row in rows if stat.S_ISDIR(int(row[1], 8))]
    return missing <= 0


def _written_by_program(store: ObjectStore, top: int, tree: bytes) -> _Written | None:
    """Return None if the program can't be started."""
    import subprocess  # only for many files

    least, most = _PROCESSES
    processes = max(least, min(most, os.cpu_count() or 1))
    fds = [top, store.pack_fd]
    with unnamed_file() as tables, unnamed_file() as answers:
        try:
            command = [str(program("treewrite")), *map(str, fds), str(processes), tree.hex()]
            tables.writelines(store.tables())
            tables.flush()
            process = subprocess.Popen(
                command, stdin=tables, stdout=answers, stderr=subprocess.PIPE, pass_fds=fds, env={}
            )
        except (ProviderUnavailable, OSError):  # for example, too many processes
            return None
        try:
            process.communicate()
        except BaseException:
            process.kill()
            process.communicate()  # its other processes also write until they end
            raise
        answers.seek(0)
        data = answers.read()
    if process.returncode != 0:
        raise _failure(process.returncode, data)
    return _known(data)


def _failure(code: int, data: bytes) -> Exception:
    if code == 1:
        _, _, code, digest, path = _HEAD.unpack_from(data)
        if code in _CORRUPT:
            return WorkspaceCorrupt(_CORRUPT[code].format(digest.hex()), op="store")
        if code:
            return OSError(code, os.strerror(code), os.fsdecode(path.rstrip(b"\0")))
    return OSError(f"treewrite ended with {code}")


def _known(data: bytes) -> _Written:
    """Return the directories that the program has written."""
    incomplete = []
    above: list[tuple[str, Directory]] = []
    at = _HEAD.size
    while at < len(data):
        depth, mode, name_size, names_size, count, tree, ctime_ns, ino, _, is_left = _FOLDER.unpack_from(data, at)
        names = at + _FOLDER.size + name_size
        records = names + names_size
        name = os.fsdecode(data[names - name_size : names - 1])
        at = records + count * RECORD_SIZE
        made = Directory(mode, tree, ctime_ns, ino, (data[names : records - 1], data[records:at]))
        del above[depth:]
        path = name
        if above:
            folder, parent = above[-1]
            parent.dirs[name] = made
            path = f"{folder}/{name}" if folder else name
        above.append((path, made))
        if is_left:
            incomplete.append((path, made))
    return _Written(above[0][1], incomplete)


def _write(
    store: ObjectStore, top: int, path: str, directory: Directory, incomplete: list[tuple[str, Directory]]
) -> None:
    """Do the same in Python, for everything below a directory that exists and is empty."""
    incomplete.append((path, directory))
    for row in rows_of(store, directory.tree_id):
        entry = StoredEntry.of_row(row)
        name = os.fsdecode(row[0])
        if stat.S_ISDIR(entry.mode):
            directory.dirs[name] = Directory(entry.mode, entry.digest)
        else:
            directory.files[name] = KnownFile(*entry, 0, 0, 0, 0)
    if directory.dirs:
        with directory_below(top, path) as fd:
            for name in directory.dirs:
                os.mkdir(name, 0o700, dir_fd=fd)
    for name, below in directory.dirs.items():
        _write(store, top, f"{path}/{name}" if path else name, below, incomplete)


def _complete(store: ObjectStore, top: int, path: str, directory: Directory) -> None:
    with directory_below(top, path) as fd:
        for name, known in directory.files.items():
            if not known.ino:
                info = write_file(store, fd, name, StoredEntry(known.mode, known.digest))
                directory.files[name] = KnownFile(known.mode, known.digest, *times_of(info))
        if path:
            os.fchmod(fd, stat.S_IMODE(directory.mode))
            info = os.fstat(fd)
            directory.ctime_ns, directory.ino = int64(info.st_ctime_ns), info.st_ino
    directory.pack()
