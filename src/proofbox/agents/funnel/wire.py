"""The protocol between the program in the box and the supervisor: frames with a type, a length and a payload.

`sandbox/agent/boxrun.c` describes the frames. Incoming data is untrusted: its size is checked before it is buffered,
and any malformed frame closes the connection.
"""

from __future__ import annotations

import os
import struct
from typing import Literal

import anyio
import anyio.abc
import msgspec

VERSION = b"1"
MAX_REQUEST = 1 << 20
MAX_FRAME = 64 << 10
STDIN_WINDOW = 64 << 10
SEND_TIMEOUT = 5.0
"""Timeout in seconds for sending the last frame of a connection; after that, the frame is dropped."""
_HEAD = struct.Struct(">cI")
_COUNT = struct.Struct(">I")

Mode = Literal["run", "mcp"]
_MODES: dict[bytes, Mode] = {b"run": "run", b"mcp": "mcp"}


class MalformedFrame(Exception):
    """A malformed or unexpected frame, or a malformed request."""


class FunnelRequest(msgspec.Struct, frozen=True):
    """A request to run a command in a directory with an environment."""

    mode: Mode
    cwd: str
    argv: tuple[bytes, ...]
    env: dict[str, str]


class FunnelPeer:
    """The peer of one connection. Only one task may read; several tasks may send, one frame at a time."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._sending = anyio.Lock()

    async def request(self) -> FunnelRequest:
        kind, payload = await self._frame(MAX_REQUEST)
        if kind != b"Q":
            raise MalformedFrame("not a request")
        return parse_request(payload)

    async def receive(self) -> tuple[bytes, bytes]:
        """Return the type and payload of the next frame.

        Raises `anyio.EndOfStream` or `BrokenResourceError` if the peer has disconnected.
        """
        return await self._frame(MAX_FRAME)

    async def output(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        for start in range(0, len(data), MAX_FRAME):
            await self._send(b"O" if stream == "stdout" else b"R", data[start : start + MAX_FRAME])

    async def credit(self, count: int) -> None:
        await self._send(b"C", _COUNT.pack(count))

    async def exit(self, code: int) -> None:
        with anyio.move_on_after(SEND_TIMEOUT):
            await self._send(b"X", bytes([code & 0xFF]))

    async def fail(self, code: int, message: str) -> None:
        with anyio.move_on_after(SEND_TIMEOUT):
            await self._send(b"F", bytes([code]) + message.encode("utf-8", "replace")[: MAX_FRAME - 1])

    async def _send(self, kind: bytes, payload: bytes) -> None:
        async with self._sending:
            await self._stream.send(_HEAD.pack(kind, len(payload)) + payload)

    async def _frame(self, limit: int) -> tuple[bytes, bytes]:
        await self._fill(_HEAD.size)
        kind, size = _HEAD.unpack_from(self._buffer)
        if size > limit:
            raise MalformedFrame("frame too large")
        await self._fill(_HEAD.size + size)
        payload = bytes(self._buffer[_HEAD.size : _HEAD.size + size])
        del self._buffer[: _HEAD.size + size]
        return kind, payload

    async def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            self._buffer += await self._stream.receive()


def parse_request(payload: bytes) -> FunnelRequest:
    *words, rest = payload.split(b"\0")
    if rest or len(words) < 4 or words[0] != VERSION or words[1] not in _MODES or not words[3].isdigit():
        raise MalformedFrame("malformed request")
    count = int(words[3][:9])
    argv = tuple(words[4 : 4 + count])
    if len(argv) != count or not argv or not argv[0]:
        raise MalformedFrame("malformed command")
    env = {}
    for each in words[4 + count :]:
        name, equals, value = each.partition(b"=")
        if name and equals:
            env[os.fsdecode(name)] = os.fsdecode(value)
    return FunnelRequest(mode=_MODES[words[1]], cwd=os.fsdecode(words[2]), argv=argv, env=env)
