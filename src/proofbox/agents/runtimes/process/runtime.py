"""Any command line as an agent: each turn is one run of it, in the box.

The prompt comes on stdin or as an argument; what the program prints is its answer (`plain`) or one of the JSON dialects
of `dialects.py`. Its exit code decides how the turn ended, unless it says itself that it failed. A program that is run
anew each time keeps no thread, so that there is nothing to resume or fork, and nobody to steer.

With a `base_url` the program reaches its model as Codex does: at a loopback address without a key, through the gateway
outside, which adds the key and records what passes.
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

from proofbox.agents.box_facts import box_facts, variables_of
from proofbox.agents.contract import RuntimeCapabilities, RuntimeProbe, SessionOptions
from proofbox.agents.events import Delta, Event, Integrity, Message, Notice, TokenUsage, Usage
from proofbox.agents.feed import Turn
from proofbox.agents.funnel.server import TURN_VARIABLE, Funnel
from proofbox.agents.hosted_session import HostedSession
from proofbox.agents.jsonrpc.lines import LineSplitter
from proofbox.agents.marked import kill_marked
from proofbox.agents.runtimes.process.dialects import DialectName, dialect_named
from proofbox.agents.settings import read_settings
from proofbox.agents.usage import NOTHING, added
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
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
from proofbox.sandbox.box_handle import PolicyOptions
from proofbox.sandbox.client.async_process import AsyncProcess, open_process
from proofbox.sandbox.client.calls import CollectedOutput
from proofbox.sandbox.contract import ExecResult, Mount

if TYPE_CHECKING:
    from proofbox.agents.runtimes.process.model_route import ModelRoute

PLACE_OF_THE_PROMPT = "{prompt}"
PLACE_OF_THE_MODEL = "{base_url}"
LINE_LIMIT = 4 << 20
ANSWER_LIMIT = 60 << 10
"""Of a plain answer, both ends: what is made of it has room for this much."""


class ProcessSettings(msgspec.Struct, frozen=True):
    command: tuple[str, ...] = ()
    """The program and its arguments, as they are in the box."""
    prompt: Literal["stdin", "argument"] = "stdin"
    """`argument`: in place of an argument that is `{prompt}`, else after the last."""
    output: DialectName = "plain"
    """What its stdout is: the answer as text, events of ours a line, or the JSON of `codex exec` or of Claude Code."""
    mounts: tuple[str, ...] = ()
    """What the program needs besides the box: HOST:GUEST[:ro|rw]."""
    base_url: str | None = None
    """The endpoint of its model. Where the program finds it, in the box, is in OPENAI_BASE_URL, and in its arguments in
    place of `{base_url}`."""
    api_key_env: str | None = None
    """The variable that holds the model's key: in our environment, never in the box."""
    on_host: bool = True
    """The program is one of this machine's, to be found by its PATH. False: the image of the box has it."""
    funnel: bool = True
    """`proofbox run -- COMMAND` in the box has the supervisor run it, and record it. There is none without a box."""


_NO_COMMAND = (
    "set command under [runtimes.process] in config.toml",
    "or for `runtime try` alone: --command 'PROGRAM ARGUMENT…'",
)


class ProcessRuntime:
    id = "process"
    title = "Any command line, run once a turn"
    capabilities = RuntimeCapabilities(
        supports_interrupt=True, supports_event_stream=True, supports_parallel_sessions=True
    )
    settings: type[msgspec.Struct] = ProcessSettings

    async def probe(self, settings: Mapping[str, Any]) -> RuntimeProbe:
        said = read_settings(ProcessSettings, settings, self.id)
        if not said.command:
            return RuntimeProbe(
                strategy=self.id,
                available=False,
                code=StrategyUnavailable.code,
                reason="no command is set for process",
                fix_hints=_NO_COMMAND,
            )
        found = shutil.which(said.command[0])
        if found is None and said.on_host:
            return RuntimeProbe(
                strategy=self.id,
                available=False,
                code=StrategyUnavailable.code,
                reason=f"{said.command[0]} is not on this machine",
                fix_hints=("install it", "or set on_host = false, if the image of the box has it"),
            )
        if said.base_url is not None and said.api_key_env and not os.environ.get(said.api_key_env):
            return RuntimeProbe(
                strategy=self.id,
                available=False,
                code=StrategyUnavailable.code,
                reason=f"the variable {said.api_key_env} holds no key",
                fix_hints=(f"export {said.api_key_env}=…",),
            )
        return RuntimeProbe(strategy=self.id, available=True, details={"program": found or said.command[0]})

    async def start_session(
        self, options: SessionOptions, *, clock: Clock | None = None, ids: IdSource | None = None
    ) -> ProcessSession:
        said = read_settings(ProcessSettings, options.settings, self.id)
        if not said.command:
            raise StrategyUnavailable("no command is set for process", op="session", fix_hints=_NO_COMMAND)
        session = ProcessSession(self, options, said, clock=clock, ids=ids)
        await session.open()
        return session


