"""Collect the names that the kernel reports as changed, with one inotify watch per directory.

Tracking is an optimization. It does not see changes through hard links elsewhere, through bind mounts of a parent
directory, or through memory mappings (`mappings.py` finds mapped files). A scan sees those. If the kernel's bounded
queue overflows or it refuses another watch, `drain` returns None and the caller scans.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_UNMOUNT, _Q_OVERFLOW, _IGNORED = 0x2000, 0x4000, 0x8000
_ONLYDIR = 0x01000000
_MASK = _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 18


class Tracker:
    """Collects changed names by directory. On platforms without inotify it is `lost` from the start."""

    def __init__(self) -> None:
        self.lost = sys.platform != "linux"
        self._paths: dict[int, str] = {}
        self._watches: dict[str, int] = {}
        self._fd = -1
        if not self.lost:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            self.lost = self._fd < 0

    def watch(self, path: str, fd: int) -> None:
        """Start watching an open directory."""
        if self.lost:
            return
        # Watch by descriptor: a name could be replaced by a link between opening and watching it.
        watch = self._libc.inotify_add_watch(self._fd, b"/proc/self/fd/%d" % fd, _MASK | _ONLYDIR)
        if watch < 0:
            if ctypes.get_errno() != errno.ENOENT:
                self.lost = True  # usually the user's limit on watches
            return
        before = self._watches.get(path)
        if before is not None and before != watch:
            self.forget(path)
        self._watches[path] = watch
        self._paths[watch] = path

    def watches(self, path: str) -> bool:
        return not self.lost and path in self._watches

    def forget(self, path: str) -> None:
        """Remove a directory that is no longer at this path. If it was moved, the watch of its new path is kept."""
        watch = self._watches.pop(path, None)
        if watch is not None and self._paths.get(watch) == path:
            del self._paths[watch]
            self._libc.inotify_rm_watch(self._fd, watch)

    def mark_incomplete(self) -> None:
        """Record that some directory is not watched, so that only scans are reliable from now on."""
        self.lost = True

    def drain(self) -> dict[str, set[str]] | None:
        """Return the names changed since the last call, by directory, or None if a scan is required."""
        dirty: dict[str, set[str]] = {}
        whole = not self.lost
        while not self.lost:
            try:
                data = os.read(self._fd, _BUFFER)
            except BlockingIOError:
                break
            position = 0
            while position < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, position)
                name = data[position + _EVENT.size : position + _EVENT.size + length].rstrip(b"\0")
                position += _EVENT.size + length
                if mask & _Q_OVERFLOW:
                    whole = False
                    continue
                path = self._paths.get(watch)
                if path is None:
                    continue
                if mask & _UNMOUNT or (mask & (_DELETE_SELF | _MOVE_SELF) and not path):
                    whole = False
                elif mask & _IGNORED:
                    del self._paths[watch]
                    if self._watches.get(path) == watch:
                        del self._watches[path]
                elif name:
                    dirty.setdefault(path, set()).add(os.fsdecode(name))
        return dirty if whole and not self.lost else None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.lost = True
