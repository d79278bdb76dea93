"""Who wrote: the process, precisely enough to tell it from a later one with its pid, and the world it ran in."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

from proofbox.core.digest import digest_of
from proofbox.evidence.documents import shape

_HOST = shape.sha256.meaning("Of the machine's id, salted; where it has none, of its name.")
PROCESS = shape.record(
    {
        "pid": shape.count.meaning("Its pid on that host."),
        "host": _HOST,
        "boot_id": shape.text(64).meaning("The kernel's id of this boot; empty where there is no /proc."),
        "start_ticks": shape.or_null(shape.count).meaning(
            "When it began, in clock ticks since boot; null where there is no /proc."
        ),
    },
    {
        "pid_namespace": shape.count.meaning(
            "The inode of the pid namespace that its pid counts in; absent where there is none to be seen."
        ),
    },
)
WORLD = shape.record(
    {
        "host": _HOST,
        "platform": shape.table(shape.text(256)).meaning("The kernel: `system`, `release` and `machine`."),
        "tool": shape.table(shape.text(256)).meaning(
            "What recorded it: `name`, `version`, and the `python` it ran on."
        ),
    }
)


def process_identity() -> dict[str, Any]:
    """This process. A pid alone means nothing after a reboot or once it is used again."""
    pid = os.getpid()
    me = {"pid": pid, "host": _host(), "boot_id": _boot_id(), "start_ticks": _start_ticks(pid)}
    namespace = _pid_namespace()
    return me if namespace is None else {**me, "pid_namespace": namespace}


def is_alive(identity: dict[str, Any]) -> bool | None:
    """Whether that very process still runs; None when it can't be known from here (another machine or container)."""
    if identity["host"] != _host():
        return None
    if identity["boot_id"] != _boot_id():
        return False
    if identity.get("pid_namespace") != _pid_namespace():
        return None  # its pid is nobody here, or somebody else
    if identity["start_ticks"] is not None and sys.platform == "linux":
        return bool(_start_ticks(identity["pid"]) == identity["start_ticks"])
    try:
        os.kill(identity["pid"], 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


@cache
def world() -> dict[str, Any]:
    """Host and tool: what a result may depend on, and what did the recording."""
    from importlib import metadata  # with its parser of mail headers: for who writes a bundle

    try:
        version = metadata.version("proofbox")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return {
        "host": _host(),
        "platform": {"system": platform.system(), "release": platform.release(), "machine": platform.machine()},
        "tool": {"name": "proofbox", "version": version, "python": platform.python_version()},
    }


def world_id(of: dict[str, Any]) -> str:
    return digest_of(of)


@cache
def _host() -> str:
    """A digest, because a machine id is not to be shown to others as it is."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            found = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if found:
            return _salted(found)
    return _salted(platform.node())


def _salted(text: str) -> str:
    return hashlib.sha256(b"proofbox.world\0" + text.encode("utf-8", "surrogateescape")).hexdigest()


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> int | None:
    """Not kept: a forked child may be in another."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def _start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None where there is no such process, or no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may hold anything; field 22 is counted from behind it.
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] == b"Z" else int(fields[19])
