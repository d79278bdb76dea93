"""Distinguish a directory from a different one that replaced it at the same path."""

from __future__ import annotations

import ctypes
import os
import sys

_AT_FDCWD = -100
_MAX_HANDLE = 128


class _Handle(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * _MAX_HANDLE))


def identity_of(directory: str) -> str:
    """Return the kernel's persistent handle of a directory, or an empty string if the file system has no handles.

    The handle survives renames and reboots. An inode number is not enough, because file systems often reuse it for the
    next directory. overlayfs and some network file systems provide no handles.
    """
    if sys.platform != "linux":
        return ""
    handle, mount = _Handle(size=_MAX_HANDLE), ctypes.c_int()
    name = os.fsencode(directory)
    if ctypes.CDLL(None).name_to_handle_at(_AT_FDCWD, name, ctypes.byref(handle), ctypes.byref(mount), 0) != 0:
        return ""
    return f"{handle.type:x}:{bytes(handle.data[: handle.size]).hex()}"
