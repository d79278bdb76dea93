"""Write a stored tree to a new directory.

Processes of `treewrite`, a small C program, write the files in batches, while Python reads the trees and creates the
directories. Python writes symbolic links and large files, a small number of files, and everything if `treewrite` is not
available.
"""

from __future__ import annotations

import os
import stat
import struct
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from proofbox.core.files.nofollow import directory_below, opened_directory
from proofbox.errors import ProviderUnavailable, WorkspaceCorrupt
from proofbox.sandbox.host.binaries import program
from proofbox.workspace.scanning.candidates import unnamed_file
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.store.trees import rows_of
from proofbox.workspace.timeline.restore import write_file
from proofbox.workspace.tree import RECORD_SIZE, Directory, KnownFile, StoredEntry, int64, times_of

if TYPE_CHECKING:
    import subprocess
    from typing import IO

_FIRST_BATCH, _LARGEST_BATCH = 256, 4096
"""Numbers of files. Batches grow, so that the first process starts early and later ones have more to do."""
_BATCH_BYTES = 16 << 20
_WORTH_A_PROCESS = 100
_PROCESSES = 2, 8
"""The minimum and maximum number of processes. More than a few wait for each other in the file system."""
_HEAD = struct.Struct("=III")
_PLACE = struct.Struct("=I32sQQ")
_DAMAGED = 250


def write_new(store: ObjectStore, root: str, tree: bytes) -> Directory:
    """Write a tree into an empty directory. Return its known state.

    If another process changes the directory at the same time, that state may be wrong, but nothing is written outside
    it.
    """
    # Relative to a descriptor: a path in a snapshot may already have the maximum length without a prefix.
    with opened_directory(root, None) as top:
        writing = _NewTree(store, top)
        try:
            whole = writing.directory("", tree, 0)
            writing.finish()
        finally:
            writing.stop()
    return whole


class _Files(NamedTuple):
    """New files of one directory."""

    path: str
    directory: Directory
    names: list[bytes]
    places: list[bytes]
    """For each name: mode, digest, offset and length in the pack."""


class _Batch(NamedTuple):
    process: subprocess.Popen[bytes]
    answers: IO[bytes]
    parts: list[_Files]


