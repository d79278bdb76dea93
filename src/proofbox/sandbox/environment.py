"""What a command finds in its environment: an allowlist of the caller's, and what the caller names.

Nothing else goes in.
"""

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
    """The caller's own, as far as it is harmless: for a command on the host itself."""
    source = os.environ if source is None else source
    return {name: source[name] for name in _FORWARDED if name in source}


def boxed(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """The same for a box, where home and temporary files are private and the user is another."""
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
