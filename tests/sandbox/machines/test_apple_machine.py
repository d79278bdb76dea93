"""The process of an `apple-vm` machine, with a fake Virtualization.framework: its devices, and its ends."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from proofbox.sandbox.machines import apple_machine
from proofbox.sandbox.machines.apple_machine import AppleMachine, MachineFailed, SharedDirectory
from proofbox.sandbox.machines.apple_signing import helper_command
from proofbox.sandbox.providers.apple_guest import HELPER

FAKES = Path(__file__).parent / "mac"
PATIENCE = 120.0

# Guests: programs with the console port as stdin and stdout. This part is common to them.
GUEST = """
import os, struct
from proofbox.sandbox.machines.console_port import *
def exactly(count):
    found = b""
    while len(found) < count:
        data = os.read(0, count - len(found))
        if not data:
            raise SystemExit(0)
        found += data
    return found
def receive():
    length, kind, number = HEADER.unpack(exactly(HEADER.size))
    return kind, number, exactly(length)
def send(kind, number=0, payload=b""):
    os.write(1, HEADER.pack(len(payload), kind, number) + payload)
"""
ECHO = """
send(READY)
while True:
    kind, number, payload = receive()
    if kind == DATA:
        send(DATA, number, payload)
    if kind == END:
        send(BYE)
"""
STUBBORN = "send(READY)\nwhile True: receive()\n"
GIVES_UP = "send(TEXT, 0, b'boxvm: in the guest: /dev/\\x1b[2Jx: failed')\nreceive()\n"
LIES = "send(READY)\nsend(99)\nreceive()\n"
ENDS = "raise SystemExit(0)\n"


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FAKES)


@pytest.fixture
def machine(tmp_path: Path) -> AppleMachine:
    (tmp_path / "project").mkdir()
    (tmp_path / "kernel").write_text(GUEST + ECHO)
    return AppleMachine(
        kernel=str(tmp_path / "kernel"),
        initramfs="/cache/initramfs",
        memory_mb=1024,
        cpus=2,
        system="/cache/image.tree",
        files={
            "0": SharedDirectory(str(tmp_path / "project"), True),
            "1": SharedDirectory("/srv/data", False),
        },
        targets=(),
        options=("--", "boxagent"),
    )


class Running:
    """The process of a machine, and its client's stream."""

    def __init__(self, machine: AppleMachine) -> None:
        self.stream, theirs = socket.socketpair()
        self.stream.settimeout(PATIENCE)
        number = str(theirs.fileno())
        words = [*helper_command(Path(sys.executable), HELPER), "--stream", number, number]
        self.process = subprocess.Popen(
            [*words, msgspec.json.encode(machine).decode()], pass_fds=[theirs.fileno()], stderr=subprocess.PIPE
        )
        theirs.close()

    def end(self) -> tuple[int, str]:
        """Wait for the end of the process, and return its exit code and its message."""
        _, text = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, text.decode()

    def close(self) -> None:
        self.stream.close()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def run(machine: AppleMachine, tmp_path: Path) -> Iterator[Callable[[str], Running]]:
    started: list[Running] = []

    def start(guest: str) -> Running:
        (tmp_path / "kernel").write_text(GUEST + guest)
        started.append(Running(machine))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_machine_has_only_the_devices_it_needs(machine: AppleMachine, tmp_path: Path) -> None:
    found = apple_machine.configure(machine, 0, 1).recorded()
    assert found == {
        "kernel": str(tmp_path / "kernel"),
        "initramfs": "/cache/initramfs",
        "command_line": apple_machine.KERNEL_OPTIONS,
        "memory_mb": 1024,
        "processors": 2,
        "ports": [{0: False}],
        "shares": {
            "system": {"": ["/cache/image.tree", True]},
            "files": {"0": [str(tmp_path / "project"), False], "1": ["/srv/data", True]},
        },
        "networks": 0,
    }


def test_refused_configuration_is_explained(machine: AppleMachine) -> None:
    with pytest.raises(MachineFailed, match="The memory size is invalid"):
        apple_machine.configure(msgspec.structs.replace(machine, memory_mb=64), 0, 1)


def test_replaced_directory_is_noticed(tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.mkdir()
    st = place.stat()
    shared = {"0": SharedDirectory(str(place), False, (st.st_dev, st.st_ino))}
    apple_machine.check_directories(shared)
    place.rename(tmp_path / "old")
    place.symlink_to(tmp_path / "old")
    with pytest.raises(MachineFailed, match="was replaced"):
        apple_machine.check_directories(shared)
    place.unlink()
    place.mkdir()
    with pytest.raises(MachineFailed, match="was replaced"):
        apple_machine.check_directories(shared)


def test_stream_reaches_the_guest_until_it_says_goodbye(run: Callable[[str], Running]) -> None:
    running = run(ECHO)
    running.stream.sendall(b"hello")
    assert running.stream.recv(100) == b"hello"
    running.stream.shutdown(socket.SHUT_WR)
    assert running.end() == (0, "")


def test_machine_ends_with_its_client(run: Callable[[str], Running]) -> None:
    running = run(STUBBORN)
    running.stream.close()
    assert running.end() == (0, "")


@pytest.mark.parametrize(
    ("guest", "message"),
    [
        (GIVES_UP, "apple-vm: boxvm: in the guest: /dev/\\x1b[2Jx: failed\n"),
        (LIES, "apple-vm: the guest broke the protocol: a frame's type\n"),
        (ENDS, "apple-vm: the machine ended unexpectedly\n"),
    ],
    ids=["gives-up", "lies", "ends"],
)
def test_end_of_a_machine_is_explained(run: Callable[[str], Running], guest: str, message: str) -> None:
    assert run(guest).end() == (1, message)


def test_machine_that_does_not_start_is_explained(machine: AppleMachine) -> None:
    running = Running(msgspec.structs.replace(machine, kernel="/nowhere/refused"))
    try:
        assert running.end() == (1, "apple-vm: the machine did not start: Internal\\x1b Virtualization error.\n")
    finally:
        running.close()


def test_process_has_no_variable_of_the_caller(run: Callable[[str], Running], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_CALLER", "1")
    running = run("send(TEXT, 0, ' '.join(sorted(os.environ)).encode())\nreceive()\n")
    names = running.end()[1].removeprefix("apple-vm: ").split()
    assert set(names) - {"LC_CTYPE", "PYTHONPATH"} == {"PYTHONHOME"}, "PYTHONPATH is set by the fake framework"
