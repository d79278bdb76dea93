"""One running app-server: a box, the program in it, and the JSON-RPC peer. Leaving the context ends all three."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec

from proofbox.agents.agent_box import kill_marked, prepare_home
from proofbox.agents.contract import SessionOptions
from proofbox.agents.jsonrpc.peer import OnFailure, OnGarbage, OnNotification, OnRequest, RpcPeer
from proofbox.agents.runtimes.codex.binary import Binary, check_version
from proofbox.agents.runtimes.codex.settings import CodexSettings, config_toml
from proofbox.core.text import printable
from proofbox.errors import AgentError, ProofboxError, RuntimeCrashed, RuntimeStartFailed, TransportBroken
from proofbox.sandbox.async_service import AsyncSandboxes, AsyncSession
from proofbox.sandbox.client.async_process import AsyncProcess, open_process
from proofbox.sandbox.contract import Door, ExecResult, Mount
from proofbox.sandbox.options import PolicyOptions

INSIDE = "/run/codex"
MAX_STDERR = 8 << 10
EXIT_SECONDS = 10.0
ALIVE_SECONDS = 1.0
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


class CodexHandlers(msgspec.Struct, frozen=True, kw_only=True):
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

    async def close_stdin(self) -> None:
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

    async def commands_alive(self) -> int:
        """Return the number of commands with processes after the program itself has ended; 0 if it has not."""
        with contextlib.suppress(ProofboxError), anyio.move_on_after(ALIVE_SECONDS):
            await self._process.wait()
            return await self.box.commands_alive()
        return 0

    async def crash_error(self) -> RuntimeCrashed:
        """Return an error that explains why the output ended, with the exit status and the end of stderr."""
        result: ExecResult | None = None
        lost = ""
        with anyio.move_on_after(EXIT_SECONDS):
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
                "stderr": self.stderr_tail(),
                **({"cause": lost} if lost else {}),
            },
        )

    def stderr_tail(self) -> str:
        return printable(b"".join(self._stderr)[-MAX_STDERR:].decode("utf-8", "replace"))

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
            while sum(map(len, self._stderr)) > MAX_STDERR and len(self._stderr) > 1:
                self._stderr.popleft()


@contextlib.asynccontextmanager
async def running(boxes: AsyncSandboxes, launch: Launch, handlers: CodexHandlers) -> AsyncIterator[Program]:
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
                await _initialize(program)
                yield program
            finally:
                tasks.cancel_scope.cancel()


async def _initialize(program: Program) -> None:
    try:
        await program.initialize()
    except TransportBroken:
        end = await program.crash_error()
        raise RuntimeStartFailed(
            f"codex failed to start: {end.message}",
            op="start",
            fix_hints=["see its stderr in the details of this error", "check the sandbox: proofbox doctor"],
            details=end.details,
        ) from None
    except AgentError as error:
        error.details.setdefault("stderr", program.stderr_tail())
        raise


def prepare(
    options: SessionOptions,
    settings: CodexSettings,
    binary: Binary,
    home: Path,
    base_url: str,
    doors: tuple[Door, ...],
) -> Launch:
    prepare_home(home, options, {"config.toml": config_toml(settings, base_url)})
    program, inside = str(binary.path), str(home)
    mounts: tuple[Mount, ...] = ()
    policy = options.policy.copy()
    if options.sandboxed:
        inside = f"{INSIDE}/home"
        program, mount = _program_inside(binary)
        mounts = (mount, Mount(home, inside, writable=True))
        if policy.get("network") is None:
            policy["network"] = "none"
    return Launch(
        argv=[program, "app-server"],
        env={**options.env, "CODEX_HOME": inside},
        provider=options.provider if options.sandboxed else "off",
        policy=policy,
        mounts=mounts,
        doors=doors,
        seconds=options.request_timeout,
    )


def _program_inside(binary: Binary) -> tuple[str, Mount]:
    if binary.package is None:
        return f"{INSIDE}/codex", Mount(binary.path, f"{INSIDE}/codex")
    path = binary.path.relative_to(binary.package)
    return f"{INSIDE}/package/{path}", Mount(binary.package, f"{INSIDE}/package")
