"""The environment of commands: an allowlist of the caller's variables, and those that the caller names."""

from __future__ import annotations

import os
from collections.abc import Mapping

_FORWARDED = (
    *("PATH", "HOME", "USER", "SHELL", "LANG", "TERM", "TMPDIR", "TZ"),
    *("LC_ALL", "LC_ADDRESS", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION", "LC_MEASUREMENT", "LC_MESSAGES"),
    *("LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER", "LC_TELEPHONE", "LC_TIME"),
)
BOX_HOME = "/home/box"
BOX_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def forwarded(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the caller's harmless variables, for a command on the host itself."""
    source = os.environ if source is None else source
    return {name: source[name] for name in _FORWARDED if name in source}


def boxed(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the same for a box, with its own home, temporary directory and user."""
    env = forwarded(source)
    path = env.get("PATH", "").split(":") + BOX_PATH.split(":")
    return {
        **env,
        "PATH": ":".join(dict.fromkeys(part for part in path if part)),
        "HOME": BOX_HOME,
        "USER": "box",
        "SHELL": "/bin/sh",
        "TMPDIR": "/tmp",  # noqa: S108 (the box's own)
    }
