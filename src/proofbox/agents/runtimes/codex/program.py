"""One running app-server: a box, the program in it, and the peer that talks to it. Leaving the block ends all three."""

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
from proofbox.sandbox.box_handle import PolicyOptions
from proofbox.sandbox.client.async_process import AsyncProcess, open_process
from proofbox.sandbox.contract import Door, ExecResult, Mount

STDERR_KEPT = 8 << 10
LAST_WORDS_SECONDS = 10.0
CLIENT = {"name": "proofbox", "title": None, "version": "1"}


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How the program is started, each time that it is."""

    argv: Sequence[str]
    env: Mapping[str, str]
    provider: str | None
    policy: PolicyOptions
    mounts: tuple[Mount, ...] = ()
    doors: tuple[Door, ...] = ()
    seconds: float
    """For a single request."""


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
        """Its output has ended: by its own end, or because its box is gone."""
        self._process = process
        self._stderr = stderr

    @property
    def workspace(self) -> str:
        """The project's path inside."""
        return self.box._inside.guest_project

    async def hang_up(self) -> None:
        """Ask it to end, by the end of its input."""
        with contextlib.suppress(ProofboxError):
            await self._process.close_stdin()

    async def kill(self) -> None:
        with contextlib.suppress(ProofboxError):
            await self._process.kill()

    async def kill_commands(self, thread: str, call: str = "") -> bool:
        """Kill every process of a call or of a thread, by the variables that Codex gives them; whether none is left."""
        marks = [f"CODEX_THREAD_ID={thread}", *([f"CODEX_TOOL_CALL_ID={call}"] if call else ())]
        return await kill_marked(self.box, marks)

    async def last_words(self) -> RuntimeCrashed:
        """Why its output has ended, as an error: how it ended, and what it said on stderr last."""
        result: ExecResult | None = None
        lost = ""
        with anyio.move_on_after(LAST_WORDS_SECONDS):
            try:
                result = await self._process.wait()
            except ProofboxError as error:
                lost = error.code
        how = f"its box is gone ({lost})" if lost else "it closed its output and went on"
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
    """The program's stdin and stdout as the peer's stream; stderr is kept aside, its last part."""

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
    """A program that has said who it is; `RuntimeStartFailed` or `RuntimeIncompatible` when it doesn't come up."""
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
            f"codex did not come up: {end.message}",
            op="start",
            fix_hints=["look at what it said on stderr, in the details", "check the sandbox itself: proofbox doctor"],
            details=end.details,
        ) from None
    except AgentError as error:
        error.details.setdefault("stderr", program.said())
        raise
