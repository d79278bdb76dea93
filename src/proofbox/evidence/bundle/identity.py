"""The identity of a bundle's writer: its process, distinguishable from later ones with its pid, and its world."""

from __future__ import annotations

import hashlib
import os
import sys
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from proofbox.core.canonical import MAX_INTEGER, limits
from proofbox.core.digest import digest_of
from proofbox.evidence.documents import shape

_HOST = shape.sha256.meaning("The salted digest of the machine id, or of the host name if there is no machine id.")
PROCESS = shape.record(
    {
        "pid": shape.count.meaning("The process id on that host."),
        "host": _HOST,
        "boot_id": shape.text(64).meaning("The kernel's boot id; empty without /proc."),
        "start_ticks": shape.or_null(shape.count).meaning(
            "The start time, in clock ticks since boot; null without /proc."
        ),
    },
    {
        "pid_namespace": shape.count.meaning("The inode of the process's pid namespace; absent if it can't be read."),
    },
)
WORLD = shape.record(
    {
        "host": _HOST,
        "platform": shape.table(shape.text(256)).meaning("The kernel: `system`, `release` and `machine`."),
        "tool": shape.table(shape.text(256)).meaning("The recording tool: `name`, `version` and its `python` version."),
    }
)


# The same for `object_parser`.
_Count = Annotated[int, limits(ge=0, le=MAX_INTEGER)]
_Digest = Annotated[str, limits(pattern=rf"\A{shape.SHA256.pattern}\Z")]
_Texts = dict[str, Annotated[str, limits(max_length=256)]]


class Process(TypedDict):
    boot_id: Annotated[str, limits(max_length=64)]
    host: _Digest
    pid: _Count
    pid_namespace: NotRequired[_Count]
    start_ticks: _Count | None


class World(TypedDict):
    host: _Digest
    platform: _Texts
    tool: _Texts


def process_identity() -> dict[str, Any]:
    """Return the identity of this process. A pid alone is ambiguous after a reboot or when it is reused."""
    pid = os.getpid()
    me = {"pid": pid, "host": _host(), "boot_id": _boot_id(), "start_ticks": _start_ticks(pid)}
    namespace = _pid_namespace()
    return me if namespace is None else {**me, "pid_namespace": namespace}


def is_alive(identity: dict[str, Any]) -> bool | None:
    """Return whether that process still runs; None if that is unknown (another machine or container)."""
    if identity["host"] != _host():
        return None
    if identity["boot_id"] != _boot_id():
        return False
    if identity.get("pid_namespace") != _pid_namespace():
        return None  # its pid means nothing in this namespace
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
    """Return the host, which results may depend on, and the recording tool."""
    # Slow imports, needed only to write a bundle.
    import platform
    from importlib import metadata

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
    """Return the digest of a world, whose members are strings and tables of strings."""
    platform, tool = tuple(of["platform"].items()), tuple(of["tool"].items())
    return _world_id(of["host"], platform, tool)


@lru_cache(maxsize=16)  # the attempts of a run have the same
def _world_id(host: str, platform: tuple[tuple[str, str], ...], tool: tuple[tuple[str, str], ...]) -> str:
    return digest_of({"host": host, "platform": dict(platform), "tool": dict(tool)})


@cache
def _host() -> str:
    """Return a digest, because a machine id is confidential."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            found = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if found:
            return _salted(found)
    return _salted(os.uname().nodename)


def _salted(text: str) -> str:
    return hashlib.sha256(b"proofbox.world\0" + text.encode("utf-8", "surrogateescape")).hexdigest()


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> int | None:
    """Return the pid namespace. Not cached, because a forked child may be in another one."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def _start_ticks(pid: int) -> int | None:
    """Return the process's start time in clock ticks since boot; None without such a process or without /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may contain anything, so field 22 is counted after it.
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] == b"Z" else int(fields[19])
