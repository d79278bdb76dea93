"""Run a trial: one prompt to one agent on one workspace, with a record of every step.

    trial = await run_trial(TrialRequest(prompt="fix the test", workspace=Path("project"), out=Path("t1")))
    trial.status, trial.final_message, [step.snapshot_after for step in trial.steps]

The trial resolves the chain of strategies, starts the agent in a box on the workspace, and sends it one prompt. In
every case, the agent's process tree is dead before the final, sealed snapshot is taken, and the record is completed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.to_thread import run_sync

from proofbox.agents.contract import AgentRuntime, AgentSession, SessionOptions
from proofbox.agents.environment import AgentEnvironment, decide_environment
from proofbox.agents.events import Event, Integrity, Listener, RateWindows, ToolCall, Usage
from proofbox.agents.recording import Recording
from proofbox.agents.registry import Registry, installed
from proofbox.agents.settings import RuntimeSettings
from proofbox.agents.steps import StepRecorder, reach_of
from proofbox.agents.strategies import CandidateResult, Chain, decide_chain, first_usable
from proofbox.agents.trials.record import TrialRecord, bounded, copy_home, load_document
from proofbox.agents.trials.result import (
    RUNTIME_REPORTED,
    SCHEMA,
    CallMade,
    ForkedFrom,
    Status,
    Trial,
    TrialFailure,
    TrialRequest,
)
from proofbox.agents.usage import TokenCount
from proofbox.config import consent, settings
from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.files.removal import remove_tree
from proofbox.core.ids import IdSource
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import (
    AgentError,
    CapabilityUnsupported,
    ListenerFailed,
    ProofboxError,
    RuntimeTimedOut,
    TurnInterrupted,
    UsageError,
    WorkspaceUnknown,
)
from proofbox.workspace.workspace import Workspace

INTERRUPT_PATIENCE = 10.0
LARGEST_PROMPT = 1 << 20


class _EventSummary:
    """Collects from the events what the result needs, in addition to the steps."""

    def __init__(self, record: TrialRecord | None, redactor: Redactor) -> None:
        self._record = record
        self._redactor = redactor
        self.calls: list[CallMade] = []
        self.tokens = TokenCount()
        self.integrity: list[dict[str, Any]] = []
        self.windows: tuple[dict[str, Any], ...] = ()

    async def __call__(self, event: Event) -> None:
        if self._record is not None:
            self._record.append("events", {"event": msgspec.to_builtins(event)})
        match event:
            case ToolCall():
                command, _ = self._redactor.preview(event.command, 4096)
                tool, _ = self._redactor.preview(event.tool, 200)
                call = CallMade(
                    command, event.exit_code, event.duration_ms, tool, event.status, event.source, event.started
                )
                self.calls.append(call)
            case Usage():
                self.tokens.add(event)
            case Integrity():
                found = {"code": event.code, "message": event.message, "details": dict(event.details)}
                self.integrity.append(bounded(found, self._redactor))
            case RateWindows():
                self.windows = tuple(bounded(msgspec.to_builtins(window), self._redactor) for window in event.windows)


OpenThread = Callable[[AgentSession], Awaitable[str]]


async def run_trial(
    request: TrialRequest,
    *,
    registry: Registry | None = None,
    on_event: Listener | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> Trial:
    """Run a trial. A failed turn is returned as a `Trial`; an error is raised only if the trial could not start.

    If cancelled, it ends the agent, writes the record as interrupted, and propagates the cancellation.
    """
    return await RunningTrial(request, registry, on_event, clock, ids).run(_new_thread)


class RunningTrial:
    """A trial in progress."""

    def __init__(
        self,
        request: TrialRequest,
        registry: Registry | None,
        on_event: Listener | None,
        clock: Clock | None,
        ids: IdSource | None,
        fork: ForkedFrom | None = None,
    ) -> None:
        try:
            size = len(request.prompt.encode())
        except UnicodeEncodeError:
            raise UsageError("the prompt is not valid UTF-8", op="trial") from None
        if not 0 < size <= LARGEST_PROMPT:
            raise UsageError(
                f"a prompt must have between 1 and {LARGEST_PROMPT} bytes", op="trial", fix_hints=["--prompt TEXT"]
            )
        self.request = request
        self.registry = registry or installed()
        self.clock: Clock = clock or SystemClock()
        self.ids = ids or IdSource(self.clock)
        self.on_event = on_event
        self.fork = fork
        self.id = self.ids.new_id("trial")
        self.root = request.workspace.resolve()
        configured = settings.load(self.root)
        self.chain: Chain = decide_chain(flag=request.strategies, config=configured.strategies)
        self.settings = RuntimeSettings(configured.runtimes, request.flags)
        self.settings.check(self.chain, self.registry)
        self.environment = self._environment(configured.env)
        self.redactor = Redactor.from_environment(os.environ, self._model_keys())
        self.mounts = (*configured.mounts, *(request.policy.get("mounts") or ()))
        self.began = 0.0
        self.started_at = ""

    async def run(self, open_thread: OpenThread) -> Trial:
        self.began, self.started_at = self.clock.monotonic(), isoformat(self.clock.now())
        async with contextlib.AsyncExitStack() as stack:
            scratch = Path(tempfile.mkdtemp(prefix="proofbox-trial-"))
            stack.callback(remove_tree, scratch)
            workspace = await run_sync(open_workspace, self.root)
            stack.push_async_callback(_whatever_happens, workspace.close)
            record: TrialRecord | None = None
            home = scratch / "home"
            if self.request.out is not None:
                record = TrialRecord(self.request.out, self.id, self.root, self.redactor)
                stack.callback(record.close)
                home = record.home
            try:
                if self.fork is not None:
                    await run_sync(copy_home, Path(self.fork.record) / "home", home)
                home.mkdir(mode=0o700, exist_ok=True)
                first = (await run_sync(workspace.snapshot, f"before {self.id}")).id
                session, considered = await first_usable(
                    self.chain,
                    self.registry,
                    lambda runtime: self._start(runtime, scratch, home),
                    settings=self.settings,
                    required=self.request.required,
                )
            except BaseException:
                if record is not None:
                    record.discard()
                raise
            summary = _EventSummary(record, self.redactor)
            steps = StepRecorder(
                workspace,
                first,
                lambda entry: record.append("steps", entry) if record else None,
                lambda: reach_of(session.facts(), self.mounts),
            )
            listeners: list[Listener] = [summary, steps, *([self.on_event] if self.on_event is not None else [])]
            recording = Recording(session, *listeners)
            recording.start()
            outcome = _Outcome()
            try:
                await self._converse(session, open_thread, outcome)
            except Exception as error:
                outcome.fail(error)
                raise
            except BaseException:
                outcome.status, outcome.error = "interrupted", TurnInterrupted("the trial was cancelled", op="trial")
                raise
            finally:
                with anyio.CancelScope(shield=True):
                    last = await self._seal(recording, workspace, outcome)
                    outcome.doubt = recording.doubt
                    trial = self._trial(session, considered, summary, steps, outcome, first, last, workspace.id, record)
                    if record is not None:
                        record.finish(trial)
                        _consent_to_forks(record.directory)
        return msgspec.convert(self.redactor.redact_json(msgspec.to_builtins(trial, enc_hook=str)), Trial)

    async def _seal(self, recording: Recording, workspace: Workspace, outcome: _Outcome) -> str:
        """End the agent and seal the workspace. A trial without a sealed snapshot is not completed."""
        try:
            await recording.finish(outcome.thread, close=True)
            if recording.failure is not None and outcome.error is None:
                outcome.fail(ListenerFailed("a listener failed after the turn: the record is incomplete", op="listen"))
            return (await run_sync(lambda: workspace.snapshot(f"after {self.id}", sealed=True))).id
        except (ProofboxError, OSError) as error:
            outcome.fail(error)
            return ""

    async def _start(self, runtime: AgentRuntime, scratch: Path, home: Path) -> AgentSession:
        request = self.request
        options = SessionOptions(
            workspace=self.root,
            scratch=scratch,
            home=home,
            provider=request.provider,
            policy=request.policy,
            settings=self.settings(runtime),
            env=self.environment.values,
            approvals=request.approvals,
            sandboxed=request.sandboxed and request.provider != "off",
            stall_timeout=request.stall_timeout,
        )
        return await runtime.start_session(options, clock=self.clock, ids=self.ids)

    async def _converse(self, session: AgentSession, open_thread: OpenThread, outcome: _Outcome) -> None:
        """Send the prompt and wait until the turn ends or times out."""
        try:
            outcome.thread = await open_thread(session)
            outcome.turn = await session.start_turn(outcome.thread, self.request.prompt)
            with anyio.move_on_after(self.request.timeout) as scope:
                ended = await session.wait_turn(outcome.turn)
            if scope.cancelled_caught:
                outcome.status = "failed"
                outcome.error = RuntimeTimedOut(f"the turn timed out after {self.request.timeout:g} s", op="trial")
                with contextlib.suppress(CapabilityUnsupported), anyio.move_on_after(INTERRUPT_PATIENCE):
                    await session.interrupt_turn(outcome.thread, outcome.turn)
                    ended = await session.wait_turn(outcome.turn)
                    outcome.final_message = ended.final_message
                return
        except AgentError as error:
            outcome.status, outcome.error = "failed", error
            return
        outcome.status, outcome.error = ended.status, ended.error
        outcome.final_message = ended.final_message

    def _trial(
        self,
        session: AgentSession,
        considered: Sequence[CandidateResult],
        summary: _EventSummary,
        steps: StepRecorder,
        outcome: _Outcome,
        first: str,
        last: str,
        workspace_id: str,
        record: TrialRecord | None,
    ) -> Trial:
        runtime = self.registry.runtime(session.runtime)
        return Trial(
            trial=self.id,
            strategy=session.runtime,
            version=session.version,
            chain=tuple(considered),
            chain_origin=self.chain.origin,
            status=outcome.status,
            error=TrialFailure.of(outcome.error, self.redactor) if outcome.error is not None else None,
            final_message=self.redactor.preview(outcome.final_message, 64 << 10)[0],
            tool_calls=tuple(summary.calls),
            steps=tuple(steps.steps),
            usage=summary.tokens.total(),
            responses_without_usage=summary.tokens.without_usage,
            responses_broken_off=summary.tokens.broken_off,
            runtime_reported=tuple(
                name for name in RUNTIME_REPORTED if name != "usage" or summary.tokens.source != "gateway"
            ),
            thread_id=outcome.thread,
            turn_id=outcome.turn,
            prompt=self.request.prompt,
            workspace=str(self.root),
            workspace_id=workspace_id,
            snapshot_before=first,
            snapshot_after=last,
            session={"id": session.id, **bounded(dict(session.facts()), self.redactor)},
            environment=self.environment.record,
            settings=bounded(self.settings(runtime), self.redactor),
            provider=self.request.provider,
            policy=bounded({name: value for name, value in self.request.policy.items() if value}, self.redactor),
            integrity=tuple(summary.integrity),
            calls_complete=not outcome.doubt,
            rate_windows=summary.windows,
            started_at=self.started_at,
            ended_at=isoformat(self.clock.now()),
            duration_ms=round((self.clock.monotonic() - self.began) * 1000, 3),
            record=str(record.directory) if record else None,
            anchors=record.ends() if record else {},
            fork=self.fork,
        )

    def _environment(self, configured: Sequence[str]) -> AgentEnvironment:
        asked = [*configured, *self.request.env]
        return decide_environment(asked, grants=self.request.grants, model_keys=self._model_keys())

    def _model_keys(self) -> list[str]:
        """Return the variables that hold model keys, from the settings of every candidate."""
        found = []
        for candidate in self.chain.candidates:
            with contextlib.suppress(AgentError):
                found.append(self.settings(self.registry.runtime(candidate.strategy)).get("api_key_env"))
        return [name for name in found if isinstance(name, str) and name]


class _Outcome:
    def __init__(self) -> None:
        self.status: Status = "failed"
        self.error: AgentError | None = None
        self.final_message = ""
        self.thread = ""
        self.turn = ""
        self.doubt = ""

    def fail(self, error: Exception) -> None:
        self.status = "failed"
        if isinstance(error, AgentError):
            self.error = error
        else:
            code = error.code if isinstance(error, ProofboxError) else type(error).__name__
            self.error = AgentError(str(error), op="trial", details={"cause": code})


def _consent_to_forks(record: Path) -> None:
    """Record that the user has chosen the options of this trial, so that its forks need no further consent."""
    made = load_document(record, Trial, SCHEMA)
    if asked := consent.recorded_requests(made.provider, made.policy, made.strategy, made.settings):
        consent.agree(record, asked)


def open_workspace(path: Path) -> Workspace:
    """Open the workspace at a directory, or create it if it does not exist."""
    try:
        found = Workspace.open(path)
    except WorkspaceUnknown:
        return Workspace.init(path)
    try:
        found.require_finished()
    except BaseException:
        found.close()
        raise
    return found


async def _whatever_happens(work: Callable[[], None]) -> None:
    with anyio.CancelScope(shield=True):
        await run_sync(work)


async def _new_thread(session: AgentSession) -> str:
    return await session.start_thread()
