"""The supervisor's side of the funnel: a socket outside the box that programs in the box can connect to.

Limits protect it from a box that floods it: the number of concurrent connections (more wait in the kernel's queue), the
time for a request, and the number of calls per session. Every call belongs to a turn. It is dead and recorded before
the end of the turn is reported.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import anyio
import anyio.abc
import msgspec

from proofbox.agents.contract import ApprovalRule
from proofbox.agents.events import Event, Integrity, Notice
from proofbox.agents.feed import Turn
from proofbox.agents.funnel import HELPER, SOCKET_PLACE
from proofbox.agents.funnel.calls import CallRecorder, RecordBudget
from proofbox.agents.funnel.command import DISCONNECTED, FAILED, ByteRelay, Relay, run_command
from proofbox.agents.funnel.mcp import ToolRelay
from proofbox.agents.funnel.wire import FunnelPeer, FunnelRequest, MalformedFrame
from proofbox.agents.gateway.accepting import accept_all
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.errors import PathRefused, ProofboxError
from proofbox.sandbox.async_service import AsyncSession
from proofbox.sandbox.client.async_process import AsyncProcess
from proofbox.sandbox.contract import Mount
from proofbox.sandbox.host.binaries import program
from proofbox.sandbox.host.unix_sockets import SOCKET, listen_at

DECLINED = 126
TURN_VARIABLE = "PROOFBOX_TURN"

PublishFor = Callable[[Turn, Event], Awaitable[None]]


class FunnelLimits(msgspec.Struct, frozen=True, kw_only=True):
    connections: int = 16
    request_seconds: float = 10.0
    call_seconds: float = 3600.0
    calls: int = 10_000
    output: int = 256 << 20
    """Recorded bytes of output of all calls together; after that, only the beginning of each output is kept."""
    end_seconds: float = 60.0
    """Timeout for a call to end after its turn. It is longer than the sum of the call's own timeouts."""


class _TurnCalls:
    """A turn and its calls in progress."""

    def __init__(self, turn: Turn, recorder: CallRecorder) -> None:
        self.turn = turn
        self.recorder = recorder
        self.under_way: dict[anyio.CancelScope, anyio.Event] = {}
        self.refused = 0


