"""Projects, working directories and mounts: what they may be, resolved once, refused with both sides named."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from proofbox.errors import PathRefused
from proofbox.sandbox.contract import Mount
from proofbox.sandbox.own import own_directory_above

# No project and no mount: they are the host itself, or what the box has of its own.
_SYSTEM = frozenset(
    Path(p)
    for p in ("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var")
)
_GUEST_OWN = tuple(PurePosixPath(p) for p in ("/proc", "/dev", "/sys"))


def resolve_project(path: str | os.PathLike[str]) -> Path:
    project = _not_our_own(_real(path, "project"), "project")
    if not project.is_dir():
        raise PathRefused(f"project {os.fspath(path)!r} is not a directory", op="start", fix_hints=["name a directory"])
    if project in _SYSTEM:
        raise PathRefused(
            f"project {project} is part of the system itself",
            op="start",
            fix_hints=["name the directory the command works on; give more by --mount HOST:GUEST:ro"],
            details={"project": str(project)},
        )
    return project


def resolve_cwd(project: Path, cwd: str | os.PathLike[str] | None) -> Path:
    """The host path of a working directory: within the project, after every symlink."""
    if cwd is None:
        return project
    wanted = project / os.fspath(cwd)
    real = _real(wanted, "cwd")
    if not real.is_relative_to(project):
        through = "" if Path(os.path.normpath(wanted)) == real else f" (it leads to {real})"
        raise PathRefused(
            f"cwd {os.fspath(cwd)!r} is outside the project {project}{through}",
            op="exec",
            fix_hints=["name a directory of the project", f"or make its parent the project: --project {real}"],
            details={"cwd": str(real), "project": str(project)},
        )
    if not real.is_dir():
        raise PathRefused(f"cwd {os.fspath(cwd)!r} is not a directory", op="exec", fix_hints=["name a directory"])
    return real


def parse_mount(text: str) -> Mount:
    """`HOST:GUEST[:ro|rw]`. Read-only unless it says rw."""
    parts = text.split(":")
    mode = parts.pop() if len(parts) > 2 and parts[-1] in ("ro", "rw") else "ro"
    if len(parts) != 2 or not all(parts):
        raise PathRefused(
            f"mount {text!r} can't be read", op="start", fix_hints=["write HOST:GUEST, HOST:GUEST:ro or HOST:GUEST:rw"]
        )
    return resolve_mount(Mount(Path(parts[0]), parts[1], writable=mode == "rw"))


def resolve_mount(mount: Mount) -> Mount:
    host = _not_our_own(_real(mount.host, "mount"), "mount")
    guest = PurePosixPath(mount.guest)
    if host in _SYSTEM - {Path("/usr"), Path("/etc"), Path("/var"), Path("/boot")}:
        raise PathRefused(
            f"mount {host}: this would be the host itself", op="start", fix_hints=["mount what is needed of it"]
        )
    if not guest.is_absolute() or ".." in guest.parts or len(guest.parts) < 2:
        raise PathRefused(
            f"mount {host} at {mount.guest!r}: the place inside must be an absolute path, without '..', below /",
            op="start",
            fix_hints=[f"write {host}:/mnt/{host.name}:ro"],
        )
    try:
        usable = b"\0" not in os.fsencode(mount.guest)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise PathRefused(
            f"mount {host} at {mount.guest!r}: no path can hold that",
            op="start",
            fix_hints=[f"write {host}:/mnt/{host.name}:ro"],
        )
    if any(guest.is_relative_to(own) for own in _GUEST_OWN):
        raise PathRefused(
            f"mount {host} at {guest}: the box has its own there", op="start", fix_hints=["choose another place"]
        )
    return Mount(host, str(guest), mount.writable)


def _not_our_own(path: Path, what: str) -> Path:
    """Sessions, evidence, trust and settings live there: no box may ever see them."""
    own = own_directory_above(path)
    if own is not None:
        raise PathRefused(
            f"{what} {path} is in proofbox's own directory {own}", op="start", fix_hints=[f"use a place outside {own}"]
        )
    return path


def _real(path: str | os.PathLike[str], what: str) -> Path:
    text = os.fspath(path)
    if "\0" in text:
        raise PathRefused(
            f"{what} holds a NUL byte", op="start", fix_hints=["check the spelling: no path can hold one"]
        )
    try:
        return Path(text).expanduser().resolve(strict=True)
    except FileNotFoundError:
        raise PathRefused(f"{what} {text!r} does not exist", op="start", fix_hints=["check the spelling"]) from None
    except (OSError, RuntimeError, ValueError) as error:
        raise PathRefused(
            f"{what} {text!r} can't be resolved: {error}",
            op="start",
            fix_hints=["check the spelling and the permissions"],
        ) from None
