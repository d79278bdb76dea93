"""The scripted agent: it plays a script (`script.py`) and needs no model, key or network.

Its tool calls are real: they use the workspace's tools, and commands run in a box, one box per thread. It stores its
threads in its home, so that a later session can resume or fork them. Its own calls are reported as `observed`; a call
that a script only claims is reported as `runtime_reported`.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import anyio
import msgspec
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from proofbox.agents.agent_box import box_facts, variables_of
from proofbox.agents.approvals import decide, subject_of
from proofbox.agents.contract import AgentRuntime, RuntimeCapabilities, RuntimeProbe, SessionOptions
from proofbox.agents.events import (
    ApprovalDecision,
    Event,
    ItemStarted,
    Message,
    Notice,
    Reasoning,
    ThreadStarted,
    ToolCall,
    Unrecognized,
    Usage,
)
from proofbox.agents.feed import Turn
from proofbox.agents.hosted_session import HostedSession
from proofbox.agents.runtimes.scripted.script import CRASH, FORMAT, STALL, AgentScript, ScriptStep, filled, read_script
from proofbox.agents.runtimes.scripted.threads import KeptTurn, Thread, ThreadStore
from proofbox.agents.settings import read_settings
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.core.text import preview
from proofbox.errors import (
    CapabilityDenied,
    CommandNotExecutable,
    CommandNotFound,
    PathRefused,
    ProofboxError,
    RequestInvalid,
    RuntimeCrashed,
    SandboxError,
    SandboxLost,
    ToolPathRefused,
    TurnInterrupted,
    UsageError,
    WorkspaceError,
    WorkspacePathRefused,
)
from proofbox.sandbox.service import Sandboxes
from proofbox.workspace.capabilities.capabilities import CapabilityGuard, require
from proofbox.workspace.tools.environments.commands import command_argv
from proofbox.workspace.tools.environments.host import SandboxEnvironment
from proofbox.workspace.tools.registry import create_tool_registry
from proofbox.workspace.tools.results import CommandResult, ToolResult


class ScriptedSettings(msgspec.Struct, frozen=True):
    script: str | dict[str, Any] = ""
    """The path of a TOML file, or the script itself as a table."""


class Tools(Protocol):
    """The tools of one thread, and the box that its commands run in."""

    @property
    def facts(self) -> Mapping[str, Any]: ...

    def call(self, name: str, args: Mapping[str, Any]) -> ToolResult: ...

    def commands_alive(self) -> int:
        """Return the number of commands that still have processes."""

    def stop(self) -> None:
        """End the box and everything in it; pending calls raise. Idempotent."""


AGENT_ERRORS = (CommandNotFound, CommandNotExecutable, RequestInvalid, PathRefused)
OpenTools = Callable[[SessionOptions], Tools]
SHOWN = 4000
"""The maximum number of bytes recorded of the subject of an approval decision."""


class BoxedTools:
    """The workspace's tools in a sandbox session created for them."""

    def __init__(self, options: SessionOptions) -> None:
        self._boxes = Sandboxes(options.workspace, settings=options.box_settings)
        provider = options.provider if options.sandboxed else "off"
        self._session = self._boxes.start_session(provider=provider, **options.policy)
        self._env = dict(options.env)
        self._grants = options.grants
        guard = CapabilityGuard(options.grants) if options.grants is not None else None
        self._environment = SandboxEnvironment(self._session, guard=guard)
        self._registry = create_tool_registry(self._environment)

    @property
    def facts(self) -> Mapping[str, Any]:
        return {**box_facts(self._session.info), "variables": variables_of(self._session.inside, self._env)}

    def call(self, name: str, args: Mapping[str, Any]) -> ToolResult:
        if name == "run_command" and self._grants is not None:
            require(self._grants.command(command_argv(args.get("command", ""))))
        if name == "run_command" and self._env:
            args = {**args, "env": {**self._env, **args.get("env", {})}}
        return self._registry.call(name, args)

    def commands_alive(self) -> int:
        return self._session.commands_alive()

    def stop(self) -> None:
        self._boxes.close()
        self._environment.close()


