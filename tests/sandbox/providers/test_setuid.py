"""A box can't create setuid or setgid files with system calls that a shell can't make.

The conformance check `confinement.setuid-bits` covers the others.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from proofbox import Sandboxes

# struct open_how: flags, mode, resolve.
OPENAT2 = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
how = struct.pack("QQQ", 0o101, 0o4755, 0)
print(libc.syscall(437, -100, b"by-openat2", how, len(how)), ctypes.get_errno())
"""
MODES = """
import os
for mode in range(0o10000):
    for way in ("created", "changed"):
        name = f"{way}-{mode:o}"
        try:
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, mode if way == "created" else 0o600))
            if way == "changed":
                os.chmod(name, mode)
            answer = os.stat(name).st_mode & 0o7777
            if answer & 0o6000 or mode & 0o6000 or (way == "changed" and answer != mode):
                print(name, oct(answer))
        except PermissionError as error:
            if not mode & 0o6000:
                print(name, error)
        if os.path.exists(name):
            os.unlink(name)
print("done")
"""


@pytest.mark.needs("bubblewrap")
def test_no_system_call_sets_setuid_or_setgid_bits(tmp_path: Path) -> None:
    with Sandboxes(tmp_path) as boxes, boxes.start_session(provider="bubblewrap") as session:
        if session.exec(["sh", "-c", "command -v python3"]).exit_code:
            pytest.skip("the box has no python3")
        assert session.exec(["python3", "-c", OPENAT2], timeout=60).stdout.split() == ["-1", str(errno.ENOSYS)]
        assert session.exec(["python3", "-c", MODES], timeout=60).stdout == "done\n", (
            "all other modes are set as requested"
        )
    assert not list(tmp_path.iterdir())
