"""A process by a name that no other ever has, so that another program can ask for it later, or end it."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def process_name(pid: int) -> str:
    """The machine's boot, its pid namespace, its pid and its start; empty where there is no such process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # "pid (name) state …", where the name may hold anything; the start is the 22nd field.
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {pid} {started}"
    except OSError:
        return ""


def may_live(name: str) -> bool:
    """Whether that process is still there; where that can't be seen from here, it may be."""
    own, theirs = process_name(os.getpid()).split(), name.split()
    if not own:
        return True
    if len(theirs) != len(own) or theirs[0] != own[0]:
        return False  # of another boot of this machine
    return theirs[1] != own[1] or process_name(int(theirs[2])) == name


def kill_group_of(name: str) -> None:
    """Kill the process group that it leads, if it is there and can be seen from here."""
    words = name.split()
    if len(words) == 4 and words[2].isdigit() and process_name(int(words[2])) == name:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(int(words[2]), signal.SIGKILL)
