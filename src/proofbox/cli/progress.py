"""A progress line on stderr, for a person at a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from proofbox.core.text import printable

_EVERY = 0.1


def watched(*, as_json: bool) -> bool:
    """Return whether to show progress: stderr is a terminal and JSON was not requested."""
    return not as_json and sys.stderr is not None and sys.stderr.isatty()


@contextlib.contextmanager
def passing_line(*, shown: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that replaces the current line. The line is erased at the end."""
    drawn = False

    def show_line(text: str) -> None:
        nonlocal drawn
        if shown:
            drawn = True
            print(f"\r\x1b[K{printable(text)[: _width()]}", end="", file=sys.stderr, flush=True)

    try:
        yield show_line
    finally:
        if drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress_bar(what: str, *, shown: bool) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a function that takes the number of bytes received and the total."""
    last = 0.0
    with passing_line(shown=shown) as show_line:

        def update(done: int, total: int | None) -> None:
            nonlocal last
            if time.monotonic() - last >= _EVERY or done == total:
                last = time.monotonic()
                show_line(bar(what, done, total, _width()))

        yield update


def _width() -> int:
    from shutil import get_terminal_size  # only for a person at a terminal

    return max(20, get_terminal_size().columns - 1)


def bar(what: str, done: int, total: int | None, width: int) -> str:
    """Format a progress bar of the given width: `small  43% [######--------] 1.5 of 3.4 MB`."""
    name = printable(what)[:20]
    if not total:
        return f"{name}  {done / 1e6:.1f} MB".ljust(width)[:width]
    share = min(1.0, done / total)
    before, after = f"{name} {share:4.0%} [", f"] {done / 1e6:.1f} of {total / 1e6:.1f} MB"
    room = max(3, width - len(before) - len(after))
    full = round(share * room)
    return (before + "#" * full + "-" * (room - full) + after)[:width]
