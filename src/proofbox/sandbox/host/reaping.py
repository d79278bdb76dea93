"""Child processes that keep running without a waiter. Their parent must reap them, or they stay as zombies."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading

_lock = threading.Lock()
_released: set[int] = set()
"""By pidfd, since pids are reused."""


def reap_later(process: subprocess.Popen[bytes]) -> None:
    """Release a process: from now on, no caller waits for it."""
    reap_released()
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(process.pid)
        with _lock:
            _released.add(descriptor)
    process.returncode = 0


def reap_released() -> None:
    """Reap the released processes that have ended."""
    with _lock:
        for descriptor in list(_released):
            try:
                ended = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG) is not None
            except ChildProcessError:  # reaped elsewhere, or a child of our parent: this process was forked
                ended = True
            if ended:
                _released.discard(descriptor)
                os.close(descriptor)