class ScriptedRuntime:
    id = "scripted"
    title = "A deterministic agent that plays a script"
    capabilities = RuntimeCapabilities(
        supports_turn_steer=True,
        supports_interrupt=True,
        supports_event_stream=True,
        supports_parallel_sessions=True,
        supports_thread_resume=True,
        supports_thread_fork=True,
        supports_token_usage=True,
    )
    settings: type[msgspec.Struct] = ScriptedSettings

    def __init__(
        self, open_tools: OpenTools = BoxedTools, sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    ) -> None:
        self._open_tools = open_tools
        self._sleep = sleep

    async def probe(self, settings: Mapping[str, Any]) -> RuntimeProbe:
        parsed = read_settings(ScriptedSettings, settings, self.id)
        read_script(parsed.script)
        return RuntimeProbe(strategy=self.id, available=True, version=FORMAT)

    async def start_session(
        self, options: SessionOptions, *, clock: Clock | None = None, ids: IdSource | None = None
    ) -> ScriptedSession:
        settings = read_settings(ScriptedSettings, options.settings, self.id)
        script = read_script(settings.script)
        session = ScriptedSession(self, options, script, self._open_tools, self._sleep, clock=clock, ids=ids)
        await session.open()
        return session


class ScriptedSession(HostedSession):
    version = FORMAT

    def __init__(
        self,
        runtime: AgentRuntime,
        options: SessionOptions,
        script: AgentScript,
        open_tools: OpenTools,
        sleep: Callable[[float], Awaitable[None]],
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        super().__init__(runtime, options, clock=clock, ids=ids)
        self._script = script
        self._open_tools = open_tools
        self._sleep = sleep
        self._store = ThreadStore(options.home)
        self._kept: dict[str, Thread] = {}
        self._tools: dict[str, Tools] = {}
        self._box: Tools | None = None
        self._steered: dict[str, list[str]] = {}
        self._steer_events: dict[str, anyio.Event] = {}
        self._items = 0
        self._crashed = False

    def facts(self) -> Mapping[str, Any]:
        boxed = self.options.sandboxed and self.options.provider != "off"  # until the first box is open
        return {"transport": "embedded", "sandboxed": boxed, **(self._box.facts if self._box is not None else {})}

    async def start_thread(self, folder: str = "") -> str:
        thread = await super().start_thread(folder)
        self._keep(Thread(thread))
        return thread

    async def _register_thread(self, thread: str, event: ThreadStarted) -> str:
        """Start the thread's box first if the script uses tools, so that a failure to start it does not count as the
        agent's failure."""
        if self._script.uses_tools:
            await self._tools_of(thread)
        return await super()._register_thread(thread, event)

    async def resume_thread(self, thread: str) -> str:
        self._check_open()
        self._kept[thread] = self._store.load(thread)
        return await self._register_thread(thread, ThreadStarted(session=self.id, thread=thread, origin="resume"))

    async def fork_thread(self, thread: str, last_turn: str | None = None) -> str:
        self._check_open()
        source = self._kept.get(thread) or self._store.load(thread)
        new = Thread(self._ids.new_id("thread"), source.until(last_turn), thread)
        self._keep(new)
        event = ThreadStarted(session=self.id, thread=new.id, origin="fork", forked_from=thread)
        return await self._register_thread(new.id, event)

    def _record_turn(self, turn: Turn, prompt: str) -> None:
        self._keep(self._kept[turn.thread].with_turn(KeptTurn(turn.id, (prompt,))))

    async def steer_turn(self, thread: str, turn: str, text: str) -> None:
        if self.feed.turn(turn, thread).result is not None:
            raise UsageError("the turn has already ended", op="turn", fix_hints=["start another turn"])
        self._steered.setdefault(turn, []).append(text)
        self._keep_steering(thread, turn, text)
        self._steer_events.setdefault(turn, anyio.Event()).set()
        await self.publish(Notice(session=self.id, thread=thread, turn=turn, kind="steered", message=text))

    async def _run_turn(self, turn: Turn, prompt: str) -> None:
        number = len(self._kept[turn.thread].turns)
        status = "interrupted"
        try:
            for step in self._script.steps_of(number):
                await self._do(turn, step, number, prompt)
            status = "completed"
        except ProofboxError:
            status = "failed"
            raise
        finally:
            thread = self._kept[turn.thread]
            self._keep(thread.with_turn(msgspec.structs.replace(thread.turns[-1], status=status)))

    async def _do(self, turn: Turn, step: ScriptStep, number: int, prompt: str) -> None:
        steered = self._steered.get(turn.id, [])
        places = {
            "prompt": prompt,
            "turn": str(number),
            "heard": steered[-1] if steered else "",
            "history": "\n".join(self._kept[turn.thread].messages()),
        }
        if step.tool is not None:
            await self._use(turn, step.tool, filled(step.args, places))
        elif step.delay is not None:
            await self._sleep(step.delay)
        elif step.hear is not None:
            await self._steer_events.setdefault(turn.id, anyio.Event()).wait()
            self._steer_events[turn.id] = anyio.Event()
        elif step.fault == STALL:
            await anyio.sleep_forever()
        elif step.fault is not None:
            if step.fault == CRASH:
                self._crashed = True
                await self._stop_all()
            turn.observed_failure = step.error()  # scripted faults count as observed
            raise turn.observed_failure
        else:
            await self.publish_for(turn, self._event_of(step, places))

    def _event_of(self, step: ScriptStep, places: Mapping[str, str]) -> Event:
        if step.think is not None:
            return Reasoning(session="", item=self._item(), text=filled(step.think, places))
        if step.usage is not None:
            return Usage(session="", total=step.usage)
        if step.garbage is not None:
            return Unrecognized(session="", method="script", payload=step.garbage)
        if step.claim is not None:
            return ToolCall(
                session="",
                item=self._item(),
                tool="command",
                command=step.claim.command,
                status="completed" if step.claim.exit_code == 0 else "failed",
                exit_code=step.claim.exit_code,
                output=step.claim.output,
            )
        return Message(session="", item=self._item(), text=filled(step.say, places))

    async def _use(self, turn: Turn, tool: str, args: dict[str, Any]) -> None:
        """Call a tool, and record the call even if the turn is cancelled during it: killing its box ends the call."""
        await checkpoint()
        self._refuse_ending(turn)
        with anyio.CancelScope(shield=True):
            await self._call(turn, tool, args)

    def _refuse_ending(self, turn: Turn) -> None:
        if turn.id in self._endings:
            raise TurnInterrupted("the turn is being ended", op="turn")

    async def _call(self, turn: Turn, tool: str, args: dict[str, Any]) -> None:
        """Call a tool. A refused or failed call does not fail the turn, unless the box is lost."""
        is_command = tool == "run_command"
        call = ToolCall(
            session=self.id,
            thread=turn.thread,
            turn=turn.id,
            item=self._item(),
            tool="command" if is_command else tool,
            command=_command_text(args.get("command", "") if is_command else args),
            status="completed",
            source="observed",
        )
        await self.publish_for(turn, ItemStarted(session="", item=call.item, kind=call.tool, command=call.command))
        began = self._clock.monotonic()

        def took() -> float:
            return round((self._clock.monotonic() - began) * 1000, 3)

        replace = msgspec.structs.replace
        if await self._is_declined(call, subject_of(call.tool, call.command)):
            return await self.publish(replace(call, status="declined", started=False, duration_ms=took()))
        try:
            tools = await self._tools_of(turn.thread)
            self._refuse_ending(turn)  # this box started too late to be killed; it is stopped when the turn has ended
            result = await run_sync(tools.call, tool, args)
        except (WorkspaceError, SandboxError, TurnInterrupted) as error:
            if turn.id in self._endings:
                await self.feed.publish(replace(call, status="abandoned", duration_ms=took()))
                raise
            output = f"{error.code}: {error.message}"
            started = _was_started(error, is_command)
            await self.publish(replace(call, status="failed", started=started, duration_ms=took(), output=output))
            if isinstance(error, SandboxError) and not isinstance(error, AGENT_ERRORS):
                await self._kill(turn)
                raise  # the agent can't continue without its box
            return None
        if isinstance(result, CommandResult):
            call = replace(
                call,
                started=True,
                status="completed" if result.exit_code == 0 else "failed",
                exit_code=result.exit_code,
                duration_ms=result.duration_ms,
                cwd=result.cwd,
                output=result.text(),
            )
        else:
            call = replace(call, started=True, duration_ms=took(), output=result.text())
        return await self.publish(call)

    async def _is_declined(self, call: ToolCall, subject: str) -> bool:
        decided = decide(subject, self.options.approvals)
        if decided is None:
            return False
        answer, rule = decided
        await self.publish(
            ApprovalDecision(
                session=call.session,
                thread=call.thread,
                turn=call.turn,
                item=call.item,
                method=f"tool/{call.tool}",
                subject=preview(subject, SHOWN)[0],
                answer=answer,
                rule=rule,
            )
        )
        return answer != "accept"

    async def _tools_of(self, thread: str) -> Tools:
        if thread not in self._tools:
            with anyio.CancelScope(shield=True):  # a cancelled start would leak the box
                place = self.options.workspace / self.folders.get(thread, "")
                options = msgspec.structs.replace(self.options, workspace=place)
                tools = self._tools[thread] = await run_sync(self._open_tools, options)
            self._box = tools
        return self._tools[thread]

    async def _kill(self, turn: Turn) -> None:
        await self._end_thread(turn.thread)

    async def _end_thread(self, thread: str) -> None:
        tools = self._tools.pop(thread, None)
        if tools is not None:
            await run_sync(tools.stop)

    async def _commands_alive(self) -> int:
        return sum([await run_sync(tools.commands_alive) for tools in self._tools.values()])

    async def _release(self) -> None:
        await self._stop_all()

    async def _stop_all(self) -> None:
        for thread in list(self._tools):
            await run_sync(self._tools.pop(thread).stop)

    def _check_open(self) -> None:
        super()._check_open()
        if self._crashed:
            raise RuntimeCrashed(
                "the agent has crashed", op="session", fix_hints=["start another session and resume the thread"]
            )

    def _keep(self, thread: Thread) -> None:
        self._kept[thread.id] = thread
        self._store.save(thread)

    def _keep_steering(self, thread: str, turn: str, text: str) -> None:
        """Add the text to the thread's history, even if no later step of the turn reads it."""
        kept = self._kept[thread]
        last = kept.turns[-1]
        if last.id == turn:
            self._keep(kept.with_turn(msgspec.structs.replace(last, told=(*last.told, text))))

    def _item(self) -> str:
        self._items += 1
        return f"item-{self._items}"


def _was_started(error: ProofboxError, is_command: bool) -> bool | None:
    """Return whether a call that raised had started. A command that ran returns an exit code and does not raise."""
    if is_command:
        return None if isinstance(error, SandboxLost) else False
    return not isinstance(error, CapabilityDenied | WorkspacePathRefused | ToolPathRefused | PathRefused)


def _command_text(args: Any) -> str:
    """Return a shell command line for a command, or JSON for a tool's arguments."""
    if isinstance(args, str):
        return args
    return shlex.join(map(str, args)) if isinstance(args, list) else msgspec.json.encode(args, enc_hook=str).decode()
