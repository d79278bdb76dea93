"""End turns early, and end everything that threads have started.

Codex is asked first, so that it reports exit codes and output. Whatever remains is killed: the processes of a call, or
the whole program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

import anyio

from proofbox.agents.feed import Turn
from proofbox.agents.runtimes.codex.listener import ANNOUNCE_SECONDS, CodexListener
from proofbox.agents.runtimes.codex.supervisor import CLOSE_SECONDS, CodexSupervisor
from proofbox.errors import AgentError, TurnInterrupted

INTERRUPT_SECONDS = 10.0
STOP_SECONDS = 5.0
END_ROUNDS = 5


class TurnEnder:
    """Ends turns, commands and threads of one session."""

    def __init__(self, codex: CodexSupervisor, listener: CodexListener, request_timeout: float) -> None:
        self._codex = codex
        self._listener = listener
        self._feed = listener.feed
        self._request_timeout = request_timeout

    async def end_thread(self, thread: str) -> None:
        """Interrupt the turns of the thread and its sub-agents, then end everything that they started."""
        await self._wait_for_sub_agents()
        verdict = TurnInterrupted("the parent turn has ended", op="turn")
        for _ in range(END_ROUNDS):  # the end of one turn may start another one in a waiting thread
            family = self._family(thread)
            under_way = [turn for turn in self._feed.turns_under_way() if turn.thread in family]
            for turn in under_way:
                await self.stop(turn, verdict)
            await self._end_commands(family)
            if not any(turn.thread in self._family(thread) for turn in self._feed.turns_under_way()):
                return
        message = "sub-agents keep starting turns after the end of their parent turn"
        await self._listener.report_integrity(thread, "THREAD_NOT_ENDED", message)

    async def _wait_for_sub_agents(self) -> None:
        """Wait until Codex has announced all sub-agents whose model responses, seen by the gateway, request calls."""
        program, early = self._codex.program, self._listener.early_calls
        with anyio.move_on_after(ANNOUNCE_SECONDS):
            await self._codex.wait(lambda: not early or self._codex.program is not program)
        early.clear()  # not from Codex, so later turns don't wait for them

    async def stop(self, turn: Turn, verdict: AgentError) -> None:
        """End a turn and its commands early. If Codex does not comply, kill the program."""
        turn.is_stopping = True
        self._listener.verdicts.setdefault(turn.id, verdict)
        running = self._listener.decoder.running
        calls = set(running([turn.thread], turn.id))
        with anyio.move_on_after(min(self._request_timeout, INTERRUPT_SECONDS)):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._interrupt, turn)
                await turn.ended.wait()
                tasks.cancel_scope.cancel()
        if not turn.ended.is_set():
            await self._codex.kill()
            await turn.ended.wait()
            return
        await self._end_commands([turn.thread], turn.id, calls | set(running([turn.thread], turn.id)))

    async def _interrupt(self, turn: Turn) -> None:
        """Ask Codex to interrupt a turn. It does not respond if the turn is already ending, so errors are ignored."""
        try:
            await self._codex.request("turn/interrupt", lambda _: {"threadId": turn.thread, "turnId": turn.id})
        except AgentError:
            pass

    async def _end_commands(
        self, threads: Sequence[str], turn: str | None = None, calls: Collection[tuple[str, str]] = ()
    ) -> None:
        """End everything that these threads run, or only these calls of one turn, and wait until each call has ended.

        Codex keeps the command of an interrupted turn running as a background terminal: clear those, then kill the
        processes that detached themselves.
        """
        program, listener = self._codex.program, self._listener
        if program is not None:
            for thread in threads:
                with anyio.move_on_after(STOP_SECONDS):
                    await self._clear_terminals(thread)
            marked = [(thread, "") for thread in threads] if turn is None else sorted(calls)
            killed = [await program.kill_commands(thread, call) for thread, call in marked]
            with anyio.move_on_after(STOP_SECONDS):
                await self._codex.wait(
                    lambda: not listener.decoder.running(threads, turn) or self._codex.program is not program
                )
            running = bool(listener.decoder.running(threads, turn))
            if (running or not all(killed)) and not self._feed.turns_under_way():
                await self._codex.kill()
                await self._codex.wait(
                    lambda: self._codex.program not in (None, program) or self._codex.broken is not None
                )
            elif not all(killed) and self._codex.program is program:
                message = "processes that the agent started may keep running until the session ends"
                await listener.report_integrity(threads[0], "COMMAND_NOT_ENDED", message, turn or "")
        others = self._feed.turns_under_way()  # killing the program would end these as well
        if await listener.abandon(threads, turn) and others:
            message = "a command of a finished turn may keep running until the session ends"
            await listener.report_integrity(threads[0], "COMMAND_NOT_ENDED", message, turn or "")

    async def _clear_terminals(self, thread: str) -> None:
        with contextlib.suppress(AgentError):
            await self._codex.request("thread/backgroundTerminals/clean", lambda _: {"threadId": thread})

    async def end_left_over(self) -> None:
        """Let Codex end the commands that outlived their turns, so that it reports their exit codes and output."""

        def left_over() -> set[str]:
            busy = {turn.thread for turn in self._feed.turns_under_way()}
            return {thread for thread, _ in self._listener.decoder.running()} - busy

        with anyio.move_on_after(CLOSE_SECONDS):
            for thread in left_over():
                await self._clear_terminals(thread)
            await self._codex.wait(lambda: not left_over() or not self._codex.is_ready())

    def _family(self, thread: str) -> list[str]:
        """Return a thread and its sub-agents that are loaded in the current program."""
        known, listener = self._listener.lineage.family(thread), self._listener
        return [each for each in known if listener.threads.get(each) == listener.generation] or [thread]
