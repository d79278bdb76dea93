"""Run an attempt by hand: one prompt to one agent on one workspace, with the same record as an attempt of a suite.

The agent works on the user's own directory, and its steps are part of that directory's history. In every case, the
agent's process tree is dead before the final, sealed snapshot is taken, and the bundle is committed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

import anyio
import msgspec
from anyio.to_thread import run_sync

from proofbox.agents.contract import AgentRuntime, AgentSession, SessionOptions
from proofbox.agents.environment import decide_environment
from proofbox.agents.health.recommendation import default_chain
from proofbox.agents.registry import Registry, installed
from proofbox.agents.settings import RuntimeSettings
from proofbox.agents.steps import reach_of
from proofbox.agents.strategies import Chain, decide_chain
from proofbox.config import settings as config
from proofbox.core.clock import SystemClock
from proofbox.core.digest import digest_of
from proofbox.core.files.removal import remove_tree
from proofbox.core.ids import IdSource
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import (
    AgentError,
    CapabilityUnsupported,
    ProofboxError,
    RuntimeTimedOut,
    StrategyUnavailable,
    TurnInterrupted,
    UsageError,
    WorkspaceUnknown,
)
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.lab.attempt.adhoc.fork_consent import agree_to_forks
from proofbox.lab.attempt.adhoc.home import attempts_dir, copy_home, home_of
from proofbox.lab.attempt.adhoc.request import (
    AttemptFailure,
    AttemptOptions,
    AttemptRun,
    CallMade,
    Status,
)
from proofbox.lab.attempt.context import AttemptControl, RunContext
from proofbox.lab.attempt.documents import ForkedFrom, IntegrityFinding, RequestedLimits
from proofbox.lab.attempt.runner import Supervisor, supervise
from proofbox.lab.attempt_metrics import count_health, health_of
from proofbox.lab.run.ledger import Attempt, Ended
from proofbox.lab.suite.checks import LARGEST_PROMPT
from proofbox.lab.suite.reading import Suite
from proofbox.lab.suite.spec import BoxLimits, Mission, SuiteDocument, SuiteFields
from proofbox.sandbox.client.signals import interrupting_waits
from proofbox.sandbox.options import PolicyOptions
from proofbox.workspace.workspace import Workspace

MISSION = "try"


def run_attempt(prompt: str, workspace: str | os.PathLike[str], **options: Unpack[AttemptOptions]) -> AttemptRun:
    """Give one prompt to an agent in a box over a workspace, and record the attempt as evidence.

    For example:

        attempt = proofbox.run_attempt("fix the failing test", "project", strategies="codex_app_server")
        print(attempt.status, attempt.final_message, attempt.bundle)
        for step in attempt.steps:
            print(step.n, step.command, step.exit_code)

    The directory becomes a workspace if it is not one yet. A failed turn is returned; an error is raised only if the
    agent's turn did not start, and then no bundle remains.
    """
    with interrupting_waits():
        return anyio.run(partial(run_attempt_async, prompt, workspace, **options))


async def run_attempt_async(
    prompt: str, workspace: str | os.PathLike[str], **options: Unpack[AttemptOptions]
) -> AttemptRun:
    """Like `run_attempt`, for async programs.

    For example:

        attempt = await proofbox.run_attempt_async("fix the failing test", "project", timeout=600)

    If cancelled, it ends the agent, commits the bundle as interrupted, and propagates the cancellation.
    """
    return await carry_out(prompt, Path(workspace), options)


async def carry_out(
    prompt: str, workspace: Path, options: AttemptOptions, fork: ForkedFrom | None = None
) -> AttemptRun:
    """Run an attempt, or continue one from `fork`. The workspace already has the files that it begins with."""
    # Not in the state directory: the agent's box sees parts of it.
    scratch = Path(await run_sync(tempfile.mkdtemp, "", "proofbox-attempt-"))
    try:
        supervisor = await run_sync(_AdHocSupervisor, prompt, workspace, options, fork, scratch)
        return await supervisor.make()
    finally:
        with anyio.CancelScope(shield=True):
            await run_sync(remove_tree, scratch)


class _AdHocSupervisor(Supervisor):
    def __init__(
        self, prompt: str, workspace: Path, options: AttemptOptions, fork: ForkedFrom | None, scratch: Path
    ) -> None:
        _check_prompt(prompt)
        root = workspace.resolve()
        clock = options.get("clock") or SystemClock()
        ids = options.get("ids") or IdSource(clock)
        registry = options.get("registry") or installed()
        configured = config.load(root)
        settings = RuntimeSettings(configured.runtimes, options.get("settings"))
        chain = decide_chain(
            flag=options.get("strategies"),
            config=configured.strategies,
            default=lambda: default_chain(settings, registry),
        )
        settings.check(chain, registry)
        keys = _model_keys(chain, registry, settings)
        asked = (*configured.env, *options.get("env", ()))
        self._agent_environment = decide_environment(asked, grants=options.get("grants", ()), model_keys=keys)
        attempt = Attempt(number=1, id=ids.new_id("attempt"), mission=MISSION, replicate=1, state="claimed")
        self._bundle = _new_bundle(Path(options.get("out") or attempts_dir() / attempt.id), root)
        self._options = options
        self._mounts = (*configured.mounts, *(options.get("policy", {}).get("mounts") or ()))
        self._began = clock.monotonic()
        listener = options.get("on_event")
        context = RunContext(
            run_id="",
            run_dir=self._bundle.parent,
            work=scratch,
            suite=_suite(prompt, root, options),
            make_workspace=lambda *_: _open_workspace(root, attempt.id),
            chain=chain,
            registry=registry,
            settings=settings,
            box_settings=None,
            required=(*options.get("required", ()), *(["thread_fork"] if fork and fork.base_thread else [])),
            redactor=Redactor.for_evidence(os.environ, keys),
            provider=None,
            isolation="process",
            clock=clock,
            ids=ids,
        )
        control = AttemptControl(
            lambda _: None, lambda _: None, lambda _: None, listeners=() if listener is None else (listener,)
        )
        super().__init__(attempt, context, control)
        self._timeout = options.get("timeout")
        self._fork = fork
        self._files = root
        self.place = scratch / "attempt"
        self._home = scratch / "home"
        self._created = False

    async def make(self) -> AttemptRun:
        """Run the attempt. If its turn does not start, remove what was recorded and raise the reason."""
        try:
            await run_sync(self._make_home)
            ended = await supervise(self, self._bundle)
            await run_sync(self._count, ended)
            if not self._turn_started:
                raise self._infra or AgentError("the turn did not start", op="attempt")
            await run_sync(agree_to_forks, self._bundle)
        finally:
            with anyio.CancelScope(shield=True):
                await run_sync(self._tidy_up)
        return self._run(ended)

    def _count(self, ended: Ended) -> None:
        strategy = ended.strategy or self.context.chain.candidates[0].strategy  # without one, no agent started
        count_health(strategy, health_of(self._bundle, ended, is_retry=False), clock=self.context.clock)

    @property
    def _turn_started(self) -> bool:
        return "turn_id" in self._runner

    def _make_home(self) -> None:
        self._home.mkdir(mode=0o700)
        if self._fork is not None and self._fork.base_thread:
            copy_home(home_of(self._fork.attempt_id), self._home)

    async def run(self, bundle: BundleWriter) -> None:
        self._created = True
        await super().run(bundle)

    def _tidy_up(self) -> None:
        if not self._turn_started:
            if self._created:  # otherwise it belongs to another process
                remove_tree(self._bundle)
        elif any(self._home.iterdir()):
            with contextlib.suppress(UsageError, OSError):  # then the thread is not kept
                copy_home(self._home, home_of(self.attempt.id))

    # What differs from an attempt of a run

    def _release(self, workspace: Workspace) -> None:
        workspace.close()

    def _session_options(self, runtime: AgentRuntime, workspace: Path, scratch: Path) -> SessionOptions:
        options, provider = self._options, self._mission.provider
        self._environment = self._agent_environment.record
        settings = self.context.settings(runtime)
        if runtime.id == "scripted" and not settings.get("script"):
            raise StrategyUnavailable(
                "the scripted agent has no script",
                op="attempt",
                fix_hints=["name its script: --script FILE", "use an agent: --strategies codex_app_server"],
            )
        return SessionOptions(
            workspace=workspace,
            scratch=scratch,
            home=self._home,
            provider=provider,
            policy=self._policy(),
            settings=settings,
            env=self._agent_environment.values,
            approvals=options.get("approvals", ()),
            sandboxed=options.get("sandboxed", True) and provider != "off",
            stall_timeout=options.get("stall_timeout"),
        )

    async def _open_thread(self, session: AgentSession, folder: str) -> str:
        if self._fork is None or not self._fork.base_thread:
            return await super()._open_thread(session, folder)
        try:
            return await session.fork_thread(self._fork.base_thread, self._fork.base_turn)
        except CapabilityUnsupported as error:  # some agents state only when they run that they can't fork
            if {"thread_fork", "supports_thread_fork"} & set(self._options.get("required", ())):
                raise
            self._fork = without_thread(self._fork, error.message)
            return await super()._open_thread(session, folder)

    def _reach(self) -> tuple[str, ...]:
        return () if self._session is None else reach_of(self._session.facts(), self._mounts)

    def _policy(self) -> PolicyOptions:
        return self._options.get("policy", {})

    # The result

    def _run(self, ended: Ended) -> AttemptRun:
        redactor, trace, runner = self.context.redactor, self._trace, self._runner
        if trace is None:
            raise AgentError("the attempt has no trace", op="attempt")
        status, error = self._status()
        made = AttemptRun(
            ok=status == "completed",
            **ended.members,
            attempt_id=self.attempt.id,
            mission_id=self._mission.id,
            bundle=str(self._bundle),
            status=status,
            error=None if error is None else AttemptFailure.of(error, redactor),
            version=runner["version"],
            chain=self._considered,
            final_message=self._feedback.text,
            tool_calls=tuple(
                CallMade(
                    redactor.preview(call.command, 4096)[0],
                    call.exit_code,
                    call.duration_ms,
                    redactor.preview(call.tool, 200)[0],
                    call.status,
                    call.source,
                    call.started,
                )
                for call in trace.calls
            ),
            steps=tuple(trace.steps),
            usage=trace.tokens.total(),
            thread_id=runner["thread_id"],
            turn_id=runner["turn_id"],
            workspace=str(self._files),
            snapshot_before=self._given,
            snapshot_after="" if self._final is None else self._final.snapshot,
            session={"id": runner["session_id"], **runner["facts"]},
            integrity=tuple(IntegrityFinding(each.code, each.message) for each in trace.integrity),
            calls_complete=not self._incomplete_reason,
            duration_ms=round((self.context.clock.monotonic() - self._began) * 1000, 3),
            fork=self._fork,
        )
        return msgspec.convert(redactor.redact_json(msgspec.to_builtins(made, enc_hook=str)), AttemptRun)

    def _status(self) -> tuple[Status, ProofboxError | None]:
        """Return how the turn ended, and its failure: as stated by the turn, or what prevented a complete record."""
        if self._control.reason == "timed_out" and self._reason != "completed":
            return "failed", RuntimeTimedOut(f"the turn timed out after {self._timeout:g} s", op="attempt")
        stated = None if self._result is None else self._result.error
        if self._reason == "interrupted":
            return "interrupted", stated or TurnInterrupted("the attempt was interrupted", op="attempt")
        failed = stated or self._infra
        return "completed" if self._reason == "completed" else "failed", failed


def without_thread(fork: ForkedFrom, why: str) -> ForkedFrom:
    """Return a fork that begins a new thread, and why it does."""
    why = f"{why}: files as after the step, a new thread"
    return msgspec.structs.replace(fork, exact=False, why=why, base_thread="", base_turn="")


def _check_prompt(prompt: str) -> None:
    try:
        size = len(prompt.encode())
    except UnicodeEncodeError:
        raise UsageError("the prompt is not valid UTF-8", op="attempt") from None
    if not 0 < size <= LARGEST_PROMPT:
        raise UsageError(
            f"a prompt must have between 1 and {LARGEST_PROMPT} bytes", op="attempt", fix_hints=["--prompt TEXT"]
        )


def _suite(prompt: str, root: Path, options: AttemptOptions) -> Suite:
    """Return a suite of one mission that states what the caller asked for."""
    policy = options.get("policy", {})
    mission = Mission(
        id=MISSION,
        prompt=prompt,
        provider=options.get("provider"),
        network=policy.get("network"),
        image=policy.get("image"),
        limits=BoxLimits(memory=policy.get("memory"), cpus=policy.get("cpus"), pids=policy.get("pids")),
    )
    RequestedLimits.of(mission.limits)  # refuse malformed amounts before anything starts
    document = SuiteDocument(suite=SuiteFields(id=MISSION), mission=(mission,))
    digest = digest_of(msgspec.to_builtins(document))
    return Suite(fields=document.suite, missions=document.mission, base=root, sha256=digest, source="")


def _model_keys(chain: Chain, registry: Registry, settings: RuntimeSettings) -> Sequence[str]:
    """Return the variables that hold model keys, from the settings of every candidate."""
    found = []
    for candidate in chain.candidates:
        with contextlib.suppress(AgentError):
            found.append(settings(registry.runtime(candidate.strategy)).get("api_key_env"))
    return [name for name in found if isinstance(name, str) and name]


def _open_workspace(root: Path, attempt_id: str) -> Workspace:
    """Open the workspace at a directory, or make the directory one, and record its current files."""
    try:
        workspace = Workspace.open(root)
    except WorkspaceUnknown:
        workspace = Workspace.init(root)
    try:
        workspace.require_finished()
        workspace.snapshot(f"before {attempt_id}")
    except BaseException:
        workspace.close()
        raise
    return workspace


def _new_bundle(out: Path, workspace: Path) -> Path:
    """Return the path of the new bundle. It must be empty or absent, and out of the agent's reach."""
    real = out.resolve()
    hints = ["choose a new directory with --out"]
    if real.is_relative_to(workspace) or workspace.is_relative_to(real):
        raise UsageError(
            f"the bundle {out} and the workspace {workspace} overlap",
            op="attempt",
            fix_hints=["choose an --out directory that the agent can't write to"],
        )
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(real):
            os.rmdir(real)
    except OSError as error:
        what = "is not empty" if real.is_dir() and os.listdir(real) else f"cannot be created: {error.strerror}"
        raise UsageError(f"{out} {what}", op="attempt", fix_hints=hints) from None
    return real
