"""The supervisor's side: a socket outside that the box can reach, and what is done with those who come to it.

Bounds hold against a box that floods it: so many connections at a time (more wait in the kernel's queue), so long for a
request, so many calls of a session. Every call belongs to a turn, and is dead and told before the turn's end is.
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
from proofbox.agents.funnel.command import FAILED, GONE, ByteRelay, Relay, run_command
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

TellOf = Callable[[Turn, Event], Awaitable[None]]


class FunnelLimits(msgspec.Struct, frozen=True, kw_only=True):
    connections: int = 16
    request_seconds: float = 10.0
    call_seconds: float = 3600.0
    calls: int = 10_000
    output: int = 256 << 20
    """Of all calls together; of later ones only the beginning is kept."""
    end_seconds: float = 60.0
    """For a call to end once its turn does: more than all its own waits together, of which each has an end."""


class _Hosted:
    """A turn that may have calls under way."""

    def __init__(self, turn: Turn, scribe: CallRecorder) -> None:
        self.turn = turn
        self.scribe = scribe
        self.under_way: dict[anyio.CancelScope, anyio.Event] = {}
        self.refused = 0


class Funnel:
    """Of one session. `directory` must let nobody else in; the box gets the socket and the program, and not it."""

    def __init__(
        self,
        directory: Path,
        tell_of: TellOf,
        rules: Sequence[ApprovalRule],
        *,
        ids: IdSource,
        clock: Clock,
        bounds: FunnelLimits | None = None,
    ) -> None:
        self._directory = directory
        self._tell_of = tell_of
        self._rules = rules
        self._ids = ids
        self._clock = clock
        self._bounds = bounds or FunnelLimits()
        self._turns: dict[str, _Hosted] = {}
        self._ending: dict[str, _Hosted] = {}
        self._allowance = RecordBudget(self._bounds.calls, self._bounds.output)
        directory.mkdir(mode=0o700)
        self._socket = listen_at(directory)
        self._path.chmod(0o666)  # the box has uids of its own; who may come this far, the directory says

    @property
    def _path(self) -> Path:
        return self._directory / SOCKET

    def mounts(self) -> tuple[Mount, ...]:
        return (
            Mount(self._path, SOCKET_PLACE),
            Mount(program("boxrun"), HELPER),
        )

    def environment(self, turn: Turn, box: AsyncSession, env: Mapping[str, str]) -> dict[str, str]:
        """What an agent needs to find it: `proofbox` is the first of that name on its PATH."""
        path = env.get("PATH") or box.inside.environment.get("PATH", "")
        return {
            **env,
            "PATH": f"{PurePosixPath(HELPER).parent}:{path}",
            "PROOFBOX_FUNNEL": SOCKET_PLACE,
            TURN_VARIABLE: turn.id,
        }

    def begin_turn(self, turn: Turn) -> None:
        async def tell(event: Event) -> None:
            await self._tell_of(turn, event)

        self._turns[turn.id] = _Hosted(turn, CallRecorder(tell, self._rules, self._allowance, self._ids, self._clock))

    def stop_turn(self, turn: Turn) -> None:
        """Take no more calls for it, and end those under way, without waiting for that. May be repeated."""
        hosted = self._turns.pop(turn.id, None)
        if hosted is not None:
            self._ending[turn.id] = hosted
            for scope in list(hosted.under_way):
                scope.cancel()

    async def end_turn(self, turn: Turn) -> None:
        """End its calls, and wait until each has been told. Whoever repeats it waits as well."""
        self.stop_turn(turn)
        hosted = self._ending.get(turn.id)
        if hosted is None:
            return
        with anyio.CancelScope(shield=True), contextlib.suppress(ProofboxError):
            # A listener that failed is no reason to raise here: the turn's end says so.
            ended = await self._all_ended(hosted)
            if self._ending.pop(turn.id, None) is None:
                return
            if not ended:
                message = "a call through the funnel may run on until the session ends"
                await self._tell_of(turn, Integrity(session="", code="COMMAND_NOT_ENDED", message=message))
            if hosted.refused:
                message = f"{hosted.refused} requests to the funnel were none, or too many"
                await self._tell_of(turn, Notice(session="", kind="funnel_refused", message=message))

    async def _all_ended(self, hosted: _Hosted) -> bool:
        """Counted anew with each that ends, since what listens to their ends may be slow."""
        for done in list(hosted.under_way.values()):
            with anyio.move_on_after(self._bounds.end_seconds):
                await done.wait()
            if not done.is_set():
                return False
        return True

    async def serve(self, box: AsyncSession) -> None:
        """Until it is cancelled. Whatever comes, this does not raise."""

        async def host(stream: anyio.abc.SocketStream) -> None:
            with contextlib.suppress(*GONE):
                async with stream:
                    await self._answer(box, FunnelPeer(stream))

        try:
            async with await anyio.abc.SocketListener.from_socket(self._socket) as listener:
                await accept_all(listener, host, most=self._bounds.connections)
        finally:
            self.close()

    def close(self) -> None:
        """May be repeated."""
        self._socket.close()
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._directory.rmdir()

    async def _answer(self, box: AsyncSession, peer: FunnelPeer) -> None:
        try:
            with anyio.fail_after(self._bounds.request_seconds):
                asked = await peer.request()
        except (MalformedFrame, TimeoutError, *GONE):
            return self._refuse(None)
        hosted = self._turn_of(asked)
        if hosted is None:
            return await peer.fail(FAILED, "no turn is under way that this could be a part of")
        if not self._allowance.take():
            self._refuse(hosted)
            return await peer.fail(FAILED, f"this session has had its {self._allowance.calls} calls")
        scope, done = anyio.CancelScope(), anyio.Event()
        hosted.under_way[scope] = done
        try:
            with scope:
                await self._run(box, asked, peer, hosted.scribe)
        except (ProofboxError, *GONE):
            pass  # told where it could be told; a listener that fails ends the turn by itself
        except Exception as error:  # a defect at one call is no reason to end the others
            message = f"the funnel failed at a call ({type(error).__name__})"
            with contextlib.suppress(ProofboxError):
                await hosted.scribe.tell(Integrity(session="", code="FUNNEL_FAILED", message=message))
        finally:
            hosted.under_way.pop(scope, None)
            done.set()
        return None

    async def _run(self, box: AsyncSession, asked: FunnelRequest, peer: FunnelPeer, scribe: CallRecorder) -> None:
        words = [each.decode("utf-8", "replace") for each in asked.argv]
        shown = os.fsencode(asked.cwd).decode("utf-8", "replace")
        call = scribe.call("command", shlex.join(words), shown)
        rule = await call.begin(f"funnel/{asked.mode}")
        if rule is not None:
            return await peer.fail(DECLINED, f"declined: {rule}")
        try:
            cwd = _within(box, asked.cwd)
        except PathRefused as error:
            await call.end("failed", output=f"{error.code}: {error.message}")
            return await peer.fail(FAILED, error.message)

        def carriage(process: AsyncProcess, peer: FunnelPeer) -> Relay:
            return ToolRelay(process, peer, scribe) if asked.mode == "mcp" else ByteRelay(process, peer)

        # A server of tools lasts as long as its turn.
        seconds = None if asked.mode == "mcp" else self._bounds.call_seconds
        return await run_command(box, asked, cwd, peer, call, carriage, seconds)

    def _turn_of(self, asked: FunnelRequest) -> _Hosted | None:
        """The one that is under way; of several, the one the program says it belongs to."""
        if len(self._turns) == 1:
            return next(iter(self._turns.values()))
        return self._turns.get(asked.env.get(TURN_VARIABLE, ""))

    def _refuse(self, hosted: _Hosted | None) -> None:
        for each in [hosted] if hosted is not None else self._turns.values():
            each.refused += 1


def _within(box: AsyncSession, cwd: str) -> str:
    """A directory of the box as a path from the project's root, which is where alone a call may work."""
    root = box.inside.guest_project
    inner = os.path.relpath(os.path.normpath(cwd), root)
    if not os.path.isabs(cwd) or inner == ".." or inner.startswith("../"):
        raise PathRefused(
            f"the working directory {cwd!r} is outside the workspace {root}",
            op="funnel",
            fix_hints=[f"cd {shlex.quote(root)} first"],
        )
    return inner
