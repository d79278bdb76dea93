"""Validate paths as text, before anything is looked up on disk."""

from __future__ import annotations

import os

from proofbox.core.text import printable
from proofbox.errors import ToolPathRefused

MAX_PATH = 4096


def split(path: str, root: str) -> list[str]:
    """Return the names of a path from the root, including `..`, which the tree resolves.

    An absolute path must be inside the root and start with the root's own spelling; others are refused.
    """
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raise refusal(path, "contains characters that are not valid in file names") from None
    if not path or b"\0" in raw or len(raw) > MAX_PATH:
        raise refusal(path, "is empty, too long or contains a NUL byte")
    if path.startswith("/"):
        inside = f"{path.rstrip('/')}/".removeprefix(f"{root.rstrip('/')}/")
        if inside.startswith("/"):
            raise refusal(path, f"is outside the workspace {root}")
        path = inside
    return [name for name in path.split("/") if name not in ("", ".")]


def refusal(path: str, reason: str) -> ToolPathRefused:
    return ToolPathRefused(
        f"the path {printable(path[:200])} {reason}",
        op="path",
        details={"path": printable(path[:MAX_PATH])},
    )
