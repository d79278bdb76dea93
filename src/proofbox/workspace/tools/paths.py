"""What a path may be, before anything is looked up: text that names something below the root."""

from __future__ import annotations

import os

from proofbox.core.text import printable
from proofbox.errors import ToolPathRefused

MAX_PATH = 4096


def split(path: str, root: str) -> list[str]:
    """The names of a path from the root, `..` among them as they stand: what they mean, the walk decides.

    An absolute path is one of the root's, spelled as the root is; every other is refused.
    """
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raise refusal(path, "holds characters that no file name can") from None
    if not path or b"\0" in raw or len(raw) > MAX_PATH:
        raise refusal(path, "is empty, too long or holds a NUL byte")
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
