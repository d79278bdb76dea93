"""The state of running commands, without any I/O: frames in, a result out. The sync and the async client share it."""

from __future__ import annotations

import errno as errnos
import itertools
import os
from collections import deque
from collections.abc import Mapping

import msgspec

from proofbox.core.text import gap
from proofbox.errors import (
    CommandNotExecutable,
    CommandNotFound,
    PathRefused,
    ProtocolError,
    RequestInvalid,
    SandboxError,
)
from proofbox.sandbox.client import wire
from proofbox.sandbox.client.requests import CommandRequest
from proofbox.sandbox.client.wire import Recv, StartStage
from proofbox.sandbox.contract import (
    Diagnostic,
    ExecResult,
    Isolation,
    Output,
    Policy,
    ResourceUsage,
    Truncated,
)

TIMED_OUT = 124


class CollectedOutput:
    """The kept part of one stream: its head, its tail, and the number of bytes omitted between them.

    The box agent caps streams that are not watched. A watched stream arrives in full, so the cap is applied here.
    """

    def __init__(self, cap: int) -> None:
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._head_room = cap - cap // 2
        self._tail_room = cap // 2
        self._end = 0
        self.omitted = 0

    @property
    def size(self) -> int:
        """The number of bytes so far, including omitted ones."""
        return self._end

    def add(self, offset: int, data: bytes) -> None:
        self.omitted += offset - self._end
        self._end = offset + len(data)
        head, rest = data[: self._head_room], data[self._head_room :]
        if head:
            self._head.append(head)
            self._head_room -= len(head)
        if rest:
            self._tail.append(rest)
            self._tail_room -= len(rest)
            while self._tail_room < 0:
                excess = -self._tail_room
                first = self._tail.popleft()
                if len(first) > excess:
                    self._tail.appendleft(first[excess:])
                dropped = min(len(first), excess)
                self._tail_room += dropped
                self.omitted += dropped

    def close(self, total: int) -> bytes:
        self.omitted += total - self._end
        middle = [gap(self.omitted).encode()] if self.omitted else []
        return b"".join([*self._head, *middle, *self._tail])


class ActiveCall:
    """The state of one command. It changes only through `feed`; `finished` says whether there is a result."""

    __slots__ = ("_streams", "error", "exit", "finished", "id", "request", "stdin_error", "stdin_window", "waiting")

    def __init__(self, id: int, request: CommandRequest) -> None:
        self.id = id
        self.request = request
        self.finished = False
        self._streams: dict[Recv, CollectedOutput] = {}
        self.waiting: deque[Output] = deque()
        self.stdin_window = wire.STDIN_WINDOW
        self.stdin_error: SandboxError | None = None
        self.exit: wire.Exit | None = None
        self.error: Exception | None = None

    @property
    def has_output(self) -> bool:
        return any(stream.size for stream in self._streams.values())

    def feed(self, kind: Recv, payload: bytes) -> None:
        if kind is Recv.EXIT:
            self.exit = wire.parse_exit(payload)
            self.finished = True
        elif kind is Recv.STDOUT or kind is Recv.STDERR:
            at, offset, data = wire.parse_chunk(payload)
            self._stream(kind).add(offset, data)
            if self.request.settings.streamed:
                self.waiting.append(Output("stdout" if kind is Recv.STDOUT else "stderr", data, at / 1000))
        elif kind is Recv.STDIN_ACK:
            self.stdin_window += wire.parse_count(payload)
        elif kind is Recv.FAILED:
            self.error = _never_ran(self.request, *wire.parse_failed(payload))
            self.finished = True
        else:
            raise ProtocolError(f"unexpected {kind.name} frame while a command was running", op="protocol")

    def result(
        self,
        *,
        provider: str,
        isolation: Isolation,
        policy: Policy,
        diagnostics: Mapping[str, Diagnostic],
        oom_killed: bool,
    ) -> ExecResult:
        if self.error is not None:
            raise self.error
        if self.exit is None:
            raise ProtocolError("the command has not ended, so it has no result", op="protocol")
        end = self.exit
        stdout, stdout_cut = self._collected(Recv.STDOUT, end.stdout_bytes)
        stderr, stderr_cut = self._collected(Recv.STDERR, end.stderr_bytes)
        return ExecResult(
            exit_code=TIMED_OUT if end.timed_out else 128 + end.signal if end.signal else end.code,
            stdout_bytes=stdout,
            stderr_bytes=stderr,
            provider=provider,
            isolation=isolation,
            policy=policy,
            timed_out=end.timed_out,
            signal=end.signal or None,
            truncated=Truncated(stdout=stdout_cut, stderr=stderr_cut),
            duration_ms=end.wall_us / 1000,
            usage=ResourceUsage(
                cpu_ms=(end.user_us + end.sys_us) / 1000,
                max_rss_kb=end.max_rss_kb,
                oom_killed=oom_killed or end.oom_killed,
            ),
            diagnostics=diagnostics,
            survivors=end.survivors,
            background=end.pipes_held,
        )

    def _stream(self, kind: Recv) -> CollectedOutput:
        stream = self._streams.get(kind)
        if stream is None:
            stream = self._streams[kind] = CollectedOutput(self.request.settings.cap)
        return stream

    def _collected(self, kind: Recv, total: int) -> tuple[bytes, bool]:
        """Return the kept part of a stream of this many bytes, and whether a part was omitted."""
        if not total and kind not in self._streams:
            return b"", False
        stream = self._stream(kind)
        return stream.close(total), stream.omitted > 0


