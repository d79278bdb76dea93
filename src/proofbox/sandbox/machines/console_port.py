"""The host's side of a machine's console port, for hosts without `boxvm`, which is a Linux program.

`agent/boxvm/boxvm.h` describes the protocol: channels over one port, each with its own flow control. Nothing that the
guest sends is trusted: lengths, numbers and credits are checked, memory is bounded, and a frame that breaks a rule ends
the machine.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Sequence

from proofbox.core.text import printable

CONFIG, OPEN, DATA, END, CLOSE, CREDIT, TEXT, BYE, READY = range(1, 10)
CHUNK, MAX_PAYLOAD, WINDOW, MAX_CHANNELS = 32 << 10, 256 << 10, 256 << 10, 512
HEADER = struct.Struct("<IBI")
"""The length of the payload, the type, and the channel."""
END_PATIENCE = 3.0
"""For the guest to write its files after its client has left, in seconds."""
_NUMBER = struct.Struct("<I")
_RANDOM = 64
_TEXT_LIMIT = 1000
_EMPTY = frozenset({END, CLOSE, BYE, READY})


class PortBroken(Exception):
    """The guest broke a rule of the protocol, or reported why it gives up."""


class _Channel:
    def __init__(self, number: int, stream: socket.socket) -> None:
        stream.setblocking(False)
        self.number = number
        self.stream = stream
        self.received = bytearray()  # not yet written to the stream
        self.credit = WINDOW  # may still be sent
        self.taken = 0  # written to the stream, not yet acknowledged
        self.sent_end = self.got_end = self.passed_end = self.broken = False


class ConsolePort:
    """Connects a client's stream with the box agent in the guest, and the guest with sockets of the host.

    `reading` and `writing` are the descriptors of the port; `targets` are the unix sockets that the guest may connect
    to; `options` are the options of the guest's init.
    """

    def __init__(
        self, reading: int, writing: int, stream: socket.socket, targets: Sequence[str], options: Sequence[str]
    ) -> None:
        self._reading, self._writing, self._stream = reading, writing, stream
        self._targets, self._options = targets, options
        self._in, self._out = bytearray(), bytearray()
        self._channels: dict[int, _Channel] = {}
        self._ready = self._finished = False
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)

    def serve(self) -> None:
        """Serve the port until the guest disconnects, the port closes, or the client left and a grace period ended."""
        deadline: float | None = None
        while not self._finished:
            if deadline is None and self._client_left():
                deadline = time.monotonic() + END_PATIENCE
            if deadline is not None and time.monotonic() >= deadline:
                return
            ready = self._wait(deadline)
            if not self._ready and self._stream.fileno() in ready:
                return  # the client left before the guest was up
            for channel in list(self._channels.values()):
                if channel.stream.fileno() in ready:
                    self._move(channel)
            if self._reading in ready and not self._read():
                return
            self._flush()
            self._drop_finished()

    def _wait(self, deadline: float | None) -> set[int]:
        """Return the descriptors that are ready."""
        poll = select.poll()
        full = len(self._out) >= MAX_PAYLOAD
        # A guest that does not take what it is sent can't make this process store more: it isn't read from.
        poll.register(self._reading, 0 if len(self._out) >= 2 * MAX_PAYLOAD else select.POLLIN)
        if self._out:
            poll.register(self._writing, select.POLLOUT)
        if not self._ready:
            poll.register(self._stream, 0)  # reports only its end
        for channel in self._channels.values():
            reads = not channel.sent_end and channel.credit and not full
            events = (select.POLLIN if reads else 0) | (select.POLLOUT if channel.received else 0)
            if events:
                poll.register(channel.stream, events)
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        return {fd for fd, _ in poll.poll(None if seconds is None else seconds * 1000)}

    def _client_left(self) -> bool:
        own = next((each for each in self._channels.values() if each.stream is self._stream), None)
        return self._ready and (own is None or own.sent_end)

    def _read(self) -> bool:
        """Take what the guest has sent. Return False when the port has ended."""
        try:
            data = os.read(self._reading, CHUNK)
        except BlockingIOError:
            return True
        self._in += data
        while len(self._in) >= HEADER.size and not self._finished:
            length, kind, number = HEADER.unpack_from(self._in)
            if length > MAX_PAYLOAD or (kind in _EMPTY and length):
                raise _wrong("a frame's length")
            if len(self._in) < HEADER.size + length:
                break
            payload = bytes(self._in[HEADER.size : HEADER.size + length])
            del self._in[: HEADER.size + length]
            self._take(kind, number, payload)
        for channel in list(self._channels.values()):
            self._move(channel)
        return bool(data)

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind == TEXT:
            raise PortBroken(printable(payload[:_TEXT_LIMIT].decode("utf-8", "replace")).strip())
        if kind == READY and not self._ready:
            self._ready = True
            self._configure()
            self._channels[0] = _Channel(0, self._stream)
            self._send(OPEN, 0, _NUMBER.pack(0))
        elif kind == OPEN and self._ready and len(payload) == _NUMBER.size:
            self._open(number, _NUMBER.unpack(payload)[0])
        elif kind in (DATA, END, CLOSE, CREDIT) and self._ready:
            channel = self._channels.get(number)
            if channel is not None and not channel.broken:  # it may have been closed here in the meantime
                self._take_for(channel, kind, payload)
        elif kind == BYE:
            self._finished = True
        else:
            raise _wrong("a frame's type")

    def _take_for(self, channel: _Channel, kind: int, payload: bytes) -> None:
        if kind == DATA:
            if channel.got_end or len(channel.received) + channel.taken + len(payload) > WINDOW:
                raise _wrong("a channel's data")
            channel.received += payload
        elif kind == END:
            channel.got_end = True
        elif kind == CLOSE:
            channel.broken = True
        else:
            if len(payload) != _NUMBER.size or _NUMBER.unpack(payload)[0] > WINDOW - channel.credit:
                raise _wrong("a channel's credit")
            channel.credit += _NUMBER.unpack(payload)[0]

    def _configure(self) -> None:
        seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
        words = b"".join(os.fsencode(word) + b"\0" for word in self._options)
        payload = struct.pack("<QQ", seconds, nanoseconds) + secrets.token_bytes(_RANDOM) + words
        if len(payload) > MAX_PAYLOAD:
            raise PortBroken("the machine's configuration is too large: use fewer mounts")
        self._send(CONFIG, 0, payload)

    def _open(self, number: int, target: int) -> None:
        if number in self._channels or not number % 2:
            raise _wrong("a channel's number")
        connection = socket.socket(socket.AF_UNIX)
        try:
            if target >= len(self._targets) or len(self._channels) >= MAX_CHANNELS:
                raise ConnectionRefusedError
            connection.setblocking(False)
            connection.connect(self._targets[target])
        except OSError:
            connection.close()
            self._send(CLOSE, number)
            return
        self._channels[number] = _Channel(number, connection)

    def _move(self, channel: _Channel) -> None:
        """Move as many bytes between a channel and its stream as both can take."""
        try:
            self._write_received(channel)
            while not channel.broken and not channel.sent_end and channel.credit and len(self._out) < MAX_PAYLOAD:
                data = channel.stream.recv(min(channel.credit, CHUNK))
                channel.credit -= len(data)
                channel.sent_end = not data
                self._send(DATA if data else END, channel.number, data)
        except BlockingIOError:
            return
        except OSError:
            channel.broken = True
            self._send(CLOSE, channel.number)

    def _write_received(self, channel: _Channel) -> None:
        with contextlib.suppress(BlockingIOError):
            while channel.received and not channel.broken:
                count = channel.stream.send(channel.received)
                del channel.received[:count]
                channel.taken += count
        if channel.taken >= WINDOW // 16:
            self._send(CREDIT, channel.number, _NUMBER.pack(channel.taken))
            channel.taken = 0
        if channel.got_end and not channel.passed_end and not channel.received:
            channel.passed_end = True
            channel.stream.shutdown(socket.SHUT_WR)

    def _drop_finished(self) -> None:
        for channel in list(self._channels.values()):
            if channel.broken or (channel.passed_end and channel.sent_end):
                del self._channels[channel.number]
                channel.stream.close()

    def _send(self, kind: int, number: int, payload: bytes = b"") -> None:
        self._out += HEADER.pack(len(payload), kind, number) + payload

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._out:
                del self._out[: os.write(self._writing, self._out)]


def _wrong(what: str) -> PortBroken:
    return PortBroken(f"the guest broke the protocol: {what}")
