"""The user's state, cache and configuration directories, by the XDG Base Directory Specification.

The state directory holds rate limit ledgers and session sockets; other users could forge them in a directory that they
can write to. Each directory is created with mode 0700 and checked on every call. A directory that fails the check is
refused, never repaired, because other users may already have put files into it.
"""

from __future__ import annotations

import functools
import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path

from proofbox.errors import UsageError

_NAME = "proofbox"


def state_dir(env: Mapping[str, str] | None = None) -> Path:
    """Return the directory for machine-specific state that survives a restart: ledgers, sessions, capabilities."""
    return _own_directory(env, "XDG_STATE_HOME", ".local/state")


def cache_dir(env: Mapping[str, str] | None = None) -> Path:
    """Return the directory for data that can be recreated: images, downloads."""
    return _own_directory(env, "XDG_CACHE_HOME", ".cache")


def config_dir(env: Mapping[str, str] | None = None) -> Path:
    """Return the directory for the user's settings: defaults for every project."""
    return _own_directory(env, "XDG_CONFIG_HOME", ".config")


def _own_directory(env: Mapping[str, str] | None, variable: str, default: str) -> Path:
    env = os.environ if env is None else env
    base = env.get(variable, "")
    # XDG says to ignore a relative value: it would name a different directory in each working directory.
    parent = base if os.path.isabs(base) else os.path.join(_home(env), default)
    path = _below(parent)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(path, flags)
    except OSError as error:
        if path.is_symlink():
            raise _refusal(path, "is a symbolic link", f"remove {path}, or set another {variable}") from error
        reason = f"can't be created or opened ({error.strerror})"
        raise _refusal(path, reason, f"set {variable} to a directory you can write to") from error
    try:
        info = os.fstat(fd)
    finally:
        os.close(fd)
    if info.st_uid != os.geteuid():
        reason = f"belongs to uid {info.st_uid}, but you are uid {os.geteuid()}"
        raise _refusal(path, reason, f"set HOME or {variable} to a directory that you own")
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = f"is writable by other users (mode {stat.S_IMODE(info.st_mode):04o})"
        raise _refusal(path, reason, f"check its content, then: chmod go-w {path}")
    return path


@functools.lru_cache(maxsize=8)
def _below(parent: str) -> Path:
    return Path(parent) / _NAME  # making a path takes longer than the checks


def _home(env: Mapping[str, str]) -> str:
    home = env.get("HOME", "")
    if not os.path.isabs(home):
        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            home = ""
    if not os.path.isdir(home):  # never created here: accounts without a home name a path that must not exist
        raise UsageError(
            f"this user has no home directory ({home or 'not configured'})", op="dirs", fix_hints=["set HOME"]
        )
    return home


def _refusal(path: Path, reason: str, hint: str) -> UsageError:
    return UsageError(f"{path} {reason}", op="dirs", fix_hints=[hint], details={"path": str(path), "reason": reason})
