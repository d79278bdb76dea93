"""openat2, if the kernel supports it: open a nested directory in one call, below a descriptor and without links."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

HANDLE = getattr(os, "O_PATH", os.O_RDONLY)  # other systems than Linux have no O_PATH
_FLAGS = HANDLE | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPENAT2 = 437  # the same number on every architecture
_BENEATH, _NO_MAGICLINKS, _NO_SYMLINKS = 0x08, 0x02, 0x04


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(root: int, path: str) -> int | None:
    """Return a descriptor, or None on any error: walking the path finds the same error and reports it better."""
    syscall = _syscall()
    if syscall is None:
        return None
    how = _How(_FLAGS, 0, _BENEATH | _NO_MAGICLINKS | _NO_SYMLINKS)
    long = ctypes.c_long
    fd: int = syscall(long(_OPENAT2), long(root), os.fsencode(path), ctypes.byref(how), long(ctypes.sizeof(how)))
    return fd if fd >= 0 else None


@functools.cache
def _syscall() -> ctypes._NamedFuncPointer | None:
    return ctypes.CDLL(None).syscall if sys.platform == "linux" else None