class Funnel:
    """The funnel of one session.

    `directory` must be private to this user. The box gets the socket and the client program, not the directory.
    """

    def __init__(
        self,
        directory: Path,
        publish_for: PublishFor,
        rules: Sequence[ApprovalRule],
        *,
        ids: IdSource,
        clock: Clock,
        bounds: FunnelLimits | None = None,
    ) -> None:
        self._directory = directory
        self._publish_for = publish_for
        self._rules = rules
        self._ids = ids
        self._clock = clock
        self._bounds = bounds or FunnelLimits()
        self._turns: dict[str, _TurnCalls] = {}
        self._ending: dict[str, _TurnCalls] = {}
        self._budget = RecordBudget(self._bounds.calls, self._bounds.output)
        directory.mkdir(mode=0o700)
        self._socket = listen_at(directory)
        self._path.chmod(0o666)  # the box has other uids; the directory's mode restricts access

    @property
    def _path(self) -> Path:
        return self._directory / SOCKET

    def mounts(self) -> tuple[Mount, ...]:
        return (
            Mount(self._path, SOCKET_PLACE),
            Mount(program("boxrun"), HELPER),
        )

    def environment(self, turn: Turn, box: AsyncSession, env: Mapping[str, str]) -> dict[str, str]:
        """Return the agent's environment with the funnel's variables, and its `proofbox` first on the PATH."""
        path = env.get("PATH") or box.inside.environment.get("PATH", "")
        return {
            **env,
            "PATH": f"{PurePosixPath(HELPER).parent}:{path}",
            "PROOFBOX_FUNNEL": SOCKET_PLACE,
            TURN_VARIABLE: turn.id,
        }

    def begin_turn(self, turn: Turn) -> None:
        async def publish(event: Event) -> None:
            await self._publish_for(turn, event)

        self._turns[turn.id] = _TurnCalls(
            turn, CallRecorder(publish, self._rules, self._budget, self._ids, self._clock)
        )

    def stop_turn(self, turn: Turn) -> None:
        """Accept no more calls for the turn and cancel those in progress, without waiting. Idempotent."""
        hosted = self._turns.pop(turn.id, None)
        if hosted is not None:
            self._ending[turn.id] = hosted
            for scope in list(hosted.under_way):
                scope.cancel()

    async def end_turn(self, turn: Turn) -> None:
        """End the turn's calls and wait until each is recorded. A repeated call waits as well."""
        self.stop_turn(turn)
        hosted = self._ending.get(turn.id)
        if hosted is None:
            return
        with anyio.CancelScope(shield=True), contextlib.suppress(ProofboxError):
            # Do not raise if a listener failed: the end of the turn reports it.
            ended = await self._all_ended(hosted)
            if self._ending.pop(turn.id, None) is None:
                return
            if not ended:
                message = "a call through the funnel may keep running until the session ends"
                await self._publish_for(turn, Integrity(session="", code="COMMAND_NOT_ENDED", message=message))
            if hosted.refused:
                message = f"the funnel refused {hosted.refused} requests that were malformed or over the limit"
                await self._publish_for(turn, Notice(session="", kind="funnel_refused", message=message))

    async def _all_ended(self, hosted: _TurnCalls) -> bool:
        """Wait for every call. The timeout restarts for each one, because the listeners of their ends may be slow."""
        for done in list(hosted.under_way.values()):
            with anyio.move_on_after(self._bounds.end_seconds):
                await done.wait()
            if not done.is_set():
                return False
        return True

    async def serve(self, box: AsyncSession) -> None:
        """Serve requests until cancelled. Never raises because of a request."""

        async def host(stream: anyio.abc.SocketStream) -> None:
            with contextlib.suppress(*DISCONNECTED):
                async with stream:
                    await self._answer(box, FunnelPeer(stream))

        try:
            async with await anyio.abc.SocketListener.from_socket(self._socket) as listener:
                await accept_all(listener, host, limit=self._bounds.connections)
        finally:
            self.close()

    def close(self) -> None:
        """Close the socket and remove its directory. Idempotent."""
        self._socket.close()
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._directory.rmdir()

    async def _answer(self, box: AsyncSession, peer: FunnelPeer) -> None:
        try:
            with anyio.fail_after(self._bounds.request_seconds):
                request = await peer.request()
        except (MalformedFrame, TimeoutError, *DISCONNECTED):
            return self._refuse(None)
        hosted = self._turn_of(request)
        if hosted is None:
            return await peer.fail(FAILED, "no turn in progress for this request")
        if not self._budget.take():
            self._refuse(hosted)
            return await peer.fail(FAILED, f"this session has reached its limit of {self._budget.calls} calls")
        scope, done = anyio.CancelScope(), anyio.Event()
        hosted.under_way[scope] = done
        try:
            with scope:
                await self._run(box, request, peer, hosted.recorder)
        except (ProofboxError, *DISCONNECTED):
            pass  # already reported if possible; a failed listener ends the turn
        except Exception as error:  # a bug in one call must not end the others
            message = f"the funnel failed while handling a call ({type(error).__name__})"
            with contextlib.suppress(ProofboxError):
                await hosted.recorder.publish(Integrity(session="", code="FUNNEL_FAILED", message=message))
        finally:
            hosted.under_way.pop(scope, None)
            done.set()
        return None

    async def _run(self, box: AsyncSession, request: FunnelRequest, peer: FunnelPeer, recorder: CallRecorder) -> None:
        argv = [each.decode("utf-8", "replace") for each in request.argv]
        shown = os.fsencode(request.cwd).decode("utf-8", "replace")
        call = recorder.call("command", shlex.join(argv), shown)
        rule = await call.begin(f"funnel/{request.mode}")
        if rule is not None:
            return await peer.fail(DECLINED, f"declined: {rule}")
        try:
            cwd = _within(box, request.cwd)
        except PathRefused as error:
            await call.end("failed", output=f"{error.code}: {error.message}")
            return await peer.fail(FAILED, error.message)

        def make_relay(process: AsyncProcess, peer: FunnelPeer) -> Relay:
            return ToolRelay(process, peer, recorder) if request.mode == "mcp" else ByteRelay(process, peer)

        # An MCP server runs as long as its turn.
        seconds = None if request.mode == "mcp" else self._bounds.call_seconds
        return await run_command(box, request, cwd, peer, call, make_relay, seconds)

    def _turn_of(self, request: FunnelRequest) -> _TurnCalls | None:
        """Return the turn in progress; if there are several, the one that the program names."""
        if len(self._turns) == 1:
            return next(iter(self._turns.values()))
        return self._turns.get(request.env.get(TURN_VARIABLE, ""))

    def _refuse(self, hosted: _TurnCalls | None) -> None:
        for each in [hosted] if hosted is not None else self._turns.values():
            each.refused += 1


def _within(box: AsyncSession, cwd: str) -> str:
    """Return a directory of the box relative to the project's root. Raises `PathRefused` if it is outside the root."""
    root = box.inside.guest_project
    inner = os.path.relpath(os.path.normpath(cwd), root)
    if not os.path.isabs(cwd) or inner == ".." or inner.startswith("../"):
        raise PathRefused(
            f"the working directory {cwd!r} is outside the workspace {root}",
            op="funnel",
            fix_hints=[f"cd {shlex.quote(root)} first"],
        )
    return inner
