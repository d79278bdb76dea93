"""The caller's own terminal, lent to a command in a box: raw while it runs, resized with it, and always restored."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from typing import BinaryIO

from proofbox.sandbox.client.signals import ending_on, hearing
from proofbox.sandbox.contract import Output

Resize = Callable[[int, int], None]


def is_terminal() -> bool:
    """Whether a person sits at both ends: a pty is for them alone."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def terminal_size() -> tuple[int, int]:
    """Rows and columns."""
    size = os.get_terminal_size(sys.stdout.fileno())
    return size.lines, size.columns


def own_stdin() -> BinaryIO:
    """Unbuffered: a key must not wait for a buffer to fill."""
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)


def pass_on(output: Output) -> None:
    """Write it where it belongs, at once and as it is: whoever gave a command the terminal gave it all of it."""
    fd = sys.stdout.fileno() if output.stream == "stdout" else sys.stderr.fileno()
    data = output.data
    while data:
        data = data[os.write(fd, data) :]


@contextlib.contextmanager
def raw_terminal() -> Iterator[None]:
    """Every key goes through, Ctrl-C too: the terminal inside makes a signal of it.

    Put back at the end, also when that is asked for from outside.
    """
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    with ending_on((signal.SIGTERM, signal.SIGHUP)):
        tty.setraw(fd)
        try:
            yield
        finally:
            with contextlib.suppress(termios.error):  # a terminal that was closed needs nothing any more
                termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextlib.contextmanager
def following_size(resize: Resize) -> Iterator[None]:
    """Tell of every change of size, by a call from a thread of its own."""

    def follow(_number: int) -> None:
        with contextlib.suppress(OSError):
            resize(*terminal_size())

    with hearing((signal.SIGWINCH,), follow):
        yield
