"""A progress bar on stderr, for a person at a terminal."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator

from proofbox.core.text import printable

_EVERY = 0.1


@contextlib.contextmanager
def progress_bar(what: str, *, shown: bool) -> Iterator[Callable[[int, int | None], None]]:
    """Gives a function to tell how many bytes have come, and of how many. The line is gone at the end."""
    last = 0.0

    def tell(done: int, total: int | None) -> None:
        nonlocal last
        if shown and (time.monotonic() - last >= _EVERY or done == total):
            last = time.monotonic()
            width = max(20, shutil.get_terminal_size().columns - 1)
            print("\r" + bar(what, done, total, width), end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if last:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def bar(what: str, done: int, total: int | None, width: int) -> str:
    """`small  43% [######--------] 1.5 of 3.4 MB`, as wide as asked for."""
    name = printable(what)[:20]
    if not total:
        return f"{name}  {done / 1e6:.1f} MB".ljust(width)[:width]
    share = min(1.0, done / total)
    before, after = f"{name} {share:4.0%} [", f"] {done / 1e6:.1f} of {total / 1e6:.1f} MB"
    room = max(3, width - len(before) - len(after))
    full = round(share * room)
    return (before + "#" * full + "-" * (room - full) + after)[:width]
