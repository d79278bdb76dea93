"""A session with Codex: one program over one workspace, any number of threads, and what is promised about them.

The program and the gateway live in the background, from `open` to `close`. When the program ends under us, its turns
end as crashed, everything it had started is dead, and another takes its place; threads are resumed there when they are
next used. A turn is never played again by us: it may have acted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import anyio
from anyio.to_thread import run_sync

from proofbox.agents.background import Background
from proofbox.agents.box_facts import box_facts, variables_of
from proofbox.agents.contract import SessionOptions, TurnResult
from proofbox.agents.events import Listener, Notice, ThreadStarted
from proofbox.agents.feed import Feed, Turn
from proofbox.agents.gateway.server import ModelEndpoint, ModelGateway
from proofbox.agents.gateway.traffic import Exchange
from proofbox.agents.runtimes.codex import fields
from proofbox.agents.runtimes.codex.binary import Binary
from proofbox.agents.runtimes.codex.launch import prepare, way_to_model
from proofbox.agents.runtimes.codex.listener import CodexListener
from proofbox.agents.runtimes.codex.program import Handlers, Launch, Program, running
from proofbox.agents.runtimes.codex.settings import CodexSettings
from proofbox.core.clock import Clock, SystemClock
from proofbox.core.files.removal import remove_tree
from proofbox.core.ids import IdSource
from proofbox.errors import (
    AgentError,
    InternalError,
    Overloaded,
    ProofboxError,
    RuntimeProtocolError,
    RuntimeStalled,
    RuntimeStartFailed,
    RuntimeTimedOut,
    TransportBroken,
    TurnInterrupted,
    UsageError,
)
from proofbox.sandbox.async_service import AsyncSandboxes

MOST_RECOVERIES = 3
OVERLOAD_TRIES = 4
OVERLOAD_SECONDS = 0.2
INTERRUPT_SECONDS = 10.0
STOP_SECONDS = 5.0
END_ROUNDS = 5
CLOSE_SECONDS = 3.0


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
        self._hearing = CodexListener(self.feed, options.approvals, self._clock, self._heard)
        self._gateway = ModelGateway(
            endpoint,
            on_exchange=self._hearing.saw,
            on_trouble=self._hearing.gateway_trouble,
            on_call=self._hearing.call_requested,
            clock=self._clock,
        )
        self._background = Background()
        self._program: Program | None = None
        self._opened = False
        self._folders: dict[str, str] = {}
        self._starting: set[str] = set()
        self._recoveries: list[dict[str, Any]] = []
        self._changed = anyio.Event()
        self._over: ProofboxError | None = None
        self._closing = anyio.Event()
        self._gone = anyio.Event()
        self._facts: dict[str, Any] = {}

    # The contract

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
            "garbage_lines": self._hearing.garbage,
            "recoveries": list(self._recoveries),
            **self._facts,
            **(box_facts(self._program.box.info) if self._program is not None else {}),
        }

    def add_listener(self, listener: Listener) -> int:
        return self.feed.add_listener(listener)

    def remove_listener(self, number: int) -> None:
        self.feed.remove_listener(number)

    @property
    def broken(self) -> ProofboxError | None:
        return self._over

    def owner_of(self, thread: str) -> str:
        return self._hearing.lineage.owner(thread)

    @property
    def exchanges(self) -> list[Exchange]:
        """What passed through the gateway."""
        return self._gateway.exchanges

    async def open(self) -> None:
        """Start the program, or raise why it did not come up."""
        await self._background.open()
        self._opened = True
        self._background.spawn(self._live)
        try:
            await self._wait(lambda: self._program is not None or self._over is not None)
        except BaseException:
            await self.close()
            raise
        if self._over is not None:
            await self.close()
            raise self._over if isinstance(self._over, UsageError) else _as_agent(self._over)
        if self._options.stall_timeout is not None:
            self._background.spawn(self._watch, self._options.stall_timeout)

    async def start_thread(self, folder: str = "") -> str:
        result = await self._ask("thread/start", lambda program: self._place(program, folder))
        thread = await self._have_thread(result, "start")
        self._folders[thread] = folder
        return thread

    async def resume_thread(self, thread: str) -> str:
        result = await self._ask("thread/resume", lambda program: self._resuming(program, thread))
        return await self._have_thread(result, "resume")

    async def fork_thread(self, thread: str, last_turn: str | None = None) -> str:
        def params(program: Program) -> dict[str, Any]:
            return self._resuming(program, thread) | ({"lastTurnId": last_turn} if last_turn is not None else {})

        return await self._have_thread(await self._ask("thread/fork", params), "fork", thread)

    async def start_turn(self, thread: str, prompt: str) -> str:
        if thread not in self._hearing.threads:
            raise UsageError(f"this session has no thread {thread[:80]!r}", op="turn", fix_hints=["start one"])
        # Codex would take a second start for a steer, without a word.
        if thread in self._starting or self.feed.active_turn(thread) is not None:
            raise UsageError(
                "the thread has a turn under way", op="turn", fix_hints=["wait for it, interrupt it, or steer it"]
            )
        self._starting.add(thread)
        begun: list[str] = []

        def begin(result: Any) -> None:
            turn = _member(result, "turn", "id", method="turn/start")
            if self.feed.knows(turn):
                raise RuntimeProtocolError(f"codex gave the id of another turn, {turn[:80]}", op="turn")
            self._hearing.begin(turn, thread)
            begun.append(turn)

        try:
            await self._load(thread)
            asked = {"threadId": thread, "input": [{"type": "text", "text": prompt}]}
            await self._ask("turn/start", lambda _: asked, on_result=begin)
        finally:
            self._starting.discard(thread)
        return begun[0]

    async def steer_turn(self, thread: str, turn: str, text: str) -> None:
        if self.feed.turn(turn, thread).result is not None:
            raise UsageError("the turn has ended", op="steer", fix_hints=["start another"])
        asked = {"threadId": thread, "expectedTurnId": turn, "input": [{"type": "text", "text": text}]}
        await self._ask("turn/steer", lambda _: asked)

    async def interrupt_turn(self, thread: str, turn: str) -> None:
        if self.feed.turn(turn, thread).result is None:
            await self._stop(self.feed.turn(turn), TurnInterrupted("the turn was interrupted", op="interrupt"))

    async def wait_turn(self, turn: str) -> TurnResult:
        return await self.feed.wait_turn(turn)

    async def end_thread(self, thread: str) -> None:
        """Interrupt the turns of the thread and its sub-agents, then end everything they started."""
        verdict = TurnInterrupted("the turn that it worked for has ended", op="turn")
        for _ in range(END_ROUNDS):  # the end of one turn may start another, in a thread that waited for it
            family = self._family(thread)
            under_way = [turn for turn in self.feed.turns_under_way() if turn.thread in family]
            for turn in under_way:
                await self._stop(turn, verdict)
            await self._end_commands(family)
            if not any(turn.thread in self._family(thread) for turn in self.feed.turns_under_way()):
                return
        message = "sub-agents go on beginning turns after the end of the turn that they worked for"
        await self._hearing.doubt(thread, "THREAD_NOT_ENDED", message)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            if self._program is not None and not self._closing.is_set():
                await self._end_left_over()
            self._closing.set()
            if self._opened:
                with anyio.move_on_after(CLOSE_SECONDS + STOP_SECONDS):
                    await self._gone.wait()
                await self._background.close()  # what has not ended by itself is cancelled, and its box ended
            if self._options.home is None:
                await run_sync(remove_tree, self._home)

    # The program's lives

    async def _live(self) -> None:
        """From the first start to the end of the session. Never raises: what went wrong is in `_over`."""
        try:
            directory = self._options.scratch / f"{self.id}-gateway"
            async with way_to_model(self._gateway, self._options, directory) as (base_url, doors):
                self._facts["gateway"] = "a socket of its own" if doors else "loopback of the host"
                launch = prepare(self._options, self._settings, self._binary, self._home, base_url, doors)
                async with AsyncSandboxes(
                    self._options.workspace, settings=self._options.box_settings, clock=self._clock, ids=self._ids
                ) as boxes:
                    while not self._closing.is_set() and len(self._recoveries) <= MOST_RECOVERIES:
                        await self._one_life(boxes, launch)
        except Exception as error:  # nobody else would hear of it
            self._over = _innermost(error)
        finally:
            with anyio.CancelScope(shield=True):
                self._program = None
                closed = TurnInterrupted("the session was closed", op="close")
                self._over = self._over or closed
                await self._hearing.end_all("interrupted" if self._over is closed else "failed", _as_agent(self._over))
            self._gone.set()
            self._wake()

    async def _one_life(self, boxes: AsyncSandboxes, launch: Launch) -> None:
        hear = self._hearing
        handlers = Handlers(
            on_notification=hear.notified,
            on_request=hear.asked,
            on_garbage=hear.told_garbage,
            on_failure=hear.not_understood,
        )
        async with running(boxes, launch, handlers) as program:
            self._hearing.life += 1
            self.version = program.version
            variables = variables_of(program.box.inside, launch.env)
            self._facts |= {"user_agent": program.user_agent, "variables": variables, **box_facts(program.box.info)}
            self._program = program
            self._wake()
            if self._recoveries:
                message = f"codex was started again ({len(self._recoveries)} of {MOST_RECOVERIES} times)"
                await self.feed.tell(Notice(session=self.id, kind="recovered", message=message))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_when, program.ended, tasks.cancel_scope)
                await self._closing.wait()
                await program.hang_up()
                with anyio.move_on_after(CLOSE_SECONDS):
                    await program.ended.wait()
                tasks.cancel_scope.cancel()
            self._program = None
            crash = None if self._closing.is_set() else await program.last_words()
        # Here the box is gone, and everything in it.
        if crash is not None:
            self._recoveries.append({"reason": crash.message, "at_turns": len(self.feed.turns_under_way())})
            again = len(self._recoveries) <= MOST_RECOVERIES
            crash.details |= {"restarting": again, "replayed": False}
            crash.fix_hints = (
                "go on in the thread: the turn may have acted, and is not played again"
                if again
                else "start another session: this program ended too often",
            )
            self._hearing.ledger.forget()
            await self._hearing.end_all("failed", crash)
            if not again:
                self._over = crash

    # Asking

    async def _ask(
        self,
        method: str,
        params: Callable[[Program], Any],
        on_result: Callable[[Any], None] | None = None,
    ) -> Any:
        """One request; tried again only where Codex said that it was too busy to take it."""
        for attempt in range(OVERLOAD_TRIES):
            program = await self._up()
            try:
                return await program.peer.request(method, params(program), on_result=on_result)
            except Overloaded:
                if attempt + 1 == OVERLOAD_TRIES:
                    raise
                await anyio.sleep(OVERLOAD_SECONDS * 2**attempt)
            except TransportBroken as error:
                raise TransportBroken(
                    f"{method}: codex ended before it answered",
                    op=method,
                    fix_hints=["try again: another is started"],
                    details=error.details,
                ) from None
        raise RuntimeProtocolError(f"{method} was not asked", op=method)

    async def _up(self) -> Program:
        """The program, when there is one: while another is being started, wait for it."""
        try:
            with anyio.fail_after(self._options.request_timeout):
                await self._wait(lambda: self._answers() or self._over is not None)
        except TimeoutError:
            raise RuntimeTimedOut("codex did not come up again in time", op="session") from None
        if self._program is None or self._closing.is_set():
            raise _as_agent(self._over or TurnInterrupted("the session was closed", op="session"))
        return self._program

    def _answers(self) -> bool:
        """One whose stream has broken is still there for a moment, and of no use."""
        return self._program is not None and self._program.peer.broken is None

    async def _load(self, thread: str) -> None:
        """A thread of an earlier life is resumed before it is used."""
        await self._up()
        if self._hearing.threads[thread] != self._hearing.life:
            await self._ask("thread/resume", lambda program: self._resuming(program, thread))
            self._hearing.threads[thread] = self._hearing.life

    def _place(self, program: Program, folder: str) -> dict[str, Any]:
        policy = self._settings.approval_policy
        cwd = f"{program.workspace}/{folder}" if folder else program.workspace
        return {"cwd": cwd, "approvalPolicy": policy, "sandbox": "danger-full-access"}

    def _resuming(self, program: Program, thread: str) -> dict[str, Any]:
        return {"threadId": thread, "excludeTurns": True, **self._place(program, self._folders.get(thread, ""))}

    async def _have_thread(self, result: Any, origin: str, forked_from: str = "") -> str:
        thread = _member(result, "thread", "id", method=f"thread/{origin}")
        self._hearing.threads[thread] = self._hearing.life
        self._hearing.lineage.start(thread)
        await self.feed.tell(
            ThreadStarted(session=self.id, thread=thread, origin=origin, forked_from=forked_from)  # type: ignore[arg-type]
        )
        return thread

    # Ending turns

    async def _stop(self, turn: Turn, verdict: AgentError) -> None:
        """End a turn early, and the commands it runs. When Codex does not do it, the program is killed for it."""
        self._hearing.verdicts.setdefault(turn.id, verdict)
        running = self._hearing.decoder.running
        calls = set(running([turn.thread], turn.id))
        with anyio.move_on_after(min(self._options.request_timeout, INTERRUPT_SECONDS)):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._interrupt, turn)
                await turn.ended.wait()
                tasks.cancel_scope.cancel()
        if not turn.ended.is_set():
            await self._kill_program()
            await turn.ended.wait()
            return
        await self._end_commands([turn.thread], turn.id, calls | set(running([turn.thread], turn.id)))

    async def _interrupt(self, turn: Turn) -> None:
        """Ask for the end. No answer comes for a turn that is ending already: its end is what is waited for."""
        try:
            await self._ask("turn/interrupt", lambda _: {"threadId": turn.thread, "turnId": turn.id})
        except AgentError:
            pass

    async def _end_commands(
        self, threads: Sequence[str], turn: str | None = None, calls: Collection[tuple[str, str]] = ()
    ) -> None:
        """End everything these threads run, or only these calls of one turn, and wait for each call's end.

        Codex keeps the command of an interrupted turn running as a background terminal: clear those, then kill the
        processes that detached themselves.
        """
        program, hear = self._program, self._hearing
        if program is not None:
            for thread in threads:
                with anyio.move_on_after(STOP_SECONDS):
                    await self._clear_terminals(thread)
            marked = [(thread, "") for thread in threads] if turn is None else sorted(calls)
            killed = [await program.kill_commands(thread, call) for thread, call in marked]
            with anyio.move_on_after(STOP_SECONDS):
                await self._wait(lambda: not hear.decoder.running(threads, turn) or self._program is not program)
            running = bool(hear.decoder.running(threads, turn))
            if (running or not all(killed)) and not self.feed.turns_under_way():
                await self._kill_program()
                await self._wait(lambda: self._program not in (None, program) or self._over is not None)
            elif not all(killed) and self._program is program:
                message = "processes that the agent has started may run on until the session ends"
                await hear.doubt(threads[0], "COMMAND_NOT_ENDED", message, turn or "")
        others = self.feed.turns_under_way()  # killing the program would end those
        if await hear.abandon(threads, turn) and others:
            message = "a command of a turn that has ended may run on until the session ends"
            await hear.doubt(threads[0], "COMMAND_NOT_ENDED", message, turn or "")

    async def _clear_terminals(self, thread: str) -> None:
        with contextlib.suppress(AgentError):
            await self._ask("thread/backgroundTerminals/clean", lambda _: {"threadId": thread})

    async def _end_left_over(self) -> None:
        """Have Codex end the commands that outlived their turns, so that it reports their exit codes and output."""

        def left_over() -> set[str]:
            busy = {turn.thread for turn in self.feed.turns_under_way()}
            return {thread for thread, _ in self._hearing.decoder.running()} - busy

        with anyio.move_on_after(CLOSE_SECONDS):
            for thread in left_over():
                await self._clear_terminals(thread)
            await self._wait(lambda: not left_over() or not self._answers())

    def _family(self, thread: str) -> list[str]:
        """A thread and its sub-agents, as far as they are in the program that runs now."""
        known, hear = self._hearing.lineage.family(thread), self._hearing
        return [each for each in known if hear.threads.get(each) == hear.life] or [thread]

    async def _kill_program(self) -> None:
        if self._program is not None:
            await self._program.kill()

    async def _watch(self, seconds: float) -> None:
        """The watchdog: a turn without any sign of life for this long is stopped."""
        while not self._gone.is_set():
            await anyio.sleep(min(seconds / 4, 1.0))
            for turn in self.feed.turns_under_way():
                if self._hearing.silence(turn) > seconds and turn.id not in self._hearing.verdicts:
                    stalled = RuntimeStalled(
                        f"the turn gave no sign of life for {seconds:g} s", op="turn", details={"seconds": seconds}
                    )
                    self._hearing.verdicts[turn.id] = stalled
                    self._background.spawn(self._stop, turn, stalled)

    def _heard(self) -> None:
        """Wake who waits. A record that is not whole can't become whole: then what is under way is stopped."""
        self._wake()
        if self.feed.failure is not None:
            for turn in self.feed.turns_under_way():
                if turn.id not in self._hearing.verdicts:
                    self._hearing.verdicts[turn.id] = self.feed.failure
                    self._background.spawn(self._stop, turn, self.feed.failure)

    # Waiting

    async def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


async def _when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _innermost(error: BaseException) -> ProofboxError:
    """Task groups wrap what is raised in them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ProofboxError):
        return error
    return InternalError(f"the session broke: {type(error).__name__}: {error}", op="session")


def _as_agent(error: ProofboxError) -> AgentError:
    """What ended the session, as an error of a turn."""
    if isinstance(error, AgentError):
        return error
    return RuntimeStartFailed(
        f"the session has no box: {error.message}",
        op=error.op or "session",
        fix_hints=error.fix_hints,
        details={**error.details, "cause": error.code},
    )


def _member(result: Any, outer: str, inner: str, *, method: str) -> str:
    value = result.get(outer) if isinstance(result, dict) else None
    text = value.get(inner) if isinstance(value, dict) else None
    if not isinstance(text, str) or not text:
        raise RuntimeProtocolError(f"{method} was answered without {outer}.{inner}", op=method)
    if fields.id(value, inner) != text:
        raise RuntimeProtocolError(f"{method} was answered with an id of {len(text)} characters", op=method)
    return text
