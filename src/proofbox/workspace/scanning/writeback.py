"""Decide whether the times of a file reveal every later write, including writes through a shared memory mapping.

The kernel updates a file's times when a write through a shared mapping causes a page fault. On a file system with
writeback that is the first write to a page since the page was last written to disk: while the page is dirty, further
writes change the content but not the times. Starting the writeback write-protects the page, so that the next write
faults again. It does not wait for the disk.

Other file systems are not relied on. tmpfs has no writeback, and a page that was read through a mapping can be written
without a fault. overlayfs keeps its pages in the underlying file, which these calls cannot reach. On FUSE and network
file systems the server controls the times. Every scan reads the files on these file systems again.
"""

from __future__ import annotations

import ctypes
import functools
import sys

_EXT4, _XFS, _BTRFS = 0xEF53, 0x58465342, 0x9123683E
_PROTECTS_ON_WRITEBACK = frozenset({_EXT4, _XFS, _BTRFS})  # ext2 and ext3 use the magic number of ext4
_STATFS_SIZE = 512
_START, _START_AND_WAIT = 2, 7  # SYNC_FILE_RANGE_WRITE, without and with WAIT_BEFORE and WAIT_AFTER
_CACHESTAT = 451
_WHOLE_FILE = ctypes.c_int64(0)


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _CacheStat(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recent"))


class Writeback:
    """Checks the files of one scan."""

    def __init__(self) -> None:
        self._protects: dict[int, bool] = {}

    def forget_devices(self) -> None:
        """Check every file system again: the device number of an unmounted one may have been reused."""
        self._protects.clear()

    def times_show_edits(self, fd: int, device: int, *, start: bool = True) -> bool:
        """Return whether every write from now on changes the times of this open file.

        `start` starts the writeback of its dirty pages. Without it, the result is False for a file with dirty pages.
        Read the times for later comparisons after this call.
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
            # The kernel is older than Linux 6.5 or gives no answer. It also counts every page of a DAX file as evicted.
            return start and _sync_file_range(fd, _START_AND_WAIT) == 0
        return not found.dirty


def protects_on_writeback(fd: int) -> bool:
    """Return whether the file system of an open file is known to write-protect pages on writeback."""
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