class _NewTree:
    def __init__(self, store: ObjectStore, top: int) -> None:
        self._store = store
        self._top = top
        try:
            self._treewrite: Path | None = program("treewrite")
        except ProviderUnavailable:
            self._treewrite = None
        self._directories: list[tuple[str, Directory]] = []
        self._waiting: list[_Files] = []
        self._waiting_files = self._waiting_bytes = 0
        self._room = _FIRST_BATCH
        self._running: deque[_Batch] = deque()
        least, most = _PROCESSES
        self._processes = max(least, min(most, os.cpu_count() or 1))

    def directory(self, path: str, tree: bytes, mode: int) -> Directory:
        """Write everything below a directory that exists and is empty. `finish` has to be called after this."""
        made = Directory(mode=mode, tree_id=tree)
        self._directories.append((path, made))
        files, others, below = _Files(path, made, [], []), [], []
        size = 0
        for row in rows_of(self._store, tree):
            entry = StoredEntry.of_row(row)
            place = self._store.place(entry.digest) if stat.S_ISREG(entry.mode) else None
            if stat.S_ISDIR(entry.mode):
                below.append((os.fsdecode(row[0]), entry))
            elif place is None:
                others.append((os.fsdecode(row[0]), entry))
            else:
                files.names.append(row[0])
                files.places.append(_PLACE.pack(entry.mode, entry.digest, *place))
                size += place[1]
        if others:
            self._write(path, made, others)
        if files.names:
            self._add(files, size)
        if below:
            with directory_below(self._top, path) as fd:
                for name, _ in below:
                    os.mkdir(name, 0o700, dir_fd=fd)
        for name, entry in below:
            made.dirs[name] = self.directory(f"{path}/{name}" if path else name, entry.digest, entry.mode)
        return made

    def finish(self) -> None:
        """Wait until everything is written, and set the modes of the directories."""
        self._start()
        while self._running:
            self._collect(self._running.popleft())
        for path, directory in reversed(self._directories[1:]):
            with directory_below(self._top, path) as fd:
                os.fchmod(fd, stat.S_IMODE(directory.mode))
                info = os.fstat(fd)
            directory.ctime_ns, directory.ino = int64(info.st_ctime_ns), info.st_ino

    def stop(self) -> None:
        """End the processes after a failure."""
        while self._running:
            batch = self._running.popleft()
            batch.process.kill()
            batch.process.wait()
            batch.answers.close()

    def _add(self, files: _Files, size: int) -> None:
        self._waiting.append(files)
        self._waiting_files += len(files.names)
        self._waiting_bytes += size
        if self._waiting_files >= self._room or self._waiting_bytes >= _BATCH_BYTES:
            self._start()

    def _start(self) -> None:
        """Have the waiting files written. At most one batch has to be complete before that."""
        parts, count = self._waiting, self._waiting_files
        self._waiting, self._waiting_files, self._waiting_bytes = [], 0, 0
        self._room = min(2 * self._room, _LARGEST_BATCH)
        if len(self._running) == self._processes:
            self._collect(self._running.popleft())
        batch = self._run(parts) if self._treewrite and count >= _WORTH_A_PROCESS else None
        if batch is not None:
            self._running.append(batch)
            return
        for files in parts:
            entries = [StoredEntry._make(_PLACE.unpack(place)[:2]) for place in files.places]
            names = map(os.fsdecode, files.names)
            self._write(files.path, files.directory, list(zip(names, entries, strict=True)))

    def _run(self, parts: list[_Files]) -> _Batch | None:
        import subprocess  # only for many files

        answers = unnamed_file()
        with unnamed_file() as questions:
            questions.write(b"".join([_question(files) for files in parts]))
            questions.flush()
            fds = [self._top, self._store.pack_fd]
            command = [str(self._treewrite), *map(str, fds)]
            try:
                process = subprocess.Popen(command, stdin=questions, stdout=answers, pass_fds=fds, env={})
            except OSError:  # for example, too many processes
                answers.close()
                return None
        return _Batch(process, answers, parts)

    def _collect(self, batch: _Batch) -> None:
        code = batch.process.wait()
        with batch.answers as answers:
            answers.seek(0)
            records = answers.read()
        if code != 0:
            raise _failure(code, batch.parts, len(records) // RECORD_SIZE)
        at = 0
        for files in batch.parts:
            end = at + len(files.names) * RECORD_SIZE
            files.directory.add_packed(b"\0".join(files.names), records[at:end])
            at = end

    def _write(self, path: str, directory: Directory, entries: list[tuple[str, StoredEntry]]) -> None:
        with directory_below(self._top, path) as fd:
            for name, entry in entries:
                info = write_file(self._store, fd, name, entry)
                directory.files[name] = KnownFile(entry.mode, entry.digest, *times_of(info))
        directory.pack()


def _question(files: _Files) -> bytes:
    path = (os.fsencode(files.path) or b".") + b"\0"
    names = b"\0".join(files.names) + b"\0"
    return b"".join((_HEAD.pack(len(path), len(names), len(files.names)), path, names, *files.places))


def _failure(code: int, parts: list[_Files], written: int) -> Exception:
    """Return the error for the first file that a process did not write."""
    for files in parts:
        if written < len(files.names):
            name, place = os.fsdecode(files.names[written]), files.places[written]
            if code == _DAMAGED:
                return WorkspaceCorrupt(f"object {_PLACE.unpack(place)[1].hex()} is damaged", op="store")
            if code > 0:
                return OSError(code, os.strerror(code), f"{files.path}/{name}" if files.path else name)
        written -= len(files.names)
    return OSError(f"treewrite ended with {code}")
