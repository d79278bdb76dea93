"""The `process` runtime: any command line as an agent, run once per turn in the box.

The program gets the prompt on stdin or as an argument. Its output is the answer as text (`plain`), or one of the JSON
dialects of `dialects.py`. Its exit code decides how the turn ended, unless its output reports a failure. Because each
turn runs a new process, threads can't be resumed or forked, and turns can't be steered.

With a `base_url`, the program reaches its model as Codex does: it calls a loopback address without a key, and the
gateway outside the box adds the key and records the traffic.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import anyio
import msgspec

from proofbox.agents.agent_box import box_ended, box_facts, kill_marked, variables_of
from proofbox.agents.contract import RuntimeCapabilities, RuntimeProbe, SessionOptions
from proofbox.agents.events import Delta, Event, Integrity, Message, Notice, TokenUsage, Usage
from proofbox.agents.feed import Turn
from proofbox.agents.funnel.server import TURN_VARIABLE, Funnel
from proofbox.agents.gateway.endpoint import ModelAccess, ModelEndpoint, Recorded
from proofbox.agents.hosted_session import HostedSession
from proofbox.agents.lines import LineSplitter
from proofbox.agents.runtimes.process.dialects import DialectName, dialect_named
from proofbox.agents.settings import read_settings
from proofbox.agents.usage import NOTHING, added
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.core.redaction.key_files import with_key_files
from proofbox.errors import (
    AgentError,
    CommandNotExecutable,
    CommandNotFound,
    RuntimeCrashed,
    RuntimeStartFailed,
    SandboxError,
    StrategyUnavailable,
)
from proofbox.sandbox.async_service import AsyncSandboxes, AsyncSession
from proofbox.sandbox.client.async_process import AsyncProcess, open_process
from proofbox.sandbox.client.calls import CollectedOutput
from proofbox.sandbox.contract import ExecResult, Mount
from proofbox.sandbox.options import PolicyOptions

if TYPE_CHECKING:
    from proofbox.agents.gateway.session_route import ModelRoute

PROMPT_PLACEHOLDER = "{prompt}"
BASE_URL_PLACEHOLDER = "{base_url}"
LINE_LIMIT = 4 << 20
ANSWER_LIMIT = 60 << 10
"""The maximum number of bytes kept of a plain answer: its beginning and its end."""


class ProcessSettings(msgspec.Struct, frozen=True):
    command: tuple[str, ...] = ()
    """The program and its arguments, as seen in the box."""
    prompt: Literal["stdin", "argument"] = "stdin"
    """`argument`: replace the argument `{prompt}`, or append the prompt if there is no such argument."""
    output: DialectName = "plain"
    """The format of stdout: plain text, proofbox's JSON lines, or the JSON of `codex exec` or Claude Code."""
    mounts: tuple[str, ...] = ()
    """Additional mounts that the program needs: HOST:GUEST[:ro|rw]."""
    base_url: str | None = None
    """The endpoint of the model. In the box, the program finds the gateway's address in OPENAI_BASE_URL and in place of
    `{base_url}` in its arguments."""
    api_key_env: str | None = None
    """The variable that holds the model's key. It is read outside the box and never passed in."""
    record: Recorded = "usage"
    """`bodies`: also keep the bodies of all requests to the model and of its responses as evidence, redacted."""
    on_host: bool = True
    """The program is installed on this machine and found on the PATH. False: it is part of the box's image."""
    funnel: bool = True
    """`proofbox run -- COMMAND` in the box asks the supervisor to run and record the command. Needs a box."""

    def __post_init__(self) -> None:
        if self.record == "bodies" and self.base_url is None:
            raise ValueError('record = "bodies" needs base_url, because only the gateway sees the bodies')


_NO_COMMAND = (
    "set command under [runtimes.process] in config.toml",
    "or: proofbox runtime try --command 'PROGRAM ARGUMENT…', proofbox suite run --command NAME='PROGRAM ARGUMENT…'",
)


