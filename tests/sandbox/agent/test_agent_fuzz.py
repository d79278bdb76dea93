"""Fuzz tests of the box agent's frame parser: anything that a broken or hostile peer may send.

For any input, the agent answers, sends FATAL or ends the connection. It never crashes, leaves no child, and allocates
memory only for bytes that arrive. The same tests run on a build with the address and undefined behaviour sanitizers.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_agent import Agent, resident_kb, wait_until

from proofbox.errors import ProtocolError
from proofbox.sandbox.client import wire
from proofbox.sandbox.client.wire import ExecFlag, Send
from proofbox.sandbox.host.binaries import program

# One worker runs all of these tests, so that the sanitizer build is made once.
pytestmark = pytest.mark.xdist_group("fuzz")
SOURCES = sorted((Path(wire.__file__).parents[1] / "agent" / "boxagent").glob("*.c"))


@pytest.fixture(scope="module", params=["as shipped", pytest.param("sanitized", marks=pytest.mark.needs("cc"))])
def binary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "as shipped":
        return program("boxagent")
    target = tmp_path_factory.mktemp("sanitized") / "boxagent"
    flags = [
        "-std=gnu11",
        "-O1",
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    ]
    argv = ["cc", *flags, *map(str, SOURCES), "-o", str(target)]
    built = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "sanitize" in built.stderr or "libasan" in built.stderr or "libubsan" in built.stderr:
        pytest.skip(f"cc has no sanitizers here: {built.stderr.splitlines()[-1]}")
    assert built.returncode == 0, built.stderr
    return target


def converse(binary: Path, pieces: list[bytes], greet: bool) -> None:
    """Send the pieces, disconnect, and assert that the agent behaves as described above."""
    box = Agent(binary=binary, greet=greet, env={"ASAN_OPTIONS": "detect_leaks=0:handle_segv=0"})
    try:
        peer = box.peer
        children = Path(f"/proc/{box.pid}/task/{box.pid}/children")
        try:
            for piece in pieces:
                peer.send(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the agent may disconnect
        peer.sock.shutdown(1)
        # All frames that it sends are well-formed.
        while not peer.ended:
            try:
                data = peer.sock.recv(1 << 16)
            except ConnectionResetError:
                break
            if not data:
                break
            try:
                for _ in peer.decoder.feed(data):
                    pass
            except ProtocolError as error:
                raise AssertionError("the agent sent a malformed frame") from error
        peer.ended = True
        code = box.wait()
        account = box.account()
        assert "Sanitizer" not in account, account
        assert "runtime error" not in account, account
        assert code == 0, f"{code}: {account}"
        wait_until(lambda: not children.exists(), "the agent's end")
    finally:
        box.close()


def chunked(draw: st.DrawFn, data: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


def exec_frame(id: int, argv: list[bytes], want: int = 0, timeout_ms: int = 0, limits: int = 0) -> bytes:
    settings = wire.settings(
        cwd=b"/",
        want=ExecFlag(want),
        timeout_ms=timeout_ms,
        grace_ms=0,
        caps=(100, 0),
        window=0,
        size=(1, 1),
        limits=dict.fromkeys(range(limits), 1 << 30),
    )
    env = wire.EncodedVariables({b"PATH": b"/usr/bin:/bin"})
    return wire.execute(id, wire.command(settings, argv, env))


ids = st.integers(0, 3)
argvs = st.sampled_from([[b"true"], [b"cat"], [b"true", b"", b"x" * 50], [b"no-such-program"]])
wants = st.integers(0, 7)
valid_frames = st.one_of(
    st.builds(exec_frame, ids, argvs, wants, st.sampled_from([0, 1, 50]), st.sampled_from([0, 0, 0, 20])),
    st.builds(lambda id, data: wire.frame(Send.STDIN, id, data), ids, st.binary(max_size=300)),
    st.builds(lambda kind, id: wire.frame(kind, id), st.sampled_from([Send.STDIN_EOF, Send.KILL, Send.PING]), ids),
    st.builds(lambda id, number: wire.frame(Send.SIGNAL, id, bytes([number])), ids, st.integers(0, 255)),
    st.builds(wire.resize, ids, st.integers(0, 65535), st.integers(0, 65535)),
    st.builds(wire.credit, ids, st.integers(0, 2**32 - 1)),
    st.just(wire.frame(Send.SHUTDOWN)),
)
any_frames = st.builds(
    lambda kind, id, payload: struct.pack("<IBI", len(payload) + 5, kind, id) + payload,
    st.integers(0, 255),
    ids,
    st.binary(max_size=200),
)
lying_frames = st.builds(
    lambda length, kind, payload: struct.pack("<IBI", length, kind, 1) + payload,
    st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 4, 5, 64, 65, 4 << 20, (4 << 20) + 1, 2**31, 2**32 - 1])),
    st.integers(0, 12),
    st.binary(max_size=100),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    frames = draw(st.lists(st.one_of(valid_frames, any_frames, lying_frames, st.binary(max_size=60)), max_size=12))
    return chunked(draw, b"".join(frames))


@st.composite
def damaged(draw: st.DrawFn) -> list[bytes]:
    """A valid sequence with flipped bits, a missing piece, or a missing end."""
    data = bytearray(b"".join(draw(st.lists(valid_frames, min_size=1, max_size=8))))
    for at in draw(st.lists(st.integers(0, len(data) * 8 - 1), max_size=4)):
        data[at // 8] ^= 1 << at % 8
    start = draw(st.integers(0, len(data)))
    if draw(st.booleans()):
        del data[start : start + draw(st.integers(1, 8))]
    if draw(st.booleans()):
        del data[start:]
    return chunked(draw, bytes(data))


@st.composite
def garbage(draw: st.DrawFn) -> list[bytes]:
    return chunked(draw, draw(st.binary(max_size=500)))


quick = settings(max_examples=max(1, settings().max_examples // 2), suppress_health_check=list(HealthCheck))


@quick
@given(pieces=garbage(), greet=st.booleans())
def test_random_bytes(binary: Path, pieces: list[bytes], greet: bool) -> None:
    converse(binary, pieces, greet)


@given(pieces=conversations())
@settings(suppress_health_check=list(HealthCheck))
def test_valid_and_invalid_frames(binary: Path, pieces: list[bytes]) -> None:
    converse(binary, pieces, greet=True)


@given(pieces=damaged())
@settings(suppress_health_check=list(HealthCheck))
def test_damaged_frames(binary: Path, pieces: list[bytes]) -> None:
    converse(binary, pieces, greet=True)


@pytest.mark.parametrize("length", [4 << 20, (4 << 20) + 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("kind", [Send.EXEC, Send.STDIN])
def test_claimed_frame_length_is_not_allocated(length: int, kind: Send) -> None:
    box = Agent()
    try:
        before = resident_kb(box.pid, "VmHWM")
        box.peer.send(wire.frame(Send.PING) + struct.pack("<IBI", length, kind, 1) + bytes(1000))
        box.peer.until(lambda: box.peer.pongs)
        if length > wire.MAX_FRAME:
            assert box.peer.until_ended() == "a frame of impossible length"
        else:
            size = int(Path(f"/proc/{box.pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            assert size < 12 << 20, "not even address space"
            assert resident_kb(box.pid, "VmHWM") < before + 1000
    finally:
        box.close()


@pytest.mark.parametrize("count", [2**32 - 1, 2**30, 2**20 + 1, 250_000])
def test_claimed_counts_and_lengths_in_a_frame_are_not_allocated(count: int) -> None:
    good = exec_frame(1, [b"true"])[9:]
    head = good[: good.index(b"/") + 1]  # up to cwd
    bodies = [
        head[:-5] + struct.pack("<I", count) + b"/",  # cwd's length
        head + struct.pack("<I", count) + b"x" * 50,  # argc
        head + struct.pack("<II", 1, count) + b"x" * 50,  # the length of an argument
        head + struct.pack("<II", 1, 4) + b"true" + struct.pack("<I", count),  # envc
    ]
    for body in bodies:
        box = Agent()
        try:
            before = resident_kb(box.pid, "VmHWM")
            box.peer.send_frame(Send.EXEC, 1, body)
            assert box.peer.until_ended() == "malformed EXEC"
        finally:
            box.close()
        assert before < 20_000


def test_largest_frame_is_accepted(rounds: Callable[[int, int], int]) -> None:
    box = Agent()
    try:
        for _ in range(rounds(3, 300)):
            argv = [b"true"] + [b"x" * 1000] * 3900
            record = box.peer.commands[1] = type(box.peer.start(["true"], 2))()
            box.peer.send(exec_frame(1, argv))
            box.peer.until(lambda record=record: record.over)  # type: ignore[misc]
            assert record.failed is not None, "the kernel accepts less"
            box.peer.until(lambda: box.peer.commands[2].over)
        assert resident_kb(box.pid, "VmHWM") < 30_000
    finally:
        box.close()
