"""A Codex session: one program that works on one workspace, with any number of threads.

The program and the gateway run in the background, from `open` to `close`; `supervisor.py` restarts a program that
crashes. Threads are resumed in the new program when they are next used. A turn is never repeated, because it may
already have had effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
from anyio.to_thread import run_sync

from proofbox.agents.agent_box import box_facts
from proofbox.agents.background import Background
from proofbox.agents.contract import SessionOptions, TurnResult
from proofbox.agents.events import Listener, ThreadStarted
from proofbox.agents.feed import Feed
from proofbox.agents.gateway.endpoint import ModelEndpoint
from proofbox.agents.gateway.server import ModelGateway
from proofbox.agents.gateway.traffic import Exchange
from proofbox.agents.runtimes.codex import fields
from proofbox.agents.runtimes.codex.binary import Binary
from proofbox.agents.runtimes.codex.ending import STOP_SECONDS, TurnEnder
from proofbox.agents.runtimes.codex.listener import CodexListener
from proofbox.agents.runtimes.codex.program import Program
from proofbox.agents.runtimes.codex.settings import CodexSettings
from proofbox.agents.runtimes.codex.supervisor import CLOSE_SECONDS, CodexSupervisor, as_agent_error
from proofbox.core.clock import Clock, SystemClock
from proofbox.core.files.removal import remove_tree
from proofbox.core.ids import IdSource
from proofbox.errors import (
    ProofboxError,
    RuntimeProtocolError,
    RuntimeStalled,
    TurnInterrupted,
    UsageError,
)


class CodexSession:
    runtime = "codex_app_server"

    def __init__(
        self,
        options: SessionOptions,
        settings: CodexSettings,
        binary: Binary,
        endpoint: ModelEndpoint,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        self._clock: Clock = clock or SystemClock()
        self._ids = ids or IdSource(self._clock)
        self.id = self._ids.new_id("agent")
        self.version = ""
        self._options = options
        self._settings = settings
        self._binary = binary
        self._endpoint = endpoint
        self._home = options.home or options.scratch / f"{self.id}-home"
        self.feed = Feed(self.id, self._clock)
        self._listener = CodexListener(self.feed, options.approvals, self._clock, self._on_change)
        self._gateway = ModelGateway(
            endpoint,
            on_exchange=self._listener.on_exchange,
            on_trouble=self._listener.on_trouble,
            on_call=self._listener.on_call,
            clock=self._clock,
        )
        self._codex = CodexSupervisor(
            self.id,
            options,
            settings,
            binary,
            self._home,
            gateway=self._gateway,
            listener=self._listener,
            clock=self._clock,
            ids=self._ids,
        )
        self._ender = TurnEnder(self._codex, self._listener, options.request_timeout)
        self._background = Background()
        self._opened = False
        self._folders: dict[str, str] = {}

    def facts(self) -> Mapping[str, Any]:
        return {
            "transport": "stdio",
            "version": self.version,
            "binary": str(self._binary.path),
            "found_by": self._binary.found_by,
            "sandboxed": self._options.sandboxed,
            "approval_policy": self._settings.approval_policy,
            "model": self._settings.model,
            "endpoint": self._endpoint.base_url,
            "key": "added by the gateway" if self._endpoint.has_key else "none",
            "requests": self._gateway.requests,
            "refused_requests": self._gateway.refused,
            "garbage_lines": self._listener.garbage,
            "recoveries": list(self._codex.recoveries),
            **self._codex.facts,
            **(box_facts(self._codex.program.box.info) if self._codex.program is not None else {}),
        }

    def add_listener(self, listener: Listener) -> int:
        return self.feed.add_listener(listener)

    def remove_listener(self, number: int) -> None:
        self.feed.remove_listener(number)

    @property
    def broken(self) -> ProofboxError | None:
        return self._codex.broken

    def owner_of(self, thread: str) -> str:
        return self._listener.lineage.owner(thread)

    @property
    def exchanges(self) -> list[Exchange]:
        """The requests that passed through the gateway."""
        return self._gateway.exchanges

    async def open(self) -> None:
        """Start the program. Raises the error that prevented the start."""
        await self._background.open()
        self._opened = True
        self._background.spawn(self._codex.run)
        try:
            await self._codex.wait(lambda: self._codex.program is not None or self._codex.broken is not None)
        except BaseException:
            await self.close()
            raise
        if self._codex.broken is not None:
            await self.close()
            raise (
                self._codex.broken if isinstance(self._codex.broken, UsageError) else as_agent_error(self._codex.broken)
            )
        self.version = self._codex.version
        if self._options.stall_timeout is not None:
            self._background.spawn(self._watch, self._options.stall_timeout)

    async def start_thread(self, folder: str = "") -> str:
        result = await self._codex.request("thread/start", lambda program: self._thread_params(program, folder))
        thread = await self._register_thread(result, "start")
        self._folders[thread] = folder
        return thread

    async def resume_thread(self, thread: str) -> str:
        result = await self._codex.request("thread/resume", lambda program: self._resume_params(program, thread))
        return await self._register_thread(result, "resume")

    async def fork_thread(self, thread: str, last_turn: str | None = None) -> str:
        def params(program: Program) -> dict[str, Any]:
            return self._resume_params(program, thread) | ({"lastTurnId": last_turn} if last_turn is not None else {})

        return await self._register_thread(await self._codex.request("thread/fork", params), "fork", thread)

    async def start_turn(self, thread: str, prompt: str) -> str:
        if thread not in self._listener.threads:
            raise UsageError(
                f"this session has no thread {thread[:80]!r}", op="turn", fix_hints=["start a thread first"]
            )
        # Codex would silently treat a second start as steering.
        if thread in self._listener.announced or self.feed.active_turn(thread) is not None:
            raise UsageError(
                "the thread already has a turn in progress",
                op="turn",
                fix_hints=["wait for that turn, interrupt it, or steer it"],
            )
        self._listener.announced[thread] = set()
        begun: list[str] = []

        def begin(result: Any) -> None:
            turn = _member(result, "turn", "id", method="turn/start")
            self._listener.begin_requested(turn, thread)
            begun.append(turn)

        try:
            await self._load(thread)
            params = {"threadId": thread, "input": [{"type": "text", "text": prompt}]}
            await self._codex.request("turn/start", lambda _: params, on_result=begin)
        finally:
            del self._listener.announced[thread]
        return begun[0]

    async def steer_turn(self, thread: str, turn: str, text: str) -> None:
        if self.feed.turn(turn, thread).result is not None:
            raise UsageError("the turn has already ended", op="steer", fix_hints=["start another turn"])
        params = {"threadId": thread, "expectedTurnId": turn, "input": [{"type": "text", "text": text}]}
        await self._codex.request("turn/steer", lambda _: params)

    async def interrupt_turn(self, thread: str, turn: str) -> None:
        if self.feed.turn(turn, thread).result is None:
            await self._ender.stop(self.feed.turn(turn), TurnInterrupted("the turn was interrupted", op="interrupt"))

    async def wait_turn(self, turn: str) -> TurnResult:
        return await self.feed.wait_turn(turn)

    async def end_thread(self, thread: str) -> None:
        await self._ender.end_thread(thread)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            if self._codex.program is not None and not self._codex.closing.is_set():
                await self._ender.end_left_over()
            self._codex.closing.set()
            if self._opened:
                with anyio.move_on_after(CLOSE_SECONDS + STOP_SECONDS):
                    await self._codex.gone.wait()
                await self._background.close()  # cancels the remaining tasks and ends the box
            if self._options.home is None:
                await run_sync(remove_tree, self._home)

    # Threads

    async def _load(self, thread: str) -> None:
        """Resume the thread if the program was restarted since the thread was last used."""
        await self._codex.running_program()
        if self._listener.threads[thread] != self._listener.generation:
            await self._codex.request("thread/resume", lambda program: self._resume_params(program, thread))
            self._listener.threads[thread] = self._listener.generation

    def _thread_params(self, program: Program, folder: str) -> dict[str, Any]:
        policy = self._settings.approval_policy
        cwd = f"{program.workspace}/{folder}" if folder else program.workspace
        return {"cwd": cwd, "approvalPolicy": policy, "sandbox": "danger-full-access"}

    def _resume_params(self, program: Program, thread: str) -> dict[str, Any]:
        return {"threadId": thread, "excludeTurns": True, **self._thread_params(program, self._folders.get(thread, ""))}

    async def _register_thread(self, result: Any, origin: str, forked_from: str = "") -> str:
        thread = _member(result, "thread", "id", method=f"thread/{origin}")
        self._listener.threads[thread] = self._listener.generation
        self._listener.lineage.start(thread)
        await self.feed.publish(
            ThreadStarted(session=self.id, thread=thread, origin=origin, forked_from=forked_from)  # type: ignore[arg-type]
        )
        return thread

    # Watching

    async def _watch(self, seconds: float) -> None:
        """Stop turns that show no activity for this many seconds."""
        while not self._codex.gone.is_set():
            await anyio.sleep(min(seconds / 4, 1.0))
            for turn in self.feed.turns_under_way():
                if self._listener.idle_seconds(turn) > seconds and turn.id not in self._listener.verdicts:
                    stalled = RuntimeStalled(
                        f"the turn showed no activity for {seconds:g} s", op="turn", details={"seconds": seconds}
                    )
                    self._listener.verdicts[turn.id] = stalled
                    self._background.spawn(self._ender.stop, turn, stalled)

    def _on_change(self) -> None:
        """Wake waiting tasks. If a listener failed, the record is incomplete, so stop all turns in progress."""
        self._codex.wake()
        if self.feed.failure is not None:
            for turn in self.feed.turns_under_way():
                if turn.id not in self._listener.verdicts:
                    self._listener.verdicts[turn.id] = self.feed.failure
                    self._background.spawn(self._ender.stop, turn, self.feed.failure)


def _member(result: Any, outer: str, inner: str, *, method: str) -> str:
    value = result.get(outer) if isinstance(result, dict) else None
    text = value.get(inner) if isinstance(value, dict) else None
    if not isinstance(text, str) or not text:
        raise RuntimeProtocolError(f"the response to {method} lacks {outer}.{inner}", op=method)
    if fields.id(value, inner) != text:
        raise RuntimeProtocolError(f"the response to {method} has an id of {len(text)} characters", op=method)
    return text
