"""Which files are not what they were, by their times alone: the first half of a scan, and the one that costs.

Nothing is read here. What is reported is looked at again by the scanner, one name at a time; what isn't reported is
taken as unchanged. So a directory that is swapped for a link while it is looked at can only lead to a needless look:
the swap changes its parent.

Large trees are asked of `treestat`, a small C program, twice at once; without it, or for few files, Python does it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from proofbox.errors import ProviderUnavailable
from proofbox.sandbox.host.binaries import program
from proofbox.workspace.scanning.directories import OPEN_DIRECTORY
from proofbox.workspace.tree import Directory, int64, times_of

Suspects = dict[str, set[str] | None]
"""Names by directory; None where the directory has to be listed anew."""

_WORTH_A_PROCESS = 2000
_PROCESSES = 2
_HEAD = struct.Struct("=IIIIqQ")
_ANSWER = struct.Struct("=III")
_LOOK, _LIST = 0, 1

_Job = tuple[str, Directory]
_Suspect = tuple[str, set[str] | None]


def suspects(root: int, directory: Directory) -> Suspects:
    """Return what has other times than those that `directory` holds."""
    jobs = list(directory.walk())
    weights = [each.weight + 3 for _, each in jobs]
    total = sum(weights)
    found: Iterable[_Suspect] | None = None
    if total >= _WORTH_A_PROCESS:
        share, cut = 0, 0
        while share < total // _PROCESSES:
            share += weights[cut]
            cut += 1
        found = _ask(root, [jobs[:cut], jobs[cut:]])
    if found is None:
        found = _look(root, jobs)
    return _together(found)


def _together(found: Iterable[_Suspect]) -> Suspects:
    """A directory may be named several times, once for each that is gone from it, or could not be opened."""
    together: Suspects = {}
    below: list[str] = []
    for path, names in found:
        before = together.setdefault(path, names)
        if before is not None and names is not None:
            together[path] = before | names
            continue
        # To be listed anew covers names that came and went, and not a directory that is there and can't be opened.
        together[path] = None
        below += [f"{path}/{name}" if path else name for name in before or names or ()]
    return {**dict.fromkeys(below), **together}


def _each(root: int, jobs: Sequence[_Job]) -> Iterator[tuple[str, Directory, int | None]]:
    """Every directory with a handle on it, or with none where it is gone."""
    for path, directory in jobs:
        try:
            fd = os.open(path or ".", OPEN_DIRECTORY, dir_fd=root)
        except OSError:
            yield path, directory, None
            continue
        try:
            yield path, directory, fd
        finally:
            os.close(fd)


def _look(root: int, jobs: Sequence[_Job]) -> Iterator[_Suspect]:
    for path, directory, fd in _each(root, jobs):
        if fd is None:
            yield _gone(path)
            continue
        info = os.fstat(fd)
        changed = (int64(info.st_ctime_ns), info.st_ino) != (directory.ctime_ns, directory.ino)
        if changed or (path and stat.S_IFDIR | stat.S_IMODE(info.st_mode) != directory.mode):
            yield path, None
            continue
        look = set()
        for name, record in directory.records():
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                look.add(name)
                continue
            if times_of(found) != record[2:]:
                look.add(name)
        if look:
            yield path, look


def _gone(path: str) -> _Suspect:
    folder, _, name = path.rpartition("/")
    return folder, {name}


def _ask(root: int, shares: Sequence[Sequence[_Job]]) -> list[_Suspect] | None:
    """The same as `_look`, by one process a share. None if that can't be."""
    try:
        command = [str(program("treestat")), str(root)]
    except ProviderUnavailable:
        return None
    with contextlib.ExitStack() as stack:
        asked = []
        for jobs in shares:
            questions = stack.enter_context(_unnamed_file())
            questions.write(b"".join([_question(path, directory) for path, directory in jobs]))
            questions.flush()
            try:
                process = subprocess.Popen(command, stdin=questions, stdout=subprocess.PIPE, pass_fds=[root], env={})
            except OSError:
                return None  # too many processes, say
            asked.append(stack.enter_context(process))
        found: list[_Suspect] = []
        for process, jobs in zip(asked, shares, strict=True):
            data = process.communicate()[0]
            if process.returncode != 0:
                return None
            found += _answers(data, jobs)
        return found


def _unnamed_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("proofbox-questions"), "w+b")
    return tempfile.TemporaryFile()


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
