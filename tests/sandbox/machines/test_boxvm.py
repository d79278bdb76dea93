"""The host's side of `boxvm` ends the machine of a guest that breaks a rule of the console port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from proofbox.sandbox.host.binaries import program

pytestmark = pytest.mark.needs("root")

HOSTILE = """
import os, struct, sys
os.close(2)  # it ends with an error, because its machine ends
port = int(sys.argv[1].removeprefix("fd="))
def frame(kind, channel, payload=b""):
    return struct.pack("<IBI", len(payload), kind, channel) + payload
OPEN, DATA, END, CREDIT, READY = 2, 3, 4, 6, 9
def send(data):
    while data:
        data = data[os.write(port, data):]
send(frame(READY, 0))
"""


@pytest.mark.parametrize(
    ("guest", "reason"),
    [
        pytest.param(
            "for n in range(1, 2_000_000, 2): send(frame(OPEN, n, struct.pack('<I', 9)))",
            "a guest that does not read",
            id="flood",
        ),
        pytest.param("send(struct.pack('<IBI', 1 << 30, DATA, 0))", "a frame's length", id="length"),
        pytest.param("send(frame(77, 0))", "a frame's type", id="type"),
        pytest.param("send(frame(READY, 0))", "a frame's type", id="ready twice"),
        pytest.param("send(frame(OPEN, 2, bytes(4)))", "a channel's number", id="the host's number"),
        pytest.param("send(frame(CREDIT, 0, struct.pack('<I', 1)))", "a channel's credit", id="credit"),
        pytest.param("send(frame(DATA, 0, bytes(200_000)) * 50)", "a channel's data", id="beyond the window"),
        pytest.param("send(frame(END, 0) + frame(DATA, 0, b'x'))", "a channel's data", id="data after the end"),
    ],
)
def test_guest_that_breaks_a_rule_ends_its_machine(tmp_path: Path, guest: str, reason: str) -> None:
    script = tmp_path / "qemu.py"
    script.write_text(f"{HOSTILE}{guest}\nos.read(0, 1)\n")
    client, stream = socket.socketpair()
    idle = ["/bin/sleep", "600"]
    argv = [str(program("boxvm")), "--stream", str(stream.fileno()), str(stream.fileno())]
    argv += ["--system", *idle, "--files", *idle, "--qemu", sys.executable, "-I", str(script), "fd=@port"]
    argv += ["--guest", "--"]
    with client, stream:
        waits, stays = os.pipe()
        done = subprocess.run(
            argv, pass_fds=[stream.fileno()], stdin=waits, capture_output=True, text=True, timeout=120, check=False
        )
        os.close(waits)
        os.close(stays)
    assert (done.returncode, done.stderr) == (125, f"boxvm: {reason}: Protocol error\n")