class ActiveCalls:
    """The commands of one connection, by id. Dispatches incoming frames to them."""

    def __init__(self) -> None:
        self._calls: dict[int, ActiveCall] = {}
        self._ids = itertools.count(1)
        self.hello: wire.Hello | None = None

    def new_id(self) -> int:
        return next(self._ids)

    def begin(self, id: int, request: CommandRequest) -> ActiveCall:
        """Register a command, before the frame that starts it is sent."""
        call = self._calls[id] = ActiveCall(id, request)
        return call

    def __len__(self) -> int:
        return len(self._calls)

    def end(self, call: ActiveCall) -> None:
        self._calls.pop(call.id, None)

    def dispatch(self, kind: Recv, id: int, payload: bytes) -> None:
        call = self._calls.get(id)  # None: the frame is about no command, or its caller was interrupted
        if call is not None:
            call.feed(kind, payload)
        elif kind is Recv.HELLO:
            self.hello = wire.parse_hello(payload)
        elif kind is Recv.FATAL:
            raise ProtocolError(f"the box agent failed: {payload[:500].decode('utf-8', 'replace')}", op="exec")


class CommandFailure(msgspec.Struct, frozen=True):
    kind: type[SandboxError]
    hint: str


_AT_EXEC = {
    errnos.ENOENT: CommandFailure(
        CommandNotFound, "check the name; a script's interpreter (its #! line) must exist in the box as well"
    ),
    errnos.ENOTDIR: CommandFailure(CommandNotFound, "a part of the path is not a directory in the box"),
    errnos.EACCES: CommandFailure(
        CommandNotExecutable, "make it executable with chmod +x, and check the permissions of its directory"
    ),
    errnos.EPERM: CommandFailure(CommandNotExecutable, "the file system or the box forbids running it"),
    errnos.ENOEXEC: CommandFailure(
        CommandNotExecutable, "it is not a program for this machine; a script needs a #! line"
    ),
    errnos.EISDIR: CommandFailure(CommandNotExecutable, "it is a directory"),
    errnos.ETXTBSY: CommandFailure(CommandNotExecutable, "a process has it open for writing"),
    errnos.E2BIG: CommandFailure(
        RequestInvalid, "argv and environment exceed the kernel's limit; pass data with --stdin"
    ),
}


def _never_ran(request: CommandRequest, stage: int, number: int) -> SandboxError:
    command, why = os.fsdecode(request.program), os.strerror(number)
    details = {"command": command, "errno": errnos.errorcode.get(number, str(number))}
    if stage == StartStage.EXEC:
        known = _AT_EXEC.get(
            number, CommandFailure(SandboxError, "run `proofbox probe` to check whether the sandbox works")
        )
        return known.kind(f"{command!r} did not start: {why}", op="exec", fix_hints=[known.hint], details=details)
    if stage == StartStage.CWD:
        cwd = os.fsdecode(request.settings.cwd)
        return PathRefused(
            f"cwd {cwd!r} can't be entered in the box: {why}",
            op="exec",
            fix_hints=["name a directory in the project, or mount it"],
            details={**details, "cwd": cwd},
        )
    if number == errnos.EAGAIN:
        return SandboxError(
            "no process could be started: the box has reached its limit of processes",
            op="exec",
            fix_hints=["raise --pids, or end other commands in the session"],
            details=details,
        )
    return SandboxError(f"{command!r} did not start: {why}", op="exec", details=details)
