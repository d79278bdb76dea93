"""The caller's terminal, connected to a command in a box: raw while it runs, resized with it, and always restored."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from typing import BinaryIO

from proofbox.sandbox.client.signals import exiting_on, handling_signals
from proofbox.sandbox.contract import Output

Resize = Callable[[int, int], None]


def is_terminal() -> bool:
    """Return whether stdin and stdout are a terminal, so that the command gets a pty."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def terminal_size() -> tuple[int, int]:
    """Return rows and columns."""
    size = os.get_terminal_size(sys.stdout.fileno())
    return size.lines, size.columns


def own_stdin() -> BinaryIO:
    """Open the caller's stdin without a buffer, so that each key is passed on immediately."""
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)


def pass_on(output: Output) -> None:
    """Write output to the caller's stdout or stderr immediately and unchanged."""
    fd = sys.stdout.fileno() if output.stream == "stdout" else sys.stderr.fileno()
    data = output.data
    while data:
        data = data[os.write(fd, data) :]


@contextlib.contextmanager
def raw_terminal() -> Iterator[None]:
    """Pass every key on, including Ctrl-C, which the pty in the box turns into a signal.

    The terminal is restored at the end, even after SIGTERM or SIGHUP.
    """
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    with exiting_on((signal.SIGTERM, signal.SIGHUP)):
        tty.setraw(fd)
        try:
            yield
        finally:
            with contextlib.suppress(termios.error):  # the terminal was closed
                termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextlib.contextmanager
def following_size(resize: Resize) -> Iterator[None]:
    """Call `resize` after every change of the terminal's size, from a separate thread."""

    def follow(_number: int) -> None:
        with contextlib.suppress(OSError):
            resize(*terminal_size())

    with handling_signals((signal.SIGWINCH,), follow):
        yield