class ProcessRuntime:
    id = "process"
    title = "Any command line, run once per turn"
    capabilities = RuntimeCapabilities(
        supports_interrupt=True, supports_event_stream=True, supports_parallel_sessions=True
    )
    settings: type[msgspec.Struct] = ProcessSettings

    async def probe(self, settings: Mapping[str, Any]) -> RuntimeProbe:
        parsed = read_settings(ProcessSettings, settings, self.id)
        if not parsed.command:
            return RuntimeProbe(
                strategy=self.id,
                available=False,
                code=StrategyUnavailable.code,
                reason=f"no command is set for {self.id}",
                fix_hints=_NO_COMMAND,
            )
        found = shutil.which(parsed.command[0])
        if found is None and parsed.on_host:
            return RuntimeProbe(
                strategy=self.id,
                available=False,
                code=StrategyUnavailable.code,
                reason=f"{parsed.command[0]} is not installed on this machine",
                fix_hints=("install it", "or set on_host = false if the box's image contains it"),
            )
        key = parsed.api_key_env if parsed.base_url is not None else None
        if key and not with_key_files(os.environ, [key]).get(key):
            return RuntimeProbe(
                strategy=self.id,
                available=False,
                code=StrategyUnavailable.code,
                reason=f"the variable {key} is not set, so there is no key for the model",
                fix_hints=(f"export {key}=…, or {key}_FILE=PATH",),
            )
        return RuntimeProbe(strategy=self.id, available=True, details={"program": found or parsed.command[0]})

    async def start_session(
        self, options: SessionOptions, *, clock: Clock | None = None, ids: IdSource | None = None
    ) -> ProcessSession:
        settings = read_settings(ProcessSettings, options.settings, self.id)
        if not settings.command:
            raise StrategyUnavailable(f"no command is set for {self.id}", op="session", fix_hints=_NO_COMMAND)
        session = ProcessSession(self, options, settings, clock=clock, ids=ids)
        await session.open()
        return session


