"""Keys in files. If a variable NAME is not set, NAME_FILE can name a file with its value, as for mounted secrets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

SUFFIX = "_FILE"
MAX_KEY = 64 << 10


def with_key_files(env: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return variables with those of `names` that are in files. A file that can't be read is left out."""
    found = dict(env)
    for name in names:
        path = env.get(name + SUFFIX)
        if path and not env.get(name):
            value = _read(path)
            if value:
                found[name] = value
    return found


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer must not block
        with open(fd, "rb") as file:
            return file.read(MAX_KEY).decode().strip()
    except (OSError, ValueError):
        return ""
