"""The box agent's wire format, without any I/O. It is documented in `agent/boxagent/boxagent.h`."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum, IntFlag

import msgspec

from proofbox.errors import ProtocolError, RequestInvalid

PROTOCOL = 1
MAGIC = 0x31584250
MAX_FRAME = 4 << 20
STDIN_WINDOW = 256 << 10

_HEADER = struct.Struct("<IBI")
MAX_COMMAND = MAX_FRAME - _HEADER.size
_EXEC = struct.Struct("<IIIQQIHHB")
_LIMIT = struct.Struct("<BQ")
_HELLO = struct.Struct("<IHIII")
_CHUNK = struct.Struct("<QQ")
_EXIT = struct.Struct("<iiBBQQQQQQ")
_FAILED = struct.Struct("<Bi")
_U32 = struct.Struct("<I")


class Send(IntEnum):
    HELLO = 1
    EXEC = 2
    STDIN = 3
    STDIN_EOF = 4
    SIGNAL = 5
    KILL = 6
    RESIZE = 7
    CREDIT = 8
    PING = 9
    SHUTDOWN = 10


class Recv(IntEnum):
    HELLO = 65
    STARTED = 66
    STDOUT = 67
    STDERR = 68
    STDIN_ACK = 69
    EXIT = 70
    FAILED = 71
    PONG = 72
    FATAL = 73


_RECEIVED = {int(kind): kind for kind in Recv}


class ExecFlag(IntFlag):
    PTY = 1
    STDIN = 2
    STARTED = 4


class Feature(IntFlag):
    """Mechanisms that the agent found in force."""

    CGROUP = 1
    UID_SPLIT = 2
    LANDLOCK = 4
    SECCOMP = 8
    PID1 = 16
    LISTENING = 32


class StartStage(IntEnum):
    """The stage at which the start of a command failed."""

    REQUEST = 1
    FORK = 2
    SETUP = 3
    CWD = 4
    EXEC = 5


class Hello(msgspec.Struct, frozen=True):
    version: int
    features: Feature
    pid: int
    landlock_abi: int


class Exit(msgspec.Struct, frozen=True):
    code: int
    signal: int
    timed_out: bool
    killed: bool
    pipes_held: bool
    survivors: bool
    oom_killed: bool
    """By the control group that the agent has, as in a virtual machine."""
    wall_us: int
    user_us: int
    sys_us: int
    max_rss_kb: int
    stdout_bytes: int
    stderr_bytes: int


def frame(kind: Send, id: int = 0, payload: bytes = b"") -> bytes:
    return _HEADER.pack(len(payload) + 5, kind, id) + payload


def hello() -> bytes:
    return frame(Send.HELLO, 0, struct.pack("<IH", MAGIC, PROTOCOL))


class EncodedVariables(dict[bytes, bytes]):
    """Environment variables. Those that many commands have are encoded once."""

    @functools.cached_property
    def encoded(self) -> bytes:
        return _strings([name + b"=" + value for name, value in self.items()])


def _strings(values: Sequence[bytes]) -> bytes:
    return _U32.pack(len(values)) + b"".join([_U32.pack(len(value)) + value for value in values])


def settings(
    *,
    cwd: bytes,
    want: int,
    timeout_ms: int,
    grace_ms: int,
    caps: tuple[int, int],
    window: int,
    size: tuple[int, int],
    limits: Mapping[int, int],
) -> bytes:
    """Encode how a command runs; `command` adds its arguments and environment."""
    parts = [_EXEC.pack(want, timeout_ms, grace_ms, *caps, window, *size, len(limits))]
    for resource, value in limits.items():
        parts.append(_LIMIT.pack(resource, value))
    return b"".join([*parts, _U32.pack(len(cwd)), cwd])


def command(settings: bytes, argv: Sequence[bytes], env: EncodedVariables) -> bytes:
    """Encode a command to execute; `execute` adds its id."""
    return settings + _strings(argv) + env.encoded


def execute(id: int, command: bytes) -> bytes:
    return frame(Send.EXEC, id, command)


def credit(id: int, count: int) -> bytes:
    return frame(Send.CREDIT, id, _U32.pack(count))


def resize(id: int, rows: int, cols: int) -> bytes:
    return frame(Send.RESIZE, id, struct.pack("<HH", rows, cols))


def signal(id: int, number: int) -> bytes:
    if not 1 <= number <= 64:
        raise RequestInvalid(f"invalid signal {number}", op="signal", fix_hints=["give a number from 1 to 64"])
    return frame(Send.SIGNAL, id, bytes([number]))


class FrameDecoder:
    """Decodes bytes into frames. Raises only `ProtocolError`, for any input, and buffers at most one frame."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Recv, int, bytes]]:
        held = self._held
        if held:
            held += data
        source = held or data  # most frames arrive as a whole
        start, size = 0, len(source)
        try:
            while size - start >= 4:
                (length,) = _U32.unpack_from(source, start)
                if not 5 <= length <= MAX_FRAME:
                    raise ProtocolError(f"malformed frame: invalid length of {length} bytes", op="protocol")
                if size - start < 4 + length:
                    break
                _, kind, id = _HEADER.unpack_from(source, start)
                known = _RECEIVED.get(kind)
                if known is None:
                    raise ProtocolError(f"malformed frame: unknown type {kind}", op="protocol")
                payload = bytes(source[start + 9 : start + 4 + length])
                start += 4 + length
                yield known, id, payload
        finally:
            if source is held:
                del held[:start]
            else:
                held += data[start:]


def parse_hello(payload: bytes) -> Hello:
    magic, version, features, pid, landlock_abi = _unpack(_HELLO, payload)
    if magic != MAGIC or version != PROTOCOL:
        raise ProtocolError(f"the box agent uses protocol {version}, but this client uses {PROTOCOL}", op="protocol")
    return Hello(version, Feature(features), pid, landlock_abi)


def parse_chunk(payload: bytes) -> tuple[int, int, bytes]:
    """Return microseconds since the start, the offset in the stream, and the data."""
    if len(payload) < _CHUNK.size:
        raise ProtocolError("malformed output frame: the header is missing", op="protocol")
    at, offset = _CHUNK.unpack_from(payload)
    return at, offset, payload[_CHUNK.size :]


def parse_exit(payload: bytes) -> Exit:
    code, signal, why, flags, *counts = _unpack(_EXIT, payload)
    return Exit(code, signal, why == 1, why == 2, bool(flags & 1), bool(flags & 2), bool(flags & 4), *counts)


def parse_failed(payload: bytes) -> tuple[int, int]:
    """Return the stage and the errno."""
    stage, errno = _unpack(_FAILED, payload)
    return stage, errno


def parse_count(payload: bytes) -> int:
    (count,) = _unpack(_U32, payload)
    return int(count)


def _unpack(layout: struct.Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) != layout.size:
        raise ProtocolError(f"malformed frame: {len(payload)} bytes instead of {layout.size}", op="protocol")
    return layout.unpack(payload)
