"""Where proofbox keeps a user's own things: state, cache and configuration, by the XDG base directory rules.

State holds ledgers of rate limits and session sockets, so a directory that others may write to would let them forge
either. Each directory is created 0700 and checked on every call; what doesn't pass is refused, never repaired, because
whoever made it so may have put things inside.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path

from proofbox.errors import UsageError

_NAME = "proofbox"


def state_dir(env: Mapping[str, str] | None = None) -> Path:
    """What must survive a restart and belongs to this machine: ledgers, sessions, measured capabilities."""
    return _own_directory(env, "XDG_STATE_HOME", ".local/state")


def cache_dir(env: Mapping[str, str] | None = None) -> Path:
    """What can be made again: images, downloads."""
    return _own_directory(env, "XDG_CACHE_HOME", ".cache")


def config_dir(env: Mapping[str, str] | None = None) -> Path:
    """What the user wrote: defaults for every project."""
    return _own_directory(env, "XDG_CONFIG_HOME", ".config")


def _own_directory(env: Mapping[str, str] | None, variable: str, default: str) -> Path:
    env = os.environ if env is None else env
    base = env.get(variable, "")
    # The XDG rules say to ignore a relative value: it would mean another directory in each working directory.
    parent = Path(base) if os.path.isabs(base) else _home(env) / default
    path = parent / _NAME
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(path, flags)
    except OSError as error:
        if path.is_symlink():
            raise _refusal(path, "is a symbolic link", f"remove {path}, or point {variable} elsewhere") from error
        reason = f"can't be created or opened ({error.strerror})"
        raise _refusal(path, reason, f"set {variable} to a directory you can write to") from error
    try:
        info = os.fstat(fd)
    finally:
        os.close(fd)
    if info.st_uid != os.geteuid():
        reason = f"belongs to uid {info.st_uid}, and you are uid {os.geteuid()}"
        raise _refusal(path, reason, f"set HOME or {variable} to a directory of your own")
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = f"can be written by others (mode {stat.S_IMODE(info.st_mode):04o})"
        raise _refusal(path, reason, f"look at what is in it, then: chmod go-w {path}")
    return path


def _home(env: Mapping[str, str]) -> Path:
    home = env.get("HOME", "")
    if not os.path.isabs(home):
        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            home = ""
    if not os.path.isdir(home):  # never made here: accounts without one name a place that must not exist
        raise UsageError(
            f"there is no home directory for this user ({home or 'none is known'})", op="dirs", fix_hints=["set HOME"]
        )
    return Path(home)


def _refusal(path: Path, reason: str, hint: str) -> UsageError:
    return UsageError(f"{path} {reason}", op="dirs", fix_hints=[hint], details={"path": str(path), "reason": reason})
