"""Find files of a workspace that a running process has mapped writable.

inotify does not report writes through a mapping, so a tracked scan checks these files by name. The kernel shows users
the memory maps of their own processes, and root those of all processes. Only processes that have run since the last
scan are asked again. In a small workspace, checking every file is faster than asking, and finds more.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import time
from collections.abc import Iterator

from proofbox.workspace.tree import Directory, KnownFile, times_of

_QUERY = struct.Struct("=9Q4I2Q")
_PROCMAP_QUERY = 0xC0000000 | _QUERY.size << 16 | ord("f") << 8 | 17
_WRITABLE_SHARED_FILE_FROM = 0x02 | 0x08 | 0x10 | 0x20
_MAPS_LINE = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ .w.s [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ ([0-9]+)", re.MULTILINE)
_END, _INODE = 4, 8
MAX_CHECKED_FILES = 64
MAX_CHECKED_BYTES = 1 << 20
"""A workspace with no more files and bytes is checked file by file, even if all of them have to be read."""
_SCHEDULER_TIME = 2  # the CPU clock of a process, as `clock_getcpuclockid` returns it


class MappedFiles:
    """The mapped files of one workspace, identified by inode."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._places: dict[int, set[tuple[str, str]]] = {}

    def __contains__(self, inode: int) -> bool:
        return inode in self._places

    def note(self, inode: int, folder: str, name: str) -> None:
        """Remember the path of a file that was just scanned, if it is mapped."""
        places = self._places.get(inode)
        if places is not None:
            places.add((folder, name))

    def changed(self, directory: Directory) -> Iterator[tuple[str, str]]:
        """Yield the mapped files whose times have changed since the last scan, as (directory, name) pairs.

        A file that was mapped when its workspace was small is UNSETTLED or has times that reveal every write.
        """
        if _is_small(directory):
            self._places = {}
            files = [(folder, name) for folder, each in directory.walk() for name, _ in each.records()]
            yield from (place for place in files if self._times(*place) != _known(directory, *place))
            return
        mapped = mapped_inodes()
        unknown = mapped - self._places.keys()
        self._places = {inode: self._places.get(inode, set()) for inode in mapped}
        # A file that moved together with its directory was not scanned, so its remembered path may be stale.
        if unknown or not all(self._is_at(inode, place) for inode in mapped for place in self._places[inode]):
            self._search(directory)
        for folder, name in (place for places in self._places.values() for place in places):
            if self._times(folder, name) != _known(directory, folder, name):
                yield folder, name

    def _is_at(self, inode: int, place: tuple[str, str]) -> bool:
        times = self._times(*place)
        return times is not None and times[-1] == inode

    def _search(self, directory: Directory) -> None:
        self._places = {inode: set() for inode in self._places}
        for folder, each in directory.walk():
            for name, record in each.records():
                self.note(record[-1], folder, name)

    def _times(self, folder: str, name: str) -> tuple[int, int, int, int] | None:
        try:
            return times_of(os.lstat(os.path.join(self._root, folder, name)))
        except OSError:
            return None


def _is_small(directory: Directory) -> bool:
    files = size = 0
    for _, each in directory.walk():
        files += each.weight + 1
        if files > MAX_CHECKED_FILES:
            return False
        size += sum(record[2] for _, record in each.records())
    return size <= MAX_CHECKED_BYTES


def _known(directory: Directory, folder: str, name: str) -> tuple[int, int, int, int] | None:
    for part in folder.split("/") if folder else ():
        below = directory.dirs.get(part)
        if below is None:
            return None
        directory = below
    known: KnownFile | None = directory.files.get(name)
    return None if known is None else known[2:]


def mapped_inodes() -> set[int]:
    """Return the inodes, on every file system, that any visible process has mapped shared and writable.

    A process that has not run since the last call has the same mappings, so only the others are asked.
    """
    global _asked  # replaced as a whole, so that threads need no lock
    found: set[int] = set()
    try:
        processes = [name for name in os.listdir("/proc") if name.isdigit()]
        same_ids = os.readlink("/proc/self") == str(os.getpid())  # else /proc belongs to another pid namespace
    except OSError:
        return found
    known, asked = _asked, {}
    for process in processes:
        ran_for = _cpu_time(int(process)) if same_ids else 0  # read first: what it maps afterwards takes time
        before = known.get(process)
        if before is None or before[0] != ran_for or not ran_for:
            before = ran_for, frozenset(_mapped_in(process))
        asked[process] = before
        found |= before[1]
    _asked = asked
    return found


_asked: dict[str, tuple[int, frozenset[int]]] = {}
"""By process, its CPU time when it was asked, and the inodes that it had mapped."""


def _cpu_time(process: int) -> int:
    """Return the CPU time of all threads of a process in nanoseconds; 0 if it is unknown.

    The kernel adds the time when a thread stops running, and at each tick while it runs. A process that was woken less
    than a tick ago and still runs therefore seems not to have run; its mappings are found by the next call.
    """
    try:
        return time.clock_gettime_ns(~process << 3 | _SCHEDULER_TIME)
    except OSError:
        return 0


def _mapped_in(process: str) -> Iterator[int]:
    try:
        fd = os.open(f"/proc/{process}/maps", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        yield from _mapped_by(fd)
    finally:
        os.close(fd)


def _mapped_by(maps: int) -> Iterator[int]:
    at = 0
    while True:
        query = bytearray(_QUERY.pack(_QUERY.size, _WRITABLE_SHARED_FILE_FROM, at, *(0,) * 12))
        try:
            fcntl.ioctl(maps, _PROCMAP_QUERY, query)
        except OSError as error:
            if error.errno == errno.ENOTTY:  # before Linux 6.11
                yield from _mapped_by_text(maps)
            return
        answer = _QUERY.unpack(query)
        yield answer[_INODE]
        at = answer[_END]


def _mapped_by_text(maps: int) -> Iterator[int]:
    text = b""
    try:
        while more := os.read(maps, 1 << 16):
            text += more
    except OSError:  # the process ended
        return
    yield from (int(inode) for inode in _MAPS_LINE.findall(text))
