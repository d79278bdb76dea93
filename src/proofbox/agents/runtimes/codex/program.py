"""One running app-server: a box, the program in it, and the JSON-RPC peer. Leaving the context ends all three."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import anyio
import msgspec

from proofbox.agents.jsonrpc.peer import OnFailure, OnGarbage, OnNotification, OnRequest, RpcPeer
from proofbox.agents.marked import kill_marked
from proofbox.agents.runtimes.codex.binary import check_version
from proofbox.core.text import printable
from proofbox.errors import AgentError, ProofboxError, RuntimeCrashed, RuntimeStartFailed, TransportBroken
from proofbox.sandbox.async_service import AsyncSandboxes, AsyncSession
from proofbox.sandbox.client.async_process import AsyncProcess, open_process
from proofbox.sandbox.contract import Door, ExecResult, Mount
from proofbox.sandbox.options import PolicyOptions

STDERR_KEPT = 8 << 10
LAST_WORDS_SECONDS = 10.0
CLIENT = {"name": "proofbox", "title": None, "version": "1"}


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters for starting the program."""

    argv: Sequence[str]
    env: Mapping[str, str]
    provider: str | None
    policy: PolicyOptions
    mounts: tuple[Mount, ...] = ()
    doors: tuple[Door, ...] = ()
    seconds: float
    """Timeout for a single request."""


class Handlers(msgspec.Struct, frozen=True, kw_only=True):
    on_notification: OnNotification
    on_request: OnRequest
    on_garbage: OnGarbage
    on_failure: OnFailure


class Program:
    def __init__(self, box: AsyncSession, process: AsyncProcess, peer: RpcPeer, stderr: deque[bytes]) -> None:
        self.box = box
        self.peer = peer
        self.version = ""
        self.user_agent = ""
        self.ended = anyio.Event()
        """Set when the program's output has ended, because the program or its box ended."""
        self._process = process
        self._stderr = stderr

    @property
    def workspace(self) -> str:
        """The path of the project in the box."""
        return self.box.inside.guest_project

    async def hang_up(self) -> None:
        """Close the program's stdin, so that it exits."""
        with contextlib.suppress(ProofboxError):
            await self._process.close_stdin()

    async def kill(self) -> None:
        with contextlib.suppress(ProofboxError):
            await self._process.kill()

    async def kill_commands(self, thread: str, call: str = "") -> bool:
        """Kill the processes of a call or a thread, found by their variables. Return whether none is left."""
        marks = [f"CODEX_THREAD_ID={thread}", *([f"CODEX_TOOL_CALL_ID={call}"] if call else ())]
        return await kill_marked(self.box, marks)

    async def last_words(self) -> RuntimeCrashed:
        """Return an error that explains why the output ended, with the exit status and the end of stderr."""
        result: ExecResult | None = None
        lost = ""
        with anyio.move_on_after(LAST_WORDS_SECONDS):
            try:
                result = await self._process.wait()
            except ProofboxError as error:
                lost = error.code
        how = f"its box has ended ({lost})" if lost else "it closed its stdout but kept running"
        if result is not None:
            how = f"killed by signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
        return RuntimeCrashed(
            f"codex ended: {how}",
            op="turn",
            details={
                "exit_code": result.exit_code if result is not None else None,
                "signal": result.signal if result is not None else None,
                "oom_killed": result is not None and result.usage.oom_killed,
                "stderr": self.said(),
                **({"cause": lost} if lost else {}),
            },
        )

    def said(self) -> str:
        return printable(b"".join(self._stderr)[-STDERR_KEPT:].decode("utf-8", "replace"))

    async def serve(self) -> None:
        try:
            await self.peer.serve()
        finally:
            self.ended.set()

    async def initialize(self) -> None:
        answer = await self.peer.request(
            "initialize", {"clientInfo": CLIENT, "capabilities": {"experimentalApi": True, "requestAttestation": False}}
        )
        agent = answer.get("userAgent") if isinstance(answer, dict) else None
        self.user_agent = printable(str(agent))[:200]
        self.version = check_version(self.user_agent.partition("/")[2])
        await self.peer.notify("initialized")


class _Transport:
    """The program's stdin and stdout as the peer's stream. Keeps the end of stderr separately."""

    def __init__(self, process: AsyncProcess, stderr: deque[bytes]) -> None:
        self._process = process
        self._stderr = stderr

    async def send(self, data: bytes) -> None:
        try:
            await self._process.send(data)
        except anyio.BrokenResourceError:
            raise TransportBroken("the program has ended", op="send") from None
        except ProofboxError as error:
            raise TransportBroken(error.message, op="send", details={"cause": error.code}) from None

    async def receive(self) -> bytes:
        while True:
            try:
                piece = await self._process.receive()
            except ProofboxError as error:
                raise TransportBroken(error.message, op="receive", details={"cause": error.code}) from None
            if piece is None:
                return b""
            if piece.stream == "stdout":
                return piece.data
            self._stderr.append(piece.data)
            while sum(map(len, self._stderr)) > STDERR_KEPT and len(self._stderr) > 1:
                self._stderr.popleft()


@contextlib.asynccontextmanager
async def running(boxes: AsyncSandboxes, launch: Launch, handlers: Handlers) -> AsyncIterator[Program]:
    """Start the program and complete the handshake.

    Raises `RuntimeStartFailed` or `RuntimeIncompatible` if that fails.
    """
    policy: dict[str, Any] = dict(launch.policy)
    if launch.mounts:
        policy["mounts"] = [*policy.get("mounts", ()), *launch.mounts]
    if launch.doors:
        policy["doors"] = launch.doors
    async with (
        await boxes.start_session(provider=launch.provider, **policy) as box,
        open_process(box, launch.argv, env=launch.env) as process,
    ):
        stderr: deque[bytes] = deque()
        peer = RpcPeer(
            _Transport(process, stderr),
            on_notification=handlers.on_notification,
            on_request=handlers.on_request,
            on_garbage=handlers.on_garbage,
            on_failure=handlers.on_failure,
            seconds=launch.seconds,
        )
        program = Program(box, process, peer, stderr)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(program.serve)
            try:
                await _come_up(program)
                yield program
            finally:
                tasks.cancel_scope.cancel()


async def _come_up(program: Program) -> None:
    try:
        await program.initialize()
    except TransportBroken:
        end = await program.last_words()
        raise RuntimeStartFailed(
            f"codex failed to start: {end.message}",
            op="start",
            fix_hints=["see its stderr in the details of this error", "check the sandbox: proofbox doctor"],
            details=end.details,
        ) from None
    except AgentError as error:
        error.details.setdefault("stderr", program.said())
        raise
