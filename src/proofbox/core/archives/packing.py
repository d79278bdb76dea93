"""Tar archives that proofbox writes: they do not record the owners of files."""

from __future__ import annotations

import tarfile


def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Give a member to root. For `TarFile.add(filter=…)`, or before `TarFile.addfile`."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def without_owner_and_time(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Give a member to root, and reset its time, so that equal files make equal archives."""
    member.mtime = 0
    return without_owner(member)
