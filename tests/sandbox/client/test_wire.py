"""The client's half of the wire format: any received bytes give frames or a `ProtocolError`."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.errors import ProtocolError, SandboxError
from proofbox.sandbox.client import wire
from proofbox.sandbox.client.calls import ActiveCall, CollectedOutput
from proofbox.sandbox.client.requests import encode_env, make_request, make_settings
from proofbox.sandbox.client.wire import ExecFlag, FrameDecoder, Recv, Send

kinds = st.sampled_from(list(Recv))
frames = st.lists(st.tuples(kinds, st.integers(0, 2**32 - 1), st.binary(max_size=300)), max_size=10)


def encoded(kind: int, id: int, payload: bytes) -> bytes:
    return struct.pack("<IBI", len(payload) + 5, kind, id) + payload


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted(cut % (len(data) + 1) for cut in cuts)
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


@given(frames=frames, cuts=st.lists(st.integers(0, 5000), max_size=20))
def test_frames_survive_any_chunking(frames: list[tuple[Recv, int, bytes]], cuts: list[int]) -> None:
    decoder = FrameDecoder()
    data = b"".join(encoded(*frame) for frame in frames)
    assert [frame for piece in pieces(data, cuts) for frame in decoder.feed(piece)] == frames


@given(data=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=10))
def test_arbitrary_bytes_raise_only_protocol_errors(data: bytes, cuts: list[int]) -> None:
    decoder = FrameDecoder()
    try:
        for piece in pieces(data, cuts):
            for kind, id, payload in decoder.feed(piece):
                assert isinstance(kind, Recv)
                assert encoded(kind, id, payload) in data
    except ProtocolError:
        pass


parsers: list[Callable[[bytes], Any]] = [
    wire.parse_hello,
    wire.parse_chunk,
    wire.parse_exit,
    wire.parse_failed,
    wire.parse_count,
]


@given(payload=st.binary(max_size=80))
@pytest.mark.parametrize("parse", parsers)
def test_arbitrary_payloads_raise_only_protocol_errors(parse: Callable[[bytes], Any], payload: bytes) -> None:
    try:
        parse(payload)
    except ProtocolError:
        pass


@given(frames=frames)
def test_any_frames_end_in_a_result_or_a_typed_error(frames: list[tuple[Recv, int, bytes]]) -> None:
    call = ActiveCall(1, make_request(["true"], make_settings("/", streamed=True), encode_env({})))
    try:
        for kind, _, payload in frames:
            call.feed(kind, payload)
    except SandboxError:
        pass


@pytest.mark.parametrize("length", [0, 4, wire.MAX_FRAME + 1, 2**31, 2**32 - 1])
def test_impossible_length_is_refused_immediately(length: int) -> None:
    with pytest.raises(ProtocolError, match="invalid length"):
        list(FrameDecoder().feed(struct.pack("<I", length)))


def test_unknown_frame_type_is_refused() -> None:
    for kind in (0, 1, 64, 74, 255):
        with pytest.raises(ProtocolError, match="unknown type"):
            list(FrameDecoder().feed(encoded(kind, 0, b"")))


def test_decoder_buffers_at_most_one_frame() -> None:
    decoder = FrameDecoder()
    big = encoded(Recv.STDOUT, 1, bytes(1 << 20))
    tracemalloc.start()
    try:
        for _ in range(20):
            for start in range(0, len(big), 50_000):
                for _, _, payload in decoder.feed(big[start : start + 50_000]):
                    assert len(payload) == 1 << 20
        # A frame that claims the maximum length but is incomplete: only the received bytes are held.
        assert list(decoder.feed(struct.pack("<IBI", wire.MAX_FRAME, Recv.STDOUT, 1) + bytes(100))) == []
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 5 << 20
    assert peak < 8 << 20


def test_failing_consumer_loses_no_later_frame() -> None:
    decoder = FrameDecoder()
    data = b"".join(encoded(Recv.PONG, id, b"") for id in range(3))
    for _, id, _ in decoder.feed(data):
        assert id == 0
        break
    assert [id for _, id, _ in decoder.feed(b"")] == [1, 2]


words = st.binary(max_size=50)


@given(
    id=st.integers(0, 2**32 - 1),
    argv=st.lists(words, max_size=5),
    env=st.dictionaries(words, words, max_size=3),
    cwd=words,
    limits=st.dictionaries(st.integers(0, 255), st.integers(0, 2**64 - 1), max_size=3),
)
def test_exec_frame_has_the_documented_layout(
    id: int, argv: list[bytes], env: dict[bytes, bytes], cwd: bytes, limits: dict[int, int]
) -> None:
    settings = wire.settings(
        cwd=cwd,
        want=ExecFlag.PTY | ExecFlag.STDIN,
        timeout_ms=7,
        grace_ms=8,
        caps=(9, 10),
        window=11,
        size=(12, 13),
        limits=limits,
    )
    data = wire.execute(id, wire.command(settings, argv, wire.EncodedVariables(env)))
    at = 0

    def take(layout: str) -> tuple[Any, ...]:
        nonlocal at
        found = struct.unpack_from("<" + layout, data, at)
        at += struct.calcsize("<" + layout)
        return found

    def string() -> bytes:
        nonlocal at
        (size,) = take("I")
        at += size
        return data[at - size : at]

    assert take("IBI") == (len(data) - 4, Send.EXEC, id)
    assert take("IIIQQIHHB") == (3, 7, 8, 9, 10, 11, 12, 13, len(limits))
    assert dict(take("BQ") for _ in limits) == limits
    assert string() == cwd
    assert [string() for _ in range(take("I")[0])] == argv
    assert [string() for _ in range(take("I")[0])] == [name + b"=" + value for name, value in env.items()]
    assert at == len(data)


@given(cap=st.integers(1, 50), sizes=st.lists(st.integers(0, 30), max_size=10))
def test_streamed_output_is_capped_like_kept_output(cap: int, sizes: list[int]) -> None:
    true = bytes(n % 251 for n in range(sum(sizes)))
    gathered, at = CollectedOutput(cap), 0
    for size in sizes:
        gathered.add(at, true[at : at + size])
        at += size
    if len(true) <= cap:
        assert gathered.close(len(true)) == true
        assert gathered.omitted == 0
    else:
        head, tail = true[: cap - cap // 2], true[len(true) - cap // 2 :] if cap > 1 else b""
        mark = b"\n[proofbox: %d bytes left out]\n" % (len(true) - cap)
        assert gathered.close(len(true)) == head + mark + tail
        assert gathered.omitted == len(true) - cap


@pytest.mark.parametrize("version", [0, 2, 65535])
def test_other_protocol_version_is_refused_by_number(version: int) -> None:
    with pytest.raises(ProtocolError, match=f"protocol {version}"):
        wire.parse_hello(struct.pack("<IHIII", wire.MAGIC, version, 0, 1, 0))
