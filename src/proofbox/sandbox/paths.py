"""Projects, working directories and mounts: check them, and resolve them once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from shlex import quote

from proofbox.config.mounts import split_mount
from proofbox.core.files.path_walk import entries_of, resolved_path
from proofbox.errors import PathRefused
from proofbox.sandbox.contract import Mount
from proofbox.sandbox.host.mounts import file_systems
from proofbox.sandbox.own_files import own_directory_above

# Refused as a project or mount: the host itself, or directories that a box has its own version of.
_SYSTEM = frozenset(
    Path(p)
    for p in ("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var")
)
# File systems with kernel settings: a write there changes the host, and root in a container may write there.
_KERNEL = frozenset(
    [
        *("binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs"),
        *("efivarfs", "proc", "pstore", "securityfs", "sysfs", "tracefs"),
    ]
)
_GUEST_OWN = tuple(PurePosixPath(p) for p in ("/proc", "/dev", "/sys"))


def resolve_project(path: str | os.PathLike[str]) -> Path:
    project = _not_our_own(resolved_path(path, "project"), "project")
    if not project.is_dir():
        raise PathRefused(f"project {os.fspath(path)!r} is not a directory", op="start", fix_hints=["name a directory"])
    if project in _SYSTEM:
        raise PathRefused(
            f"project {project} is part of the system itself",
            op="start",
            fix_hints=["name the directory that the command works on; add others with --mount HOST:GUEST:ro"],
            details={"project": str(project)},
        )
    return _without_kernel_settings(project, "project")


def resolve_cwd(project: Path, cwd: str | os.PathLike[str] | None) -> Path:
    """Return the host path of a working directory, which must be in the project after resolving symbolic links."""
    if cwd is None:
        return project
    wanted = project / os.fspath(cwd)
    real = resolved_path(wanted, "cwd")
    if not real.is_relative_to(project):
        through = "" if Path(os.path.normpath(wanted)) == real else f" (it leads to {real})"
        raise PathRefused(
            f"cwd {os.fspath(cwd)!r} is outside the project {project}{through}",
            op="exec",
            fix_hints=["name a directory in the project", f"or make it the project: --project {quote(str(real))}"],
            details={"cwd": str(real), "project": str(project)},
        )
    if not real.is_dir():
        raise PathRefused(f"cwd {os.fspath(cwd)!r} is not a directory", op="exec", fix_hints=["name a directory"])
    return real


def parse_mount(text: str, base: Path | None = None) -> Mount:
    """Parse `HOST:GUEST[:ro|rw]`; read-only is the default. A relative source is resolved against `base`."""
    return Mount(*split_mount(text, base))


def resolve_mounts(project: Path, mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """Check the mounts of a box and resolve their sources.

    A source must not lead through a symbolic link in the project or in a writable mount: a command in an earlier box
    could have created the link to reach its target.
    """
    found = [(mount, entries_of(mount.host, "mount")) for mount in mounts]
    resolved = [_checked_mount(mount, Path(way[-1].path)) for mount, way in found]
    reached = (project, *(mount.host for mount in resolved if mount.writable))
    for mount, (_, way) in zip(resolved, found, strict=True):
        for entry in way:
            if entry.target is not None and any(Path(entry.path).parent.is_relative_to(each) for each in reached):
                raise PathRefused(
                    f"mount {mount.host} at {mount.guest}: {entry.path} is a symbolic link to {entry.target!r}, which a"
                    " command in a box could have created",
                    op="start",
                    fix_hints=[f"if that is intended, name the target itself: {mount.host}:{mount.guest}"],
                    details={"link": entry.path, "target": entry.target, "leads_to": str(mount.host)},
                )
    return tuple(resolved)


def _checked_mount(mount: Mount, host: Path) -> Mount:
    host = _not_our_own(host, "mount")
    guest = PurePosixPath(mount.guest)
    if host in _SYSTEM - {Path("/usr"), Path("/etc"), Path("/var"), Path("/boot")}:
        raise PathRefused(
            f"mount {host}: this would be the host itself", op="start", fix_hints=["mount only the part you need"]
        )
    if not guest.is_absolute() or ".." in guest.parts or len(guest.parts) < 2:
        raise PathRefused(
            f"mount {host} at {mount.guest!r}: the path in the box must be absolute, below /, and without '..'",
            op="start",
            fix_hints=[f"write {host}:/mnt/{host.name}:ro"],
        )
    try:
        usable = b"\0" not in os.fsencode(mount.guest)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise PathRefused(
            f"mount {host} at {mount.guest!r}: not a valid path",
            op="start",
            fix_hints=[f"write {host}:/mnt/{host.name}:ro"],
        )
    if any(guest.is_relative_to(own) for own in _GUEST_OWN):
        raise PathRefused(
            f"mount {host} at {guest}: the box has its own directory at that path",
            op="start",
            fix_hints=["choose another path"],
        )
    return Mount(_without_kernel_settings(host, "mount"), str(guest), mount.writable)


def _without_kernel_settings(path: Path, what: str) -> Path:
    for place, kind in file_systems(str(path)):
        if kind in _KERNEL:
            where = "it is part of" if place == "." else f"{path / place} is"
            raise PathRefused(
                f"{what} {path} gives access to settings of the host's kernel: {where} a mounted {kind}",
                op="start",
                fix_hints=["name a directory without it"],
                details={"path": str(path / place), "file_system": kind},
            )
    return path


def _not_our_own(path: Path, what: str) -> Path:
    """Refuse proofbox's own directories. They hold sessions, evidence, trust and settings, which no box may see."""
    own = own_directory_above(path)
    if own is not None:
        raise PathRefused(
            f"{what} {path} is in proofbox's own directory {own}", op="start", fix_hints=[f"use a path outside {own}"]
        )
    return path
