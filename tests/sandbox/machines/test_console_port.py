"""The host's side of the console port trusts no frame, bounds its memory, and ends with its client."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from raw_agent import wait_until

from proofbox.sandbox.machines import console_port
from proofbox.sandbox.machines.console_port import (
    BYE,
    CLOSE,
    CONFIG,
    CREDIT,
    DATA,
    END,
    HEADER,
    MAX_PAYLOAD,
    OPEN,
    READY,
    TEXT,
    WINDOW,
    ConsolePort,
    PortBroken,
)

PATIENCE = 60.0


class Guest:
    """The guest's end of a port that a thread serves, and the client of its stream."""

    def __init__(self, targets: tuple[str, ...] = ()) -> None:
        to_guest, from_guest = os.pipe(), os.pipe()
        self.reading, self.writing = to_guest[0], from_guest[1]
        self.client, theirs = socket.socketpair()
        self.client.settimeout(PATIENCE)
        self.ended: list[Exception | None] = []
        self.port = ConsolePort(from_guest[0], to_guest[1], theirs, targets, ["--pids", "9", "--", "boxagent"])
        self._descriptors = [*to_guest, from_guest[1]]
        self._served = from_guest[0]
        self._streams = [self.client, theirs]
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        try:
            self.port.serve()
        except (PortBroken, OSError) as error:
            self.ended.append(error)
        else:
            self.ended.append(None)
        finally:
            os.close(self._served)  # so that writing to it fails instead of waiting

    def send(self, kind: int, number: int = 0, payload: bytes = b"") -> None:
        self.send_raw(HEADER.pack(len(payload), kind, number) + payload)

    def send_raw(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # the port has ended
            while data:
                data = data[os.write(self.writing, data) :]

    def receive(self) -> tuple[int, int, bytes]:
        length, kind, number = HEADER.unpack(self._exactly(HEADER.size))
        return kind, number, self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            data = os.read(self.reading, count - len(found))
            assert data, "the port has ended"
            found += data
        return found

    def boot(self) -> bytes:
        """Say READY, and take the configuration and the stream's channel. Return the configuration."""
        self.send(READY)
        kind, _, config = self.receive()
        assert kind == CONFIG
        assert self.receive() == (OPEN, 0, bytes(4))
        return config

    def outcome(self) -> Exception | None:
        """Wait for the end of the port, and return what ended it."""
        self.thread.join(PATIENCE)
        [found] = self.ended
        return found

    def close(self) -> None:
        self.send(BYE)
        self.thread.join(PATIENCE)
        for stream in self._streams:
            stream.close()
        for channel in self.port._channels.values():
            channel.stream.close()
        for descriptor in self._descriptors:
            os.close(descriptor)


@pytest.fixture
def guest() -> Iterator[Guest]:
    found = Guest()
    yield found
    found.close()


def test_configuration_has_the_time_random_bytes_and_options(guest: Guest) -> None:
    config = guest.boot()
    seconds, nanoseconds = struct.unpack_from("<QQ", config)
    assert abs(seconds + nanoseconds / 1e9 - time.time()) < PATIENCE
    assert len(set(config[16:80])) > 8
    assert config[80:] == b"--pids\0009\0--\0boxagent\0"


def test_stream_is_connected_in_both_directions(guest: Guest) -> None:
    guest.client.sendall(b"before the boot")
    guest.boot()
    assert guest.receive() == (DATA, 0, b"before the boot")
    guest.send(DATA, 0, b"hello")
    assert guest.client.recv(100) == b"hello"
    guest.send(END, 0)
    assert guest.client.recv(100) == b""
    guest.send(BYE)
    assert guest.outcome() is None


def test_port_ends_after_its_client_has_left(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_port, "END_PATIENCE", 0.01)
    guest.boot()
    guest.client.close()
    assert guest.receive()[:2] == (END, 0)
    assert guest.outcome() is None


def test_port_ends_if_the_client_leaves_before_the_boot(guest: Guest) -> None:
    guest.client.close()
    assert guest.outcome() is None


def test_guest_connects_only_to_named_sockets(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "target"))
        listener.listen()
        listener.settimeout(PATIENCE)
        guest = Guest((str(tmp_path / "target"), str(tmp_path / "missing")))
        try:
            guest.boot()
            for number, target in ((1, 2), (3, 1), (5, 0xFFFFFFFF)):
                guest.send(OPEN, number, struct.pack("<I", target))
                assert guest.receive() == (CLOSE, number, b"")
            guest.send(OPEN, 7, struct.pack("<I", 0))
            guest.send(DATA, 7, b"ping")
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(PATIENCE)
                assert peer.recv(10) == b"ping"
                peer.sendall(b"pong")
                assert guest.receive() == (DATA, 7, b"pong")
                guest.send(CLOSE, 7)
                assert peer.recv(10) == b""
        finally:
            guest.close()


