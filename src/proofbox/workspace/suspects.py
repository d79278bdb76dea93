"""Which files are not what they were, by their times alone: the first half of a scan, and the one that costs.

Nothing is read here. What is reported is looked at again by the scanner, one name at a time; what isn't reported is
taken as unchanged. So a directory that is swapped for a link while it is looked at can only lead to a needless look:
the swap changes its parent.

Large trees are shared out between two processes, since two threads would wait for each other. A process that has
threads can't be forked safely, and does it alone.
"""

from __future__ import annotations

import marshal
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from proofbox.workspace.tree import Directory

Suspects = dict[str, set[str] | None]
"""Names by directory; None where the directory has to be listed anew."""

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WORTH_A_PROCESS = 4000

_Job = tuple[str, Directory]
_Suspect = tuple[str, set[str] | None]


def suspects(root: int, directory: Directory, *, thorough: bool) -> Suspects:
    """`thorough` lists directories even when their times say that no name has changed."""
    jobs = list(directory.walk())
    weights = [each.weight + 3 for _, each in jobs]
    total = sum(weights)
    if total < _WORTH_A_PROCESS or threading.active_count() > 1 or (os.cpu_count() or 1) < 2:
        return _together(_look(root, jobs, thorough))
    half, cut = 0, 0
    while half < total // 2:
        half += weights[cut]
        cut += 1
    with _elsewhere(root, jobs[cut:], thorough) as answer:
        here = list(_look(root, jobs[:cut], thorough))
        there = answer()
    return _together([*here, *(_look(root, jobs[cut:], thorough) if there is None else there)])


def _together(found: Iterable[_Suspect]) -> Suspects:
    """A directory may be named several times, once for each that is gone from it. To be listed anew covers all."""
    together: Suspects = {}
    for path, names in found:
        before = together.setdefault(path, names)
        together[path] = None if before is None or names is None else before | names
    return together


def _look(root: int, jobs: Sequence[_Job], thorough: bool) -> Iterator[_Suspect]:
    status = os.stat
    for path, directory in jobs:
        try:
            fd = os.open(path or ".", _OPEN_DIRECTORY, dir_fd=root)
        except OSError:
            folder, _, name = path.rpartition("/")
            yield folder, {name}
            continue
        try:
            info = os.fstat(fd)
            if (
                info.st_ctime_ns != directory.ctime_ns
                or info.st_ino != directory.ino
                or (path and stat.S_IFDIR | stat.S_IMODE(info.st_mode) != directory.mode)
                or (thorough and _names_differ(fd, directory))
            ):
                yield path, None
                continue
            look = set()
            for name, (_, _, size, mtime_ns, ctime_ns, ino) in directory.records():
                try:
                    found = status(name, dir_fd=fd, follow_symlinks=False)
                except OSError:
                    look.add(name)
                    continue
                if (
                    found.st_ctime_ns != ctime_ns
                    or found.st_mtime_ns != mtime_ns
                    or found.st_ino != ino
                    or found.st_size != size
                ):
                    look.add(name)
            if look:
                yield path, look
        finally:
            os.close(fd)


def _names_differ(fd: int, directory: Directory) -> bool:
    return set(os.listdir(fd)) != {name for name, _ in directory.records()} | directory.dirs.keys()


@contextmanager
def _elsewhere(root: int, jobs: Sequence[_Job], thorough: bool) -> Iterator[Callable[[], list[_Suspect] | None]]:
    """Look in a process of our own. Its answer is None if it died."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            data = marshal.dumps(list(_look(root, jobs, thorough)))
            while data:
                data = data[os.write(writing, data) :]
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)

    def answer() -> list[_Suspect] | None:
        with open(reading, "rb", closefd=False) as pipe:
            data = pipe.read()
        ended = os.waitpid(child, 0)[1]
        waited.append(ended)
        return list(marshal.loads(data)) if ended == 0 else None  # noqa: S302 (our own words)

    waited: list[int] = []
    try:
        yield answer
    finally:
        os.close(reading)
        if not waited:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
