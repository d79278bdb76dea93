"""Find files that may have changed, by their times alone: the first and most expensive half of a scan.

This module does not read files. The scanner checks each reported name again; unreported names count as unchanged. If a
directory is replaced by a link in the meantime, the worst result is an unnecessary check, because the swap also changes
the times of the parent directory.

For large trees, two processes of `treestat`, a small C program, share the work. Python does it for small trees, or if
`treestat` is not available.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from proofbox.core.files.nofollow import DIRECTORY
from proofbox.errors import ProviderUnavailable
from proofbox.sandbox.host.binaries import program
from proofbox.workspace.tree import Directory, int64, times_of

Candidates = dict[str, set[str] | None]
"""Names by directory; None if the whole directory has to be listed again."""

_WORTH_A_PROCESS = 2000
_PROCESSES = 2
_HEAD = struct.Struct("=IIIIqQ")
_ANSWER = struct.Struct("=III")
_LOOK, _LIST = 0, 1

_Job = tuple[str, Directory]
_Suspect = tuple[str, set[str] | None]


def changed_candidates(root: int, directory: Directory) -> Candidates:
    """Return the entries whose times differ from those in `directory`."""
    jobs = list(directory.walk())
    weights = [each.weight + 3 for _, each in jobs]
    total = sum(weights)
    found: Iterable[_Suspect] | None = None
    if total >= _WORTH_A_PROCESS:
        share, cut = 0, 0
        while share < total // _PROCESSES:
            share += weights[cut]
            cut += 1
        found = _compare_with_treestat(root, [jobs[:cut], jobs[cut:]])
    if found is None:
        found = _compare_in_python(root, jobs)
    return _merged(found)


def _merged(found: Iterable[_Suspect]) -> Candidates:
    """Merge the reports. A directory may occur several times, once for each entry that was removed or not opened."""
    merged: Candidates = {}
    below: list[str] = []
    for path, names in found:
        before = merged.setdefault(path, names)
        if before is not None and names is not None:
            merged[path] = before | names
            continue
        # Listing a directory again covers added and removed names, but not a subdirectory that cannot be opened.
        merged[path] = None
        below += [f"{path}/{name}" if path else name for name in before or names or ()]
    return {**dict.fromkeys(below), **merged}


def _each(root: int, jobs: Sequence[_Job]) -> Iterator[tuple[str, Directory, int | None]]:
    """Yield every directory with an open descriptor, or with None if it was removed."""
    for path, directory in jobs:
        try:
            fd = os.open(path or ".", DIRECTORY, dir_fd=root)
        except OSError:
            yield path, directory, None
            continue
        try:
            yield path, directory, fd
        finally:
            os.close(fd)


def _compare_in_python(root: int, jobs: Sequence[_Job]) -> Iterator[_Suspect]:
    for path, directory, fd in _each(root, jobs):
        if fd is None:
            yield _gone(path)
            continue
        info = os.fstat(fd)
        changed = (int64(info.st_ctime_ns), info.st_ino) != (directory.ctime_ns, directory.ino)
        if changed or (path and stat.S_IFDIR | stat.S_IMODE(info.st_mode) != directory.mode):
            yield path, None
            continue
        suspicious = set()
        for name, record in directory.records():
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                suspicious.add(name)
                continue
            if times_of(found) != record[2:]:
                suspicious.add(name)
        if suspicious:
            yield path, suspicious


def _gone(path: str) -> _Suspect:
    folder, _, name = path.rpartition("/")
    return folder, {name}


def _compare_with_treestat(root: int, shares: Sequence[Sequence[_Job]]) -> list[_Suspect] | None:
    """Do the same as `_compare_in_python` with one `treestat` process per share. Return None on failure."""
    import subprocess  # only for large trees

    try:
        command = [str(program("treestat")), str(root)]
    except ProviderUnavailable:
        return None
    with contextlib.ExitStack() as stack:
        processes = []
        for jobs in shares:
            questions = stack.enter_context(unnamed_file())
            questions.write(b"".join([_question(path, directory) for path, directory in jobs]))
            questions.flush()
            try:
                process = subprocess.Popen(command, stdin=questions, stdout=subprocess.PIPE, pass_fds=[root], env={})
            except OSError:
                return None  # for example, too many processes
            processes.append(stack.enter_context(process))
        found: list[_Suspect] = []
        for process, jobs in zip(processes, shares, strict=True):
            data = process.communicate()[0]
            if process.returncode != 0:
                return None
            found += _answers(data, jobs)
        return found


def unnamed_file() -> IO[bytes]:
    """Return an empty file, in memory if possible, that ends with its last descriptor."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("proofbox-questions"), "w+b")
    from tempfile import TemporaryFile

    return TemporaryFile()


def _question(path: str, directory: Directory) -> bytes:
    names, records = directory.pack()
    place = (os.fsencode(path) if path else b".") + b"\0"
    if names:
        names += b"\0"
    mode = directory.mode if path else 0
    head = _HEAD.pack(len(place), len(names), directory.weight, mode, directory.ctime_ns, directory.ino)
    return b"".join((head, place, names, records))


def _answers(data: bytes, jobs: Sequence[_Job]) -> Iterator[_Suspect]:
    at = 0
    while at < len(data):
        number, what, count = _ANSWER.unpack_from(data, at)
        at += _ANSWER.size
        path, directory = jobs[number]
        if what == _LIST:
            yield path, None
        elif what == _LOOK:
            names = [name for name, _ in directory.records()]
            yield path, {names[each] for each in struct.unpack_from(f"={count}I", data, at)}
        else:
            yield _gone(path)
        at += 4 * count
