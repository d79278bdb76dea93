"""Whether the times of a file show every later edit, also one through a shared memory mapping.

The kernel sets a file's times when a store through a shared mapping faults. On a file system with writeback that is the
first store to a page since the page was last written to the disk: while the page is dirty, further stores change the
content and no time. Starting the writeback write-protects the page, so that the next store faults again. It does not
wait for the disk.

Other file systems are not relied on. tmpfs has no writeback, and a page that was read through a mapping is written
without any fault. An overlay keeps its pages in the file below, out of reach of these calls. FUSE and network file
systems set times as their servers like. Files there are read again by every scan.
"""

from __future__ import annotations

import ctypes
import functools
import sys

_EXT4, _XFS, _BTRFS = 0xEF53, 0x58465342, 0x9123683E
_PROTECTS_ON_WRITEBACK = frozenset({_EXT4, _XFS, _BTRFS})  # ext2 and ext3 have the number of ext4
_STATFS_SIZE = 512
_START, _START_AND_WAIT = 2, 7  # SYNC_FILE_RANGE_WRITE, and with WAIT_BEFORE and WAIT_AFTER
_CACHESTAT = 451
_WHOLE_FILE = ctypes.c_int64(0)


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _CacheStat(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recent"))


class Writeback:
    """Answers for the files of one look at a workspace."""

    def __init__(self) -> None:
        self._protects: dict[int, bool] = {}

    def forget_devices(self) -> None:
        """Ask every file system again: the number of an unmounted one may have been given to another."""
        self._protects.clear()

    def times_show_edits(self, fd: int, device: int, *, start: bool = True) -> bool:
        """Return whether every edit from now on changes the times of this open file.

        `start` starts the writeback of its dirty pages; without it, a file that has any gets False. Take the times
        that are to be compared later after this call.
        """
        protects = self._protects.get(device)
        if protects is None:
            protects = self._protects[device] = protects_on_writeback(fd)
        if not protects:
            return False
        if start and _sync_file_range(fd, _START) != 0:
            return False
        found = _cache_stat(fd)
        if found is None or found.evicted:
            # The kernel is older than Linux 6.5 or does not say. It also counts every page of a DAX file as evicted.
            return start and _sync_file_range(fd, _START_AND_WAIT) == 0
        return not found.dirty


def protects_on_writeback(fd: int) -> bool:
    """Return whether the file system of an open file is known to write-protect pages when it writes them back."""
    if sys.platform != "linux":
        return False
    statfs = ctypes.create_string_buffer(_STATFS_SIZE)
    if _libc().fstatfs(fd, statfs) != 0:
        return False
    return ctypes.c_long.from_buffer(statfs).value & 0xFFFFFFFF in _PROTECTS_ON_WRITEBACK


def _sync_file_range(fd: int, flags: int) -> int:
    return int(_libc().sync_file_range(fd, _WHOLE_FILE, _WHOLE_FILE, flags))


def _cache_stat(fd: int) -> _CacheStat | None:
    found = _CacheStat()
    if _libc().syscall(_CACHESTAT, fd, ctypes.byref(_Range(0, 0)), ctypes.byref(found), 0) != 0:
        return None
    return found


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