class ProcessSession(HostedSession):
    def __init__(
        self,
        runtime: ProcessRuntime,
        options: SessionOptions,
        settings: ProcessSettings,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        super().__init__(runtime, options, clock=clock, ids=ids)
        self._settings = settings
        self._boxes = AsyncSandboxes(options.workspace, settings=options.box_settings, clock=self._clock, ids=self._ids)
        self._box: AsyncSession | None = None
        self._running: dict[str, AsyncProcess] = {}
        self._given: Collection[str] = options.env
        """Names of the variables that the program was started with, in addition to the box's."""
        self._reported: dict[str, TokenUsage] = {}
        """The usage that earlier turns reported, by thread."""
        self._funnel: Funnel | None = None
        self._route: ModelRoute | None = None
        if settings.base_url is not None:
            from proofbox.agents.gateway.session_route import (
                ModelRoute,  # imports an HTTP client, which is needed only with a model
            )

            endpoint = ModelEndpoint.of(ModelAccess(settings.base_url, settings.api_key_env), record=settings.record)
            self._route = ModelRoute(endpoint, self)

    async def open(self) -> None:
        options = self.options
        await super().open()
        try:
            await self._open_box(options)
        except BaseException:
            await self.close()
            raise

    async def _open_box(self, options: SessionOptions) -> None:
        policy: PolicyOptions = {**options.policy}
        if self._route is not None:
            self._background.spawn(self._route.keep_open)
            policy["doors"] = [*(options.policy.get("doors") or ()), *await self._route.doors()]
            if options.sandboxed and policy.get("network") is None:
                policy["network"] = "none"
        mounts: list[str | Mount] = [*(options.policy.get("mounts") or ()), *self._settings.mounts]
        provider = options.provider if options.sandboxed else "off"
        if self._settings.funnel and provider != "off":
            self._funnel = Funnel(
                options.scratch / self.id, self.publish_for, options.approvals, ids=self._ids, clock=self._clock
            )
            mounts += self._funnel.mounts()
        policy["mounts"] = mounts
        self._box = await self._boxes.start_session(provider=provider, **policy)
        if self._funnel is not None:
            self._background.spawn(self._funnel.serve, self._box)

    def facts(self) -> Mapping[str, Any]:
        assert self._box is not None  # noqa: S101 (opened before anyone has it)
        info = self._box.info
        return {
            "transport": "one process per turn",
            **box_facts(info),
            "variables": variables_of(self._box.inside, self._given),
            "command": list(self._settings.command),
            "output": self._settings.output,
            # Container runtimes other than the engine's default (gVisor) do not pass Unix sockets into the box.
            "funnel": self._funnel is not None and info.policy.runtime is None,
            **(self._route.facts() if self._route is not None else {}),
        }

    async def _run_turn(self, turn: Turn, prompt: str) -> None:
        reader = _OutputReader(self._settings.output)
        result: ExecResult | None = None
        try:
            result = await self._run_program(turn, prompt, reader)
        finally:
            with anyio.CancelScope(shield=True):  # report its output even if the turn was stopped
                for event in reader.end(stopped=result is None or turn.id in self._endings):
                    await self._publish_output(turn, event)
                self._reported[turn.thread] = added(self._reported.get(turn.thread, NOTHING), reader.usage)
        failure = reader.failure or _failure_of(result)
        if self._route is not None:
            await self._route.settle(turn, complete=failure is None)
        if failure is not None:
            raise failure

    async def _publish_output(self, turn: Turn, event: Event) -> None:
        """Report an event. A program reports the usage of one run; the event contains the thread's total."""
        if isinstance(event, Usage):
            last = event.total
            event = msgspec.structs.replace(event, total=added(self._reported.get(turn.thread, NOTHING), last))
            if self._route is not None:
                self._route.reported(turn.thread, event.total, last)
        await self.publish_for(turn, event)

    async def _run_program(self, turn: Turn, prompt: str, reader: _OutputReader) -> ExecResult:
        assert self._box is not None  # noqa: S101 (opened before anyone has it)
        address = self._route.base_url if self._route is not None else ""
        argv = _argv(self._settings, prompt, address)
        env = {**self.options.env, **({"OPENAI_BASE_URL": address} if address else {})}
        env[TURN_VARIABLE] = turn.id
        if self._funnel is not None:
            self._funnel.begin_turn(turn)
            env = self._funnel.environment(turn, self._box, env)
        self._given = env.keys()
        try:
            async with open_process(self._box, argv, env=env, cwd=self.folders.get(turn.thread) or None) as process:
                self._running[turn.id] = process
                try:
                    return await self._communicate(turn, process, prompt, reader)
                finally:
                    self._running.pop(turn.id, None)
        except (CommandNotFound, CommandNotExecutable) as error:
            raise RuntimeStartFailed(error.message, op="turn", fix_hints=error.fix_hints) from error
        finally:
            if self._funnel is not None:
                await self._funnel.end_turn(turn)

    async def _communicate(self, turn: Turn, process: AsyncProcess, prompt: str, reader: _OutputReader) -> ExecResult:
        async def write_prompt() -> None:
            try:
                if self._settings.prompt == "stdin":
                    await process.send(prompt.encode())
                await process.close_stdin()
            except anyio.BrokenResourceError:
                pass  # the program exited without reading the whole prompt

        self._background.spawn(_ignoring_errors, write_prompt)
        while (piece := await process.receive()) is not None:
            for event in reader.feed(piece.stream, piece.data):
                await self._publish_output(turn, event)
        return await process.wait()

    async def _kill(self, turn: Turn) -> None:
        # Kill the program before waiting for its calls, because a call may be waiting for the program.
        if self._funnel is not None:
            self._funnel.stop_turn(turn)
        process = self._running.get(turn.id)
        if process is not None:
            with contextlib.suppress(SandboxError):  # the box is lost; `receive` reports it
                await process.kill()
        if self._funnel is not None:
            await self._funnel.end_turn(turn)

    async def _end_thread(self, thread: str) -> None:
        assert self._box is not None  # noqa: S101 (opened before anyone has it)
        killed = [await kill_marked(self._box, [f"{TURN_VARIABLE}={turn.id}"]) for turn in self.feed.turns_of(thread)]
        if not all(killed) and self.broken is None:
            message = "processes that the agent started may keep running until the session ends"
            await self.feed.publish(Integrity(session="", thread=thread, code="COMMAND_NOT_ENDED", message=message))

    def _check_open(self) -> None:
        super()._check_open()
        if self._box is not None and self._box.info.state != "running":
            raise box_ended()

    async def _commands_alive(self) -> int:
        return 0 if self._box is None else await self._box.commands_alive()

    async def _release(self) -> None:
        await self._boxes.close()
        if self._route is not None:
            self._route.close()

    async def close(self) -> None:
        await super().close()
        if self._funnel is not None:
            self._funnel.close()


class _OutputReader:
    """Translates the output of one run of the program into events."""

    def __init__(self, output: DialectName) -> None:
        self._dialect = dialect_named(output)
        self._lines = LineSplitter(LINE_LIMIT)
        self._answer = CollectedOutput(ANSWER_LIMIT)
        self._size = 0
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {stream: decoder("replace") for stream in ("stdout", "stderr")}

    @property
    def failure(self) -> AgentError | None:
        return self._dialect.failure if self._dialect is not None else None

    @property
    def usage(self) -> TokenUsage:
        return self._dialect.usage if self._dialect is not None else NOTHING

    def feed(self, stream: str, data: bytes) -> Iterator[Event]:
        if stream == "stderr" or self._dialect is None:
            if stream == "stdout":
                self._answer.add(self._size, data)
                self._size += len(data)
            kind: Literal["message", "output"] = "output" if stream == "stderr" else "message"
            text = self._decoders[stream].decode(data)
            if text:
                yield Delta(session="", item=stream, kind=kind, text=text)
            return
        for line, cut in self._lines.feed(data):
            yield from self._line(line, cut)

    def end(self, *, stopped: bool) -> Iterator[Event]:
        """Return the remaining events. Incomplete output is an integrity error unless the program was `stopped`."""
        if self._dialect is None:
            if text := self._answer.close(self._size).decode("utf-8", "replace"):
                yield Message(session="", item="stdout", text=text)
            if self._answer.omitted:
                yield Notice(session="", kind="truncated", message="the answer was truncated: its middle is not kept")
            return
        for line, cut in self._lines.end():
            yield from self._line(line, cut)
            if line.strip() and _is_incomplete(line) and not (stopped or cut):
                yield Integrity(session="", code="LINE_TORN", message="the last line is incomplete")
        yield from self._dialect.end(stopped=stopped)

    def _line(self, line: bytes, cut: bool) -> Iterator[Event]:
        assert self._dialect is not None  # noqa: S101 (plain text has no lines)
        if cut:
            message = f"a line is longer than {LINE_LIMIT} bytes; the rest was dropped"
            yield Integrity(session="", code="line_too_long", message=message)
        if line.strip():
            yield from self._dialect.translate(line)


def _is_incomplete(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    return False


async def _ignoring_errors(work: Any) -> None:
    """Run and ignore errors: the loop that receives the output reports a lost box."""
    try:
        await work()
    except Exception:
        return


def _argv(settings: ProcessSettings, prompt: str, address: str) -> list[str]:
    command = [word.replace(BASE_URL_PLACEHOLDER, address) if address else word for word in settings.command]
    if settings.prompt == "stdin":
        return command
    if PROMPT_PLACEHOLDER in command:
        return [prompt if word == PROMPT_PLACEHOLDER else word for word in command]
    return [*command, prompt]


def _failure_of(result: ExecResult) -> AgentError | None:
    if result.exit_code == 0 and result.signal is None:
        return None
    details = {"exit_code": result.exit_code, "signal": result.signal, "oom_killed": result.usage.oom_killed}
    last_line = result.stderr.strip().splitlines()[-1:]
    tail = f": {last_line[0][:400]}" if last_line else ""
    if result.signal is not None:
        return RuntimeCrashed(f"the program was killed by signal {result.signal}{tail}", op="turn", details=details)
    return AgentError(f"the program exited with code {result.exit_code}{tail}", op="turn", details=details)
