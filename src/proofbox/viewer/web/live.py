"""Server-sent events: they notify a page when its content changes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from proofbox.evidence.bundle.paths import INDEX
from proofbox.viewer.runs import run_mark

POLL_SECONDS: Final = 0.5
KEEP_ALIVE: Final = 15.0
"""Seconds after which a comment is sent, so that an ended connection is noticed."""


async def changes(path: Path) -> AsyncIterator[bytes]:
    """Yield an event whenever a run or an attempt changes, until it is committed."""
    mark = _live_mark(path)
    quiet = 0.0
    yield b": watching\n\n"
    while True:
        if await anyio.Path(path / INDEX).exists():
            yield b"event: change\ndata: committed\n\nevent: end\ndata: committed\n\n"
            return
        await anyio.sleep(POLL_SECONDS)
        quiet += POLL_SECONDS
        now = await anyio.to_thread.run_sync(_live_mark, path)
        if now != mark:
            mark, quiet = now, 0.0
            yield b"event: change\ndata: changed\n\n"
        elif quiet >= KEEP_ALIVE:
            quiet = 0.0
            yield b": still watching\n\n"


def _live_mark(path: Path) -> object:
    try:
        entries = sorted((each.name, each.stat(follow_symlinks=False).st_size) for each in os.scandir(path))
    except OSError:
        entries = []
    return run_mark(path), tuple(entries)
