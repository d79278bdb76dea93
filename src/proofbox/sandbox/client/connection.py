"""The client end of a box's stream: many concurrent commands, from many threads, over one connection.

There is no reader thread. A waiting thread reads for all if no other thread does, until its own command has ended; then
another takes over. With one thread, an `exec` is one send and one or two receives. `async_connection.py` does the same
on anyio.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

from proofbox.errors import ProofboxError, ProtocolError, RequestInvalid, SandboxLost
from proofbox.sandbox.client import wire
from proofbox.sandbox.client.calls import ActiveCall, ActiveCalls
from proofbox.sandbox.client.requests import CommandRequest
from proofbox.sandbox.client.wire import Send
from proofbox.sandbox.contract import OnOutput, OnStart
from proofbox.sandbox.host.readiness import readable

RECEIVE = 64 << 10
# How long the agent may take after a command's timeout to kill its tree and report it (it gives up itself after 5 s).
ANSWER_TIMEOUT = 10.0


class Connection:
    def __init__(self, sock: socket.socket, kill: Callable[[], None]) -> None:
        """`kill` ends the box without its agent: used when the agent does not answer."""
        self._sock = sock
        self._kill = kill
        self._decoder = wire.FrameDecoder()
        self._calls = ActiveCalls()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0  # threads that wait for a change
        self._sending = threading.Lock()
        self._reading = False
        self._lost: ProofboxError | None = None
        # The agent always reads: if it takes nothing for this long, it is frozen. Unlike settimeout, only for sending.
        timeout = struct.pack("@ll", int(ANSWER_TIMEOUT), int(ANSWER_TIMEOUT % 1 * 1_000_000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        self._send(wire.hello())

    # Commands

    @property
    def hello(self) -> wire.Hello | None:
        """The agent's greeting; None until it has arrived."""
        return self._calls.hello

    @property
    def lost(self) -> bool:
        """Whether the box is known to have ended."""
        return self._lost is not None

    def run(
        self,
        request: CommandRequest,
        on_output: OnOutput | None = None,
        on_start: Callable[[RunningCall], None] | None = None,
    ) -> ActiveCall:
        """Start a command, feed its stdin, and wait for its end. An exception (also Ctrl-C) kills the command."""
        id = self._calls.new_id()
        data = wire.execute(id, request.encoded)
        with self._lock:
            call = self._calls.begin(id, request)
        try:
            self._send(data)
            if on_start is not None:
                on_start(RunningCall(self, call))
            if request.settings.stdin is not None:
                self._feed_stdin(call, request.settings.stdin)
            self._wait(call, on_output)
        except BaseException:
            self._abandon(call)
            raise
        finally:
            with self._lock:
                self._calls.end(call)
        return call

    @property
    def running(self) -> int:
        """The number of commands that this client waits for."""
        return len(self._calls)

    def send_for(self, call: ActiveCall, data: bytes) -> None:
        """Send a frame about a command, unless the command or the box has ended."""
        with contextlib.suppress(ProofboxError):
            if not call.finished:
                self._send(data)

    def wait_for_hello(self, timeout: float) -> wire.Hello:
        """Wait for the agent's greeting: the box is running when this returns."""
        deadline = time.monotonic() + timeout
        while self.hello is None:
            self._turn(lambda: self.hello is not None, deadline)
        return self.hello

    def shutdown(self) -> None:
        """Ask the agent to end everything; return when the stream has ended."""
        with contextlib.suppress(SandboxLost, ProtocolError):
            self._send(wire.frame(Send.SHUTDOWN))
            deadline = time.monotonic() + ANSWER_TIMEOUT
            while True:
                self._turn(lambda: False, deadline)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that is still reading or sending
        self._mark_lost(SandboxLost("the session was stopped", op="exec"))
        # Close the descriptor last: its number can be reused at once, and a reading thread would read another file.
        with self._lock:
            while self._reading:
                self._wait_for_change()
        with self._sending:
            self._sock.close()

    # Reading

    def _wait(self, call: ActiveCall, on_output: OnOutput | None) -> None:
        settings = call.request.settings
        timeout = settings.timeout
        deadline = None if timeout is None else time.monotonic() + timeout + settings.grace + ANSWER_TIMEOUT
        while True:
            while call.waiting:
                chunk = call.waiting.popleft()
                if on_output is not None:
                    on_output(chunk)
                if not call.finished:
                    self._send(wire.credit(call.id, len(chunk.data)))
            if call.finished:
                return
            if call.stdin_error is not None:
                raise call.stdin_error
            self._turn(lambda: call.finished or bool(call.waiting) or call.stdin_error is not None, deadline)

    def _turn(self, ready: Callable[[], bool], deadline: float | None) -> None:
        """Read frames for all threads until `ready`, or wait while another thread reads."""
        with self._lock:
            while self._reading and not ready() and self._lost is None:
                if not self._wait_for_change(None if deadline is None else max(0.0, deadline - time.monotonic())):
                    raise self._give_up()
            if ready():
                return
            if self._lost is not None:
                raise self._lost
            self._reading = True
        try:
            while not ready():
                self._receive(deadline)
        finally:
            with self._lock:
                self._reading = False
                self._announce()

    def _wait_for_change(self, seconds: float | None = None) -> bool:
        self._waiting += 1
        try:
            return self._changed.wait(seconds)
        finally:
            self._waiting -= 1

    def _announce(self) -> None:
        if self._waiting:
            self._changed.notify_all()

    def _receive(self, deadline: float | None) -> None:
        # Not settimeout: it would also affect a thread that is sending.
        # And not a receive that blocks: the kernel would wake it up when the agent takes the request.
        if not readable(self._sock, None if deadline is None else deadline - time.monotonic()):
            raise self._give_up()
        try:
            data = self._sock.recv(RECEIVE)
        except OSError as error:
            raise self._mark_lost(SandboxLost(f"the box's stream broke: {error}", op="exec")) from None
        if not data:
            raise self._mark_lost(SandboxLost("the box ended while the command was running", op="exec"))
        try:
            with self._lock:
                for kind, id, payload in self._decoder.feed(data):
                    self._calls.dispatch(kind, id, payload)
                self._announce()
        except ProofboxError as error:
            raise self._mark_lost(error) from None

    def _mark_lost(self, error: ProofboxError) -> ProofboxError:
        with self._lock:
            self._lost = self._lost or error
            self._announce()
            return self._lost

    def _give_up(self) -> ProofboxError:
        """Kill the box: its agent does not answer, so its commands can't be ended otherwise."""
        lost = self._mark_lost(unanswered())
        self._kill()
        return lost

    # Writing

    def _send(self, data: bytes) -> None:
        with self._sending:
            try:
                self._sock.sendall(data)
            except BlockingIOError:
                raise self._give_up() from None
            except OSError as error:
                raise self._mark_lost(SandboxLost(f"the box's stream broke: {error}", op="exec")) from None

    def _feed_stdin(self, call: ActiveCall, stdin: bytes | BinaryIO) -> None:
        if isinstance(stdin, bytes) and len(stdin) <= call.stdin_window:
            data = wire.frame(Send.STDIN, call.id, stdin) if stdin else b""
            self._send(data + wire.frame(Send.STDIN_EOF, call.id))
            return
        # The source may block, or exceed the window: use a thread, so that output can be read in the meantime.
        threading.Thread(target=self._send_stdin, args=(call, stdin), name="proofbox-stdin", daemon=True).start()

    def _send_stdin(self, call: ActiveCall, stdin: bytes | BinaryIO) -> None:
        offset = 0
        with contextlib.suppress(SandboxLost):
            while True:
                with self._lock:
                    while call.stdin_window <= 0 and not call.finished and self._lost is None:
                        self._wait_for_change()
                    room = min(call.stdin_window, 64 << 10)
                if call.finished or self._lost is not None:
                    return
                if isinstance(stdin, bytes):
                    data = stdin[offset : offset + room]
                    offset += len(data)
                else:
                    try:
                        data = read_stdin(stdin, room)
                    except RequestInvalid as error:
                        with self._lock:
                            call.stdin_error = error
                            self._announce()
                        self._send(wire.frame(Send.PING))  # wakes the reading thread, which may wait for this call
                        return
                if not data:
                    self._send(wire.frame(Send.STDIN_EOF, call.id))
                    return
                with self._lock:
                    call.stdin_window -= len(data)
                self._send(wire.frame(Send.STDIN, call.id, data))

    def _abandon(self, call: ActiveCall) -> None:
        """Kill the command. When this returns, the command has ended, or its box has."""
        with contextlib.suppress(SandboxLost, ProtocolError):
            if not call.finished and self._lost is None:
                self._send(wire.frame(Send.KILL, call.id))
                deadline = time.monotonic() + ANSWER_TIMEOUT
                while not call.finished:
                    call.waiting.clear()
                    self._turn(lambda: call.finished or bool(call.waiting), deadline)


