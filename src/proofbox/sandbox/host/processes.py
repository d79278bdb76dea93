"""Unique names of processes, so that another program can find or kill exactly that process later."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def process_name(pid: int) -> str:
    """Return the boot id, pid namespace, pid and start time of a process; empty if it does not exist."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # "pid (name) state …", where the name may contain anything; the start time is the 22nd field.
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {pid} {started}"
    except OSError:
        return ""


def may_live(name: str) -> bool:
    """Return whether the process may still exist; True if that can't be determined from here."""
    own, theirs = process_name(os.getpid()).split(), name.split()
    if not own:
        return True
    if len(theirs) != len(own) or theirs[0] != own[0]:
        return False  # from an earlier boot
    return theirs[1] != own[1] or process_name(int(theirs[2])) == name


def kill_group_of(name: str) -> None:
    """Kill the process group that it leads, if it exists and is visible from here."""
    words = name.split()
    if len(words) == 4 and words[2].isdigit() and process_name(int(words[2])) == name:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(int(words[2]), signal.SIGKILL)