def test_host_sends_no_more_than_the_guest_has_room_for(guest: Guest) -> None:
    guest.boot()
    sending = threading.Thread(target=guest.client.sendall, args=(bytes(2 * WINDOW),), daemon=True)
    sending.start()
    received = 0
    while received < WINDOW:
        received += len(guest.receive()[2])
    assert received == WINDOW
    guest.send(CREDIT, 0, struct.pack("<I", 10))
    more = 0
    while more < 10:
        more += len(guest.receive()[2])
    assert more == 10, "exactly the new credit"
    guest.send(CREDIT, 0, struct.pack("<I", WINDOW))
    while received < 2 * WINDOW - 10:
        received += len(guest.receive()[2])
    sending.join(PATIENCE)
    assert not sending.is_alive()


def test_host_acknowledges_what_its_client_has_taken(guest: Guest) -> None:
    guest.boot()
    for _ in range(4):
        guest.send(DATA, 0, bytes(WINDOW // 16))
        taken = 0
        while taken < WINDOW // 16:
            taken += len(guest.client.recv(WINDOW))
        assert guest.receive() == (CREDIT, 0, struct.pack("<I", WINDOW // 16))


def flood(guest: Guest) -> None:
    guest.boot()
    for _ in range(9):  # the client takes some of it, so more than the window is needed to exceed it for certain
        guest.send(DATA, 0, bytes(WINDOW // 4))


RULES: dict[str, tuple[Callable[[Guest], object], bytes, str]] = {
    "nothing before ready": (lambda _: None, HEADER.pack(0, END, 0), "a frame's type"),
    "no open before ready": (lambda _: None, HEADER.pack(4, OPEN, 1) + bytes(4), "a frame's type"),
    "unknown type": (Guest.boot, HEADER.pack(0, 77, 0), "a frame's type"),
    "type zero": (Guest.boot, bytes(HEADER.size), "a frame's type"),
    "the host's own type": (Guest.boot, HEADER.pack(0, CONFIG, 0), "a frame's type"),
    "ready twice": (Guest.boot, HEADER.pack(0, READY, 0), "a frame's type"),
    "too long": (Guest.boot, HEADER.pack(MAX_PAYLOAD + 1, DATA, 0), "a frame's length"),
    "longest": (Guest.boot, HEADER.pack(0xFFFFFFFF, DATA, 0), "a frame's length"),
    "end with payload": (Guest.boot, HEADER.pack(1, END, 0) + b"x", "a frame's length"),
    "target of wrong size": (Guest.boot, HEADER.pack(3, OPEN, 1) + bytes(3), "a frame's type"),
    "even number": (Guest.boot, HEADER.pack(4, OPEN, 2) + bytes(4), "a channel's number"),
    "number of the stream": (Guest.boot, HEADER.pack(4, OPEN, 0) + bytes(4), "a channel's number"),
    "credit that was never used": (Guest.boot, HEADER.pack(4, CREDIT, 0) + struct.pack("<I", 1), "a channel's credit"),
    "credit of wrong size": (Guest.boot, HEADER.pack(5, CREDIT, 0) + bytes(5), "a channel's credit"),
    "data after the end": (Guest.boot, HEADER.pack(0, END, 0) + HEADER.pack(1, DATA, 0) + b"x", "a channel's data"),
    "more than the window": (flood, b"", "a channel's data"),
}


@pytest.mark.parametrize("rule", RULES)
def test_frame_that_breaks_a_rule_ends_the_machine(rule: str) -> None:
    guest = Guest()
    try:
        prepare, frame, reason = RULES[rule]
        prepare(guest)
        guest.send_raw(frame)
        assert str(guest.outcome()) == f"the guest broke the protocol: {reason}"
    finally:
        guest.close()


def test_last_words_of_the_guest_are_reported_and_escaped(guest: Guest) -> None:
    guest.send(TEXT, 0, b"boxvm: in the guest: /dev\x1b[2J: \xff" + b"x" * 5000)
    found = str(guest.outcome())
    assert found.startswith("boxvm: in the guest: /dev\\x1b[2J: ")
    assert len(found) < 1100


def test_guest_that_does_not_read_is_not_read_from(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 8 << 10
    monkeypatch.setattr(console_port, "MAX_PAYLOAD", limit)
    guest.boot()
    os.set_blocking(guest.writing, False)
    numbers, pending = itertools.count(1, 2), b""

    def is_full() -> bool:
        """Request connections until the port takes no more. It answers each request."""
        nonlocal pending
        try:
            while True:
                pending = pending or HEADER.pack(4, OPEN, next(numbers)) + struct.pack("<I", 9)
                pending = pending[os.write(guest.writing, pending) :]
        except BlockingIOError:
            return len(guest.port._out) >= 2 * limit

    wait_until(is_full, "the port to stop reading")
    assert len(guest.port._out) < 2 * limit + console_port.CHUNK
    os.set_blocking(guest.writing, True)
    threading.Thread(target=drain, args=(os.dup(guest.reading),), daemon=True).start()
    guest.send_raw(pending)
    guest.send(BYE)
    assert guest.outcome() is None


def drain(descriptor: int) -> None:
    with open(descriptor, "rb", 0) as port:
        while port.read(1 << 16):
            pass
