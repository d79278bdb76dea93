"""Processes that go on without us: nobody waits for them, but their parent has to take note of their end.

Otherwise each of them stays in the process table for as long as we live.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading

_lock = threading.Lock()
_going_on: set[int] = set()
"""By descriptor: a pid may be another's by the time we ask."""


def let_go(process: subprocess.Popen[bytes]) -> None:
    """It is nobody's to wait for from here on."""
    note_ends()
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(process.pid)
        with _lock:
            _going_on.add(descriptor)
    process.returncode = 0


def note_ends() -> None:
    """Of those that have ended since."""
    with _lock:
        for descriptor in list(_going_on):
            try:
                ended = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG) is not None
            except ChildProcessError:  # somebody else took note, or it is our parent's: we were forked
                ended = True
            if ended:
                _going_on.discard(descriptor)
                os.close(descriptor)