class ProcessSession(HostedSession):
    def __init__(
        self,
        runtime: ProcessRuntime,
        options: SessionOptions,
        said: ProcessSettings,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        super().__init__(runtime, options, clock=clock, ids=ids)
        self._said = said
        self._boxes = AsyncSandboxes(options.workspace, settings=options.box_settings, clock=self._clock, ids=self._ids)
        self._box: AsyncSession | None = None
        self._running: dict[str, AsyncProcess] = {}
        self._given: Collection[str] = options.env
        """Names of the variables that its program was started with, besides the box's."""
        self._reported: dict[str, TokenUsage] = {}
        """By thread, the usage that its earlier turns have reported."""
        self._funnel: Funnel | None = None
        self._way: ModelRoute | None = None
        if said.base_url is not None:
            from proofbox.agents.runtimes.process.model_route import (
                ModelRoute,  # costs an HTTP client, for who has a model
            )

            self._way = ModelRoute(said.base_url, said.api_key_env, self)

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
        if self._way is not None:
            self._background.spawn(self._way.keep_open)
            policy["doors"] = [*(options.policy.get("doors") or ()), *await self._way.doors()]
            if options.sandboxed and policy.get("network") is None:
                policy["network"] = "none"
        mounts: list[str | Mount] = [*(options.policy.get("mounts") or ()), *self._said.mounts]
        provider = options.provider if options.sandboxed else "off"
        if self._said.funnel and provider != "off":
            self._funnel = Funnel(
                options.scratch / self.id, self.tell_of, options.approvals, ids=self._ids, clock=self._clock
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
            "transport": "one process a turn",
            **box_facts(info),
            "variables": variables_of(self._box.inside, self._given),
            "command": list(self._said.command),
            "output": self._said.output,
            # A runtime of the engine's other than its own (gVisor) passes no sockets on.
            "funnel": self._funnel is not None and info.policy.runtime is None,
            **(self._way.facts() if self._way is not None else {}),
        }

    async def _play(self, turn: Turn, prompt: str) -> None:
        speech = _Speech(self._said.output)
        result: ExecResult | None = None
        try:
            result = await self._run_program(turn, prompt, speech)
        finally:
            with anyio.CancelScope(shield=True):  # what it had said when it was stopped is no less said
                for event in speech.end(stopped=result is None or turn.id in self._endings):
                    await self._tell_said(turn, event)
                self._reported[turn.thread] = added(self._reported.get(turn.thread, NOTHING), speech.usage)
        failure = speech.failure or _failure_of(result)
        if self._way is not None:
            await self._way.settle(turn, complete=failure is None)
        if failure is not None:
            raise failure

    async def _tell_said(self, turn: Turn, event: Event) -> None:
        """A program states what it has used in this run of it; the event is of the whole thread."""
        if isinstance(event, Usage):
            last = event.total
            event = msgspec.structs.replace(event, total=added(self._reported.get(turn.thread, NOTHING), last))
            if self._way is not None:
                self._way.reported(turn, event.total, last)
        await self.tell_of(turn, event)

    async def _run_program(self, turn: Turn, prompt: str, speech: _Speech) -> ExecResult:
        assert self._box is not None  # noqa: S101 (opened before anyone has it)
        address = self._way.base_url if self._way is not None else ""
        argv = _argv(self._said, prompt, address)
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
                    return await self._converse(turn, process, prompt, speech)
                finally:
                    self._running.pop(turn.id, None)
        except (CommandNotFound, CommandNotExecutable) as error:
            raise RuntimeStartFailed(error.message, op="turn", fix_hints=error.fix_hints) from error
        finally:
            if self._funnel is not None:
                await self._funnel.end_turn(turn)

    async def _converse(self, turn: Turn, process: AsyncProcess, prompt: str, speech: _Speech) -> ExecResult:
        async def pour() -> None:
            try:
                if self._said.prompt == "stdin":
                    await process.send(prompt.encode())
                await process.close_stdin()
            except anyio.BrokenResourceError:
                pass  # it ended without reading all of it, which is its own business

        self._background.spawn(_quietly, pour)
        while (piece := await process.receive()) is not None:
            for event in speech.hear(piece.stream, piece.data):
                await self._tell_said(turn, event)
        return await process.wait()

    async def _kill(self, turn: Turn) -> None:
        # The program dies before its calls are waited for: some of them may wait for it.
        if self._funnel is not None:
            self._funnel.stop_turn(turn)
        process = self._running.get(turn.id)
        if process is not None:
            with contextlib.suppress(SandboxError):  # its box is gone, as whoever receives from it hears
                await process.kill()
        if self._funnel is not None:
            await self._funnel.end_turn(turn)

    async def _end_thread(self, thread: str) -> None:
        assert self._box is not None  # noqa: S101 (opened before anyone has it)
        killed = [await kill_marked(self._box, [f"{TURN_VARIABLE}={turn.id}"]) for turn in self.feed.turns_of(thread)]
        if not all(killed) and self.broken is None:
            message = "processes that the agent has started may run on until the session ends"
            await self.feed.tell(Integrity(session="", thread=thread, code="COMMAND_NOT_ENDED", message=message))

    def _check_open(self) -> None:
        super()._check_open()
        if self._box is not None and self._box.info.state != "running":
            raise RuntimeCrashed("the session's box is gone", op="session", fix_hints=["start another session"])

    async def _release(self) -> None:
        await self._boxes.close()
        if self._way is not None:
            self._way.close()

    async def close(self) -> None:
        await super().close()
        if self._funnel is not None:
            self._funnel.close()


class _Speech:
    """What a program prints, as events."""

    def __init__(self, output: DialectName) -> None:
        self._dialect = dialect_named(output)
        self._lines = LineSplitter(LINE_LIMIT)
        self._answer = CollectedOutput(ANSWER_LIMIT)
        self._heard = 0
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {stream: decoder("replace") for stream in ("stdout", "stderr")}

    @property
    def failure(self) -> AgentError | None:
        return self._dialect.failure if self._dialect is not None else None

    @property
    def usage(self) -> TokenUsage:
        return self._dialect.usage if self._dialect is not None else NOTHING

    def hear(self, stream: str, data: bytes) -> Iterator[Event]:
        if stream == "stderr" or self._dialect is None:
            if stream == "stdout":
                self._answer.add(self._heard, data)
                self._heard += len(data)
            kind: Literal["message", "output"] = "output" if stream == "stderr" else "message"
            text = self._decoders[stream].decode(data)
            if text:
                yield Delta(session="", item=stream, kind=kind, text=text)
            return
        for line, cut in self._lines.feed(data):
            yield from self._line(line, cut)

    def end(self, *, stopped: bool) -> Iterator[Event]:
        """The rest of it. One that was `stopped` had no time to end what it was saying: that is no finding."""
        if self._dialect is None:
            if text := self._answer.close(self._heard).decode("utf-8", "replace"):
                yield Message(session="", item="stdout", text=text)
            if self._answer.omitted:
                yield Notice(session="", kind="truncated", message="the answer is longer than what is kept of it")
            return
        for line, cut in self._lines.end():
            yield from self._line(line, cut)
            if line.strip() and _torn(line) and not (stopped or cut):
                yield Integrity(session="", code="LINE_TORN", message="the last line breaks off")
        yield from self._dialect.end(stopped=stopped)

    def _line(self, line: bytes, cut: bool) -> Iterator[Event]:
        assert self._dialect is not None  # noqa: S101 (plain text has no lines)
        if cut:
            message = f"a line is longer than {LINE_LIMIT} bytes: the rest of it was dropped"
            yield Integrity(session="", code="line_too_long", message=message)
        if line.strip():
            yield from self._dialect.translate(line)


def _torn(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    return False


async def _quietly(work: Any) -> None:
    """The end of the box is told by whoever receives from it."""
    try:
        await work()
    except Exception:
        return


def _argv(said: ProcessSettings, prompt: str, address: str) -> list[str]:
    command = [word.replace(PLACE_OF_THE_MODEL, address) if address else word for word in said.command]
    if said.prompt == "stdin":
        return command
    if PLACE_OF_THE_PROMPT in command:
        return [prompt if word == PLACE_OF_THE_PROMPT else word for word in command]
    return [*command, prompt]


def _failure_of(result: ExecResult) -> AgentError | None:
    if result.exit_code == 0 and result.signal is None:
        return None
    details = {"exit_code": result.exit_code, "signal": result.signal, "oom_killed": result.usage.oom_killed}
    words = result.stderr.strip().splitlines()[-1:]
    tail = f": {words[0][:400]}" if words else ""
    if result.signal is not None:
        return RuntimeCrashed(f"signal {result.signal} ended the program{tail}", op="turn", details=details)
    return AgentError(f"the program ended with exit code {result.exit_code}{tail}", op="turn", details=details)