class BlockingConnection:
    """A connection with coroutines that block, for `service_core.py`."""

    def __init__(self, blocking: Connection) -> None:
        self.close = blocking.close
        self._blocking = blocking

    @property
    def hello(self) -> wire.Hello | None:
        return self._blocking.hello

    @property
    def lost(self) -> bool:
        return self._blocking.lost

    @property
    def running(self) -> int:
        return self._blocking.running

    async def run(self, request: CommandRequest, on_output: OnOutput | None, on_start: OnStart | None) -> ActiveCall:
        return self._blocking.run(request, on_output, on_start)

    async def wait_for_hello(self, seconds: float) -> wire.Hello:
        return self._blocking.wait_for_hello(seconds)

    async def shutdown(self) -> None:
        self._blocking.shutdown()


class RunningCall:
    """A running command that can be signalled from any thread."""

    def __init__(self, connection: Connection, call: ActiveCall) -> None:
        self._connection = connection
        self._call = call

    def signal(self, number: int) -> None:
        self._connection.send_for(self._call, wire.signal(self._call.id, number))

    def resize(self, rows: int, cols: int) -> None:
        self._connection.send_for(self._call, wire.resize(self._call.id, rows, cols))


def read_stdin(stdin: BinaryIO, room: int) -> bytes:
    """Read up to `room` bytes from the caller's source, which may be closed, broken, or a text file."""
    try:
        data: object = stdin.read1(room) if hasattr(stdin, "read1") else stdin.read(room)
    except Exception as error:
        raise RequestInvalid(
            f"stdin can't be read: {error}", op="exec", fix_hints=["pass a source that is open for reading, or None"]
        ) from error
    if data is None:
        return b""
    if not isinstance(data, bytes):
        raise RequestInvalid(
            f"stdin returns {type(data).__name__}, not bytes",
            op="exec",
            fix_hints=["open the file in binary mode: 'rb'"],
        )
    return data


def unanswered() -> SandboxLost:
    return SandboxLost(
        "the box agent does not answer, and the box was killed",
        op="exec",
        fix_hints=["start another box: a command may have frozen this one, or the machine is overloaded"],
    )
