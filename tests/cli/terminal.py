"""A simulated user at a real terminal, for tests of interactive commands."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

PROOFBOX = (sys.executable, "-m", "proofbox")


class Terminal:
    """A user at a terminal who types and waits for output."""

    def __init__(self, words: list[str], cwd: Path, program: Sequence[str] = PROOFBOX) -> None:
        wait, go = os.pipe()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.read(wait, 1)
            os.chdir(cwd)
            os.execv(program[0], [*program, *words])  # noqa: S606
        self.resize(30, 90)
        self.before = termios.tcgetattr(self.fd)
        self.seen = b""
        os.write(go, b"!")
        for end in (wait, go):
            os.close(end)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def wait_for(self, text: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while text.encode() not in self.seen:
            assert time.monotonic() < end, f"{text!r} did not appear in {self.seen!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                self.seen += os.read(self.fd, 65536)
        self.seen = self.seen.split(text.encode(), 1)[1]

    def press_until(self, key: str, text: str) -> None:
        """Press a key repeatedly: a shell that is just starting its command may miss the first Ctrl-C."""
        for _ in range(20):
            self.type(key)
            with contextlib.suppress(AssertionError):
                return self.wait_for(text, 1.0)
        raise AssertionError(f"{text!r} did not appear after {key!r}: {self.seen!r}")

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        os.kill(self.pid, signal.SIGWINCH)

    def end(self) -> int:
        while True:  # drain the output, or the process cannot exit
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
