"""Whether this machine has room for one more attempt."""

from __future__ import annotations

import os
from pathlib import Path

LEAST_DISK = 512 << 20
LEAST_MEMORY = 256 << 20
ASK_AGAIN = 1.0


def reason(directory: Path, meminfo: Path = Path("/proc/meminfo")) -> str:
    """Why to wait before another is started; empty: nothing speaks against it."""
    found = os.statvfs(directory)
    if found.f_bavail * found.f_frsize < LEAST_DISK:
        return f"less than {LEAST_DISK >> 20} MiB are free at {directory}"
    available = _available_memory(meminfo)
    if available is not None and available < LEAST_MEMORY:
        return f"less than {LEAST_MEMORY >> 20} MiB of memory are free"
    return ""


def _available_memory(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
