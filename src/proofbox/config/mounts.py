"""Mounts as settings and command lines spell them: `HOST:GUEST[:ro|rw]`."""

from __future__ import annotations

from pathlib import Path

from proofbox.core.files.path_walk import resolved_path
from proofbox.errors import PathRefused


def split_mount(text: str, base: Path | None = None) -> tuple[Path, str, bool]:
    """Split `HOST:GUEST[:ro|rw]`; read-only is the default. A relative source is resolved against `base`."""
    parts = text.split(":")
    mode = parts.pop() if len(parts) > 2 and parts[-1] in ("ro", "rw") else "ro"
    if len(parts) != 2 or not all(parts):
        raise PathRefused(
            f"malformed mount {text!r}", op="start", fix_hints=["write HOST:GUEST, HOST:GUEST:ro or HOST:GUEST:rw"]
        )
    host = Path(parts[0]) if base is None or parts[0].startswith("~") else base / parts[0]
    return host, parts[1], mode == "rw"


def mount_source(project: Path, text: str) -> str | None:
    """Return the host path that a mount in the project's settings leads to; None if it does not exist."""
    try:
        return str(resolved_path(split_mount(text, project)[0], "mount"))
    except PathRefused:
        return None
