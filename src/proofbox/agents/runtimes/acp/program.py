"""One process of an agent that speaks ACP: the JSON-RPC connection, the handshake, and its sessions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import msgspec

from proofbox.agents.jsonrpc.peer import OnFailure, OnGarbage, OnNotification, OnRequest, RpcPeer
from proofbox.agents.runtimes.thread_program import EXIT_SECONDS, ThreadProgram
from proofbox.core.text import preview, printable
from proofbox.errors import (
    AgentError,
    CapabilityUnsupported,
    ProofboxError,
    RuntimeIncompatible,
    RuntimeProtocolError,
    TransportBroken,
)
from proofbox.sandbox.async_service import AsyncSession

VERSION = 1
CLIENT = {
    "protocolVersion": VERSION,
    "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
    "clientInfo": {"name": "proofbox", "version": "1"},
}
MAX_LINE = 16 << 20
MAX_ID = 200


class AcpHandlers(msgspec.Struct, frozen=True, kw_only=True):
    on_notification: OnNotification
    on_request: OnRequest
    on_garbage: OnGarbage
    on_failure: OnFailure


class AcpProgram(ThreadProgram):
    """The process of one thread. It is also the transport of the connection."""

    def __init__(
        self,
        box: AsyncSession,
        thread: str,
        name: str,
        *,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        handlers: AcpHandlers,
        timeout: float,
    ) -> None:
        super().__init__(box, thread, name, argv=argv, env=env, cwd=cwd)
        self._timeout = timeout
        self.peer = RpcPeer(
            self,
            on_notification=handlers.on_notification,
            on_request=handlers.on_request,
            on_garbage=handlers.on_garbage,
            on_failure=handlers.on_failure,
            strict=True,
            ordered=True,  # the response to a prompt ends the turn, after its last update
            seconds=timeout,
            max_line=MAX_LINE,
        )
        self.version = ""
        self.abilities: frozenset[str] = frozenset()
        """What the agent advertises, of `load`, `resume` and `fork`."""

    # The transport

    async def send(self, data: bytes) -> None:
        try:
            await self._write(data)
        except TransportBroken:
            raise
        except ProofboxError as error:
            raise TransportBroken(error.message, op="send") from None

    async def receive(self) -> bytes:
        return await self._receive()

    async def _serve(self) -> None:
        await self.peer.serve()

    # Requests

    async def initialize(self, authenticate: str) -> None:
        """Wait for the process and complete the handshake. Raises `RuntimeIncompatible` for another version."""
        await self.wait_opened(self._timeout)
        answer = _table(await self.request("initialize", CLIENT))
        version = answer.get("protocolVersion")
        if version != VERSION or isinstance(version, bool):
            found = printable(str(version)[:40])
            raise RuntimeIncompatible(
                f"{self._name} speaks version {found} of ACP; only version {VERSION} is supported",
                op="start",
                fix_hints=[f"use a release of the agent that supports version {VERSION}"],
                details={"found": found, "supported": VERSION},
            )
        self.version = preview(str(_table(answer.get("agentInfo")).get("version") or ""), 40)[0]
        offered = _table(answer.get("agentCapabilities"))
        sessions = _table(offered.get("sessionCapabilities"))
        loads = {"load"} if offered.get("loadSession") is True else set()
        self.abilities = frozenset(
            loads | {name for name in ("resume", "fork") if isinstance(sessions.get(name), dict)}
        )
        if authenticate:
            await self.request("authenticate", {"methodId": authenticate})

    async def new_session(self, cwd: str) -> str:
        return _session_id(await self.request("session/new", {"cwd": cwd, "mcpServers": []}))

    async def restore_session(self, session: str, cwd: str) -> None:
        """Continue a session of an earlier process. Raises `CapabilityUnsupported` if the agent can't or refuses."""
        ways = [name for name in ("resume", "load") if name in self.abilities]  # loading sends the whole history
        if not ways:
            raise self.lacks("supports_thread_resume", "load or resume sessions")
        try:
            await self.request(f"session/{ways[0]}", {"sessionId": session, "cwd": cwd, "mcpServers": []})
        except RuntimeProtocolError as error:
            if "rpc_message" not in error.details:
                raise
            raise CapabilityUnsupported(  # as Gemini CLI, which advertises it
                f"{self._name} refused to {ways[0]} a session: {error.details['rpc_message']}",
                op="session",
                fix_hints=["start a new thread", "choose a runtime that can resume threads: proofbox runtime list"],
                details={**error.details, "missing": ["supports_thread_resume"]},
            ) from None

    async def fork_session(self, session: str, cwd: str) -> str:
        """Copy a session. Return the id of the copy. Raises `CapabilityUnsupported` if the agent can't."""
        if "fork" not in self.abilities:
            raise self.lacks("supports_thread_fork", "fork sessions")
        return _session_id(await self.request("session/fork", {"sessionId": session, "cwd": cwd, "mcpServers": []}))

    async def prompt(self, session: str, text: str) -> str:
        """Run a turn. Return the reason why it ended."""
        prompt = [{"type": "text", "text": text}]
        params = {"sessionId": session, "prompt": prompt}
        answer = _table(await self.request("session/prompt", params, seconds=math.inf))
        return preview(str(answer.get("stopReason")), 100)[0]

    async def request(self, method: str, params: Any, *, seconds: float | None = None) -> Any:
        """Send a request. If the program ends first, raises the error that says how."""
        try:
            return await self.peer.request(method, params, seconds=seconds)
        except TransportBroken as error:
            with anyio.move_on_after(EXIT_SECONDS + 1):  # it may keep running without reading
                await self.ended.wait()
            raise (self.ended_error(method) if self.ended.is_set() else error) from None

    def lacks(self, capability: str, what: str) -> AgentError:
        return CapabilityUnsupported(
            f"{self._name} does not advertise that it can {what}",
            op="session",
            fix_hints=["choose a runtime that has the capability: proofbox runtime list"],
            details={"missing": [capability]},
        )


def _session_id(answer: Any) -> str:
    id = _table(answer).get("sessionId")
    if not isinstance(id, str) or not id or len(id) > MAX_ID:
        raise RuntimeProtocolError("the agent did not state the id of its session", op="session")
    return id


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
