"""A Claude Code session: one box on one workspace, and one process per thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import msgspec

from proofbox.agents.agent_box import prepare_home
from proofbox.agents.contract import SessionOptions
from proofbox.agents.events import ThreadStarted
from proofbox.agents.feed import Turn
from proofbox.agents.runtimes.claude import permissions
from proofbox.agents.runtimes.claude.binary import ClaudeBinary
from proofbox.agents.runtimes.claude.listener import ActiveThread, ClaudeListener
from proofbox.agents.runtimes.claude.program import ClaudeProgram
from proofbox.agents.runtimes.claude.runtime import ClaudeCode
from proofbox.agents.runtimes.claude.settings import ClaudeSettings
from proofbox.agents.runtimes.claude.threads import ClaudeThread, ClaudeThreadStore, uuid_for
from proofbox.agents.runtimes.process.dialects import failure_of
from proofbox.agents.runtimes.thread_session import ThreadedSession
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.core.text import preview
from proofbox.errors import AgentError
from proofbox.sandbox.contract import Mount

INSIDE = "/run/claude"
INTERRUPT_SECONDS = 5.0


class ClaudeSession(ThreadedSession[ActiveThread]):
    _program_name = "claude"

    def __init__(
        self,
        runtime: ClaudeCode,
        options: SessionOptions,
        settings: ClaudeSettings,
        binary: ClaudeBinary,
        version: str,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        super().__init__(runtime, options, settings.endpoint(), clock=clock, ids=ids)
        self.version = version
        self._settings = settings
        self._binary = binary
        self._config = self._home / "config"
        self._store = ClaudeThreadStore(options.home)
        self._listener = ClaudeListener(
            self.feed, self._model_route, options.approvals, self._note_activity, self.publish_thread
        )
        self._argv: list[str] = []

    async def _open_box(self) -> None:
        options = self.options
        prepare_home(self._config, options, {})
        address = await self._open_route()
        program, home = str(self._binary.path), str(self._config)
        mounts: list[str | Mount] = []
        if options.sandboxed:
            program, home = f"{INSIDE}/claude", f"{INSIDE}/home"
            mounts = [Mount(self._binary.path, program), Mount(self._config, home, writable=True)]
        self._argv = [program, *self._settings.arguments()]
        self._env = {**options.env, **self._settings.environment(home, address)}
        await self._start_box(mounts)

    def facts(self) -> Mapping[str, Any]:
        return {
            **super().facts(),
            "binary": str(self._binary.path),
            "found_by": self._binary.found_by,
            "permission_mode": self._settings.permission_mode,
            "model": self._settings.model,
            "garbage_lines": self._listener.garbage,
        }

    # Threads

    async def start_thread(self, folder: str = "") -> str:
        self._check_open()
        id = uuid_for(self._ids.new_id("thread"))
        return await self._use(ClaudeThread(id, folder), ThreadStarted(session=self.id, thread=id))

    async def resume_thread(self, thread: str) -> str:
        self._check_open()
        stored = self._store.load(thread)
        if thread in self._used:
            return thread
        return await self._use(stored, ThreadStarted(session=self.id, thread=thread, origin="resume"))

    async def fork_thread(self, thread: str, last_turn: str | None = None) -> str:
        self._check_open()
        source = self._store.load(thread)
        at = source.last_message(last_turn) if last_turn is not None else ""
        origin = source
        if not self._has_history(thread):  # a fork that has not had a turn: fork the thread that it came from
            origin, at = self._store.load(source.forked_from or thread), at or source.forked_at
        id = uuid_for(self._ids.new_id("thread"))
        forked = ClaudeThread(id, source.folder, forked_from=origin.id, forked_at=at)
        event = ThreadStarted(session=self.id, thread=id, origin="fork", forked_from=thread)
        return await self._use(forked, event)

    async def _use(self, stored: ClaudeThread, event: ThreadStarted) -> str:
        thread = ActiveThread(stored)
        await self._start_program(thread)
        self._store.save(stored)
        self._used[stored.id] = thread
        self.folders[stored.id] = stored.folder
        return await self._register_thread(stored.id, event)

    def _has_history(self, thread: str) -> bool:
        """Return whether Claude Code has stored the session. Only names are read: agents can write to these files."""
        return any(True for _ in self._config.glob(f"projects/*/{thread}.jsonl"))

    def _session_arguments(self, stored: ClaudeThread) -> list[str]:
        if self._has_history(stored.id):
            return ["--resume", stored.id]
        if not stored.forked_from:
            return ["--session-id", stored.id]
        at = ["--resume-session-at", stored.forked_at] if stored.forked_at else []
        return ["--resume", stored.forked_from, "--fork-session", "--session-id", stored.id, *at]

    def _make_program(self, thread: ActiveThread) -> ClaudeProgram:
        assert self._box is not None  # noqa: S101 (opened before anyone has it)
        box = self._box

        async def handle(message: dict[str, Any]) -> None:
            await self._listener.on_message(thread, message)

        async def serve(request: dict[str, Any]) -> dict[str, Any] | None:
            return await self._listener.on_request(thread, request, box.inside.guest_project)

        return ClaudeProgram(
            box,
            thread.id,
            argv=[*self._argv, *self._session_arguments(thread.stored)],
            env=self._env,
            cwd=thread.stored.folder or None,
            on_message=handle,
            on_garbage=self._listener.on_garbage,
            answer=serve,
            timeout=self.options.request_timeout,
        )

    async def _prepare_program(self, thread: ActiveThread, program: ClaudeProgram) -> None:
        await program.initialize(permissions.hooks(self.options.approvals))
        thread.counted = None

    # Turns

    async def _run_turn(self, turn: Turn, prompt: str) -> None:
        thread = self._used[turn.thread]
        if thread.program is None or thread.program.ended.is_set():
            self._restarts += 1
            await self._start_program(thread)
        program = thread.program
        assert program is not None  # noqa: S101 (started above)
        thread.turn, thread.under_way, thread.result, thread.over = turn, False, None, anyio.Event()
        thread.last_message = ""
        content = [{"type": "text", "text": prompt}]
        message = {"role": "user", "content": content}
        try:
            await program.send(
                {"type": "user", "uuid": uuid_for(turn.id), "message": message, "parent_tool_use_id": None}
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_when, program.ended, tasks.cancel_scope)
                await thread.over.wait()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._leave_turn(thread, turn)
        if self.feed.failure is not None:
            raise self.feed.failure
        if thread.result is None:
            raise self._crashed(turn, program)
        failure = None
        if thread.result.get("is_error"):
            failure = self._model_route.failure_of(turn) or _reported_failure(thread.result)
        await self._model_route.settle(turn, complete=failure is None and thread.counts_all)
        if failure is not None:
            raise failure

    async def _leave_turn(self, thread: ActiveThread, turn: Turn) -> None:
        """Report the remaining events of a turn. If the turn was stopped, its processes are already dead."""
        if thread.result is None:
            await self._kill(turn)
        for event in thread.abandon(turn.id):
            await self.publish_thread(thread, event)
        thread.decoder.ended = True
        thread.turn, thread.under_way = None, False
        if thread.last_message:
            turns = {**thread.stored.turns, turn.id: thread.last_message}
            thread.stored = msgspec.structs.replace(thread.stored, turns=turns)
            self._store.save(thread.stored)

    async def _kill(self, turn: Turn) -> None:
        """Interrupt the turn, so that its end is in the thread's history, then kill all processes of the thread."""
        thread = self._used.get(turn.thread)
        if thread is None or thread.turn is not turn or thread.result is not None or thread.program is None:
            return
        program, thread.program = thread.program, None
        if not program.ended.is_set() and self.feed.failure is None:
            with anyio.move_on_after(INTERRUPT_SECONDS):
                try:
                    await program.request("interrupt")
                    await thread.over.wait()
                except AgentError:
                    pass
        await self._end_program(turn.thread, program)


async def _when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _reported_failure(result: Mapping[str, Any]) -> AgentError:
    """Return the failure that Claude Code reports, of a turn whose requests to the model did not fail."""
    status, text = result.get("api_error_status"), result.get("result") or result.get("subtype")
    message = preview(text, 2000)[0] if isinstance(text, str) else "claude reported a failure"
    return failure_of(status if isinstance(status, int) else None, message)
