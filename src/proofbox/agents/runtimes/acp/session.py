"""A session of an agent that speaks ACP: one box on one workspace, and one process per thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import msgspec

from proofbox.agents.agent_box import prepare_home
from proofbox.agents.contract import AgentRuntime, SessionOptions
from proofbox.agents.events import Event, ThreadStarted
from proofbox.agents.feed import Turn
from proofbox.agents.runtimes.acp.finding import INSIDE, AgentProgram
from proofbox.agents.runtimes.acp.listener import AcpListener, AcpLiveThread
from proofbox.agents.runtimes.acp.profiles import BASE_URL, HOME, endpoint_of, profile_of
from proofbox.agents.runtimes.acp.program import AcpHandlers, AcpProgram
from proofbox.agents.runtimes.acp.settings import AcpSettings
from proofbox.agents.runtimes.acp.threads import AcpThread, AcpThreadStore
from proofbox.agents.runtimes.thread_session import ThreadedSession
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.errors import (
    AgentError,
    CapabilityUnsupported,
    ContextExceeded,
    RuntimeIncompatible,
    RuntimeProtocolError,
    TurnInterrupted,
)
from proofbox.sandbox.contract import Mount

CANCEL_SECONDS = 3.0
_REASONS = {
    "max_tokens": "the model's answer was longer than allowed",
    "max_turn_requests": "the agent reached its maximum number of model requests in a turn",
    "refusal": "the agent refused to continue",
}


class AcpSession(ThreadedSession[AcpLiveThread]):
    def __init__(
        self,
        runtime: AgentRuntime,
        options: SessionOptions,
        settings: AcpSettings,
        found: AgentProgram | None,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        super().__init__(runtime, options, endpoint_of(settings), clock=clock, ids=ids)
        self._settings = settings
        self._profile = profile_of(settings)
        self._found = found
        self.version = found.version if found is not None else ""
        self._program_name = self._profile.program if self._profile is not None else settings.command[0]
        self._state = self._home / "agent"
        self._store = AcpThreadStore(options.home)
        self._argv: list[str] = []

    async def _open_box(self) -> None:
        options, settings = self.options, self._settings
        prepare_home(self._state, options, {})
        address = await self._open_route()
        home = f"{INSIDE}/home" if options.sandboxed else str(self._state)
        mounts: list[str | Mount] = [*settings.mounts]
        if options.sandboxed:
            mounts += [Mount(self._state, home, writable=True), *(self._found.mounts if self._found else ())]
        places = {BASE_URL: address, HOME: home}
        self._argv = [_filled(word, places) for word in settings.command]
        self._env = {**options.env}
        if self._profile is not None and self._found is not None:
            self._argv = [*(self._found.boxed if options.sandboxed else self._found.direct), *self._profile.arguments]
            self._env |= self._profile.environment(settings, home, address, bool(options.approvals))
        self._env |= {name: _filled(value, places) for name, value in settings.env.items()}
        await self._start_box(mounts)

    def facts(self) -> Mapping[str, Any]:
        return {
            **super().facts(),
            "agent": self._program_name,
            "binary": str(self._found.path) if self._found is not None else self._settings.command[0],
            "found_by": self._found.found_by if self._found is not None else "command",
            "model": self._settings.model,
            "undecided": self._settings.undecided,
        }

    def owner_of(self, thread: str) -> str:
        """Return the thread itself, or the thread of the agent's session with this id, which model requests name."""
        if thread in self._threads:
            return thread
        return next((id for id, used in self._used.items() if thread and used.stored.acp_session == thread), "")

    # Threads

    async def start_thread(self, folder: str = "") -> str:
        self._check_open()
        id = self._ids.new_id("thread")
        return await self._use(AcpLiveThread(AcpThread(id, "", folder)), ThreadStarted(session=self.id, thread=id))

    async def resume_thread(self, thread: str) -> str:
        self._check_open()
        stored = self._store.load(thread)
        if thread in self._used:
            return thread
        event = ThreadStarted(session=self.id, thread=thread, origin="resume")
        return await self._use(AcpLiveThread(stored), event)

    async def fork_thread(self, thread: str, last_turn: str | None = None) -> str:
        self._check_open()
        source = self._store.load(thread)
        fork_of = source.session_after(last_turn)
        id = self._ids.new_id("thread")
        forked = AcpThread(id, "", source.folder, forked_from=thread)
        event = ThreadStarted(session=self.id, thread=id, origin="fork", forked_from=thread)
        return await self._use(AcpLiveThread(forked, fork_of), event)

    async def _use(self, thread: AcpLiveThread, event: ThreadStarted) -> str:
        await self._start_program(thread)
        self._used[thread.id] = thread
        self.folders[thread.id] = thread.stored.folder
        return await self._register_thread(thread.id, event)

    def _make_program(self, thread: AcpLiveThread) -> AcpProgram:
        assert self._box is not None  # noqa: S101 (opened before anyone has it)

        async def publish(event: Event) -> None:
            await self.publish_thread(thread, event)
            if self.feed.failure is not None:
                thread.over.set()

        workspace = self._box.inside.guest_project
        thread.decoder.states_failures = self._profile is not None and self._profile.states_failures
        listener = AcpListener(thread, self.options.approvals, self._settings.undecided, workspace, publish)
        program = AcpProgram(
            self._box,
            thread.id,
            self._program_name,
            argv=self._argv,
            env=self._env,
            cwd=thread.stored.folder or None,
            handlers=AcpHandlers(
                on_notification=listener.on_notification,
                on_request=listener.on_request,
                on_garbage=listener.on_garbage,
                on_failure=listener.on_failure,
            ),
            timeout=self.options.request_timeout,
        )
        if self._profile is not None and not self._profile.exits:
            program.exit_seconds = 0.0
        return program

    async def _prepare_program(self, thread: AcpLiveThread, program: AcpProgram) -> None:
        """Complete the handshake, then start, restore or copy the agent's session."""
        thread.replaying = True
        method = self._settings.authenticate
        await program.initialize(self._profile.authenticate if method is None and self._profile else method or "")
        self.version = program.version or self.version
        session, cwd = thread.stored.acp_session, self._directory(thread)
        if session:
            await program.restore_session(session, cwd)
        elif thread.fork_of:
            session = await program.fork_session(thread.fork_of, cwd)
        else:
            session = await program.new_session(cwd)
        if self._profile is not None and self._profile.mode and not self.options.approvals:
            await program.request("session/set_mode", {"sessionId": session, "modeId": self._profile.mode})
        thread.replaying = False
        self._save(thread, acp_session=session)

    def _directory(self, thread: AcpLiveThread) -> str:
        assert self._box is not None  # noqa: S101 (opened before anyone has it)
        return f"{self._box.inside.guest_project}/{thread.stored.folder}".rstrip("/")

    def _save(self, thread: AcpLiveThread, **members: Any) -> None:
        thread.stored = msgspec.structs.replace(thread.stored, **members)
        self._store.save(thread.stored)

    def _start_failure(self, error: AgentError) -> AgentError:
        if isinstance(error, CapabilityUnsupported | RuntimeIncompatible):
            return error
        return super()._start_failure(error)

    # Turns

    async def _run_turn(self, turn: Turn, prompt: str) -> None:
        thread = self._used[turn.thread]
        if thread.program is None or thread.program.ended.is_set():
            self._restarts += 1
            await self._start_program(thread)
        program = thread.program
        assert program is not None  # noqa: S101 (started above)
        await self._keep_checkpoint(thread, program)
        self._save(thread, turns=(*thread.stored.turns, turn.id))
        thread.turn, thread.finished, thread.over = turn, False, anyio.Event()
        thread.decoder.turn, thread.decoder.ended = turn.id, False
        failure: AgentError | None = None
        try:
            failure = await self._prompt(thread, program, prompt)
        finally:
            with anyio.CancelScope(shield=True):
                await self._leave_turn(thread, turn)
        if self.feed.failure is not None:
            raise self.feed.failure
        if program.ended.is_set() and failure is not None:
            raise self._crashed(turn, program)
        if self._route is not None:
            # Some agents end a turn as usual although the model has failed. A turn without any response always failed.
            conceals = not turn.answered or (self._profile is not None and self._profile.conceals_failures)
            if failure is not None or conceals:
                failure = self._route.failure_of(turn) or failure
            await self._route.settle(turn, complete=failure is None)
        if failure is not None:
            raise failure

    async def _prompt(self, thread: AcpLiveThread, program: AcpProgram, prompt: str) -> AgentError | None:
        """Send the prompt and wait for the end of the turn. Return why it failed."""
        reason = ""
        failure: AgentError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_when, thread.over, tasks.cancel_scope)
            try:
                reason = await program.prompt(thread.stored.acp_session, prompt)
            except AgentError as error:
                failure = error
            thread.finished = not program.ended.is_set()
            thread.over.set()
        if isinstance(failure, RuntimeProtocolError) and "rpc_message" in failure.details:
            return AgentError(str(failure.details["rpc_message"]), op="turn", details=failure.details)
        if failure is not None:
            return failure
        if reason in ("", "end_turn"):
            return None
        if reason == "cancelled":
            return TurnInterrupted("the agent cancelled the turn", op="turn")
        if reason == "max_tokens":
            return ContextExceeded(_REASONS[reason], op="turn", details={"stop_reason": reason})
        if reason in _REASONS:
            return AgentError(_REASONS[reason], op="turn", details={"stop_reason": reason})
        return RuntimeProtocolError(f"the turn ended for an unknown reason: {reason!r}", op="turn")

    async def _keep_checkpoint(self, thread: AcpLiveThread, program: AcpProgram) -> None:
        """Copy the conversation before it continues, because agents can fork only its current state."""
        last = thread.stored.turns[-1:]
        made = last and last[0] in thread.stored.checkpoints
        if not last or made or not self._settings.checkpoints or "fork" not in program.abilities:
            return
        thread.replaying = True
        try:
            copy = await program.fork_session(thread.stored.acp_session, self._directory(thread))
        finally:
            thread.replaying = False
        self._save(thread, checkpoints={**thread.stored.checkpoints, last[0]: copy})

    async def _leave_turn(self, thread: AcpLiveThread, turn: Turn) -> None:
        """Report the remaining events of a turn. If the turn was stopped, its processes are already dead."""
        if not thread.finished:
            await self._kill(turn)
        for event in thread.abandon(turn.id):
            await self.publish_thread(thread, event)
        thread.decoder.ended = True
        thread.turn = None

    async def _kill(self, turn: Turn) -> None:
        """Cancel the turn, so that its end is in the thread's history, then kill all processes of the thread."""
        thread = self._used.get(turn.thread)
        if thread is None:
            return
        async with thread.killing:  # the end of the turn is reported only after the processes have been killed
            if thread.turn is not turn or thread.finished or thread.program is None:
                return
            program = thread.program
            if not program.ended.is_set() and self.feed.failure is None:
                with anyio.move_on_after(CANCEL_SECONDS):
                    try:
                        await program.peer.notify("session/cancel", {"sessionId": thread.stored.acp_session})
                        await thread.over.wait()
                    except AgentError:
                        pass
            thread.program = None
            await self._end_program(turn.thread, program)


async def _when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _filled(text: str, places: Mapping[str, str]) -> str:
    for placeholder, value in places.items():
        text = text.replace(placeholder, value)
    return text
