"""Whether this machine has room for one more attempt."""

from __future__ import annotations

import os
from pathlib import Path

LEAST_DISK = 512 << 20
LEAST_MEMORY = 256 << 20
ASK_AGAIN = 1.0
LOOK_AGAIN = 0.2


def reason(directory: Path, meminfo: Path = Path("/proc/meminfo")) -> str:
    """Why to wait before another is started; empty: nothing speaks against it."""
    found = os.statvfs(directory)
    if found.f_bavail * found.f_frsize < LEAST_DISK:
        return f"less than {LEAST_DISK >> 20} MiB are free at {directory}"
    available = _available_memory(meminfo)
    if available is not None and available < LEAST_MEMORY:
        return f"less than {LEAST_MEMORY >> 20} MiB of memory are free"
    return ""


def size_of(directory: Path, enough: int) -> int:
    """Bytes on disk below a directory, following nothing; counting ends when there are more than `enough`."""
    size = 0
    pending = [os.fspath(directory)]
    while pending and size <= enough:
        try:
            with os.scandir(pending.pop()) as found:
                for entry in found:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:  # the agent is at work: what was there a moment ago need not be
            continue
    return size


def _available_memory(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
