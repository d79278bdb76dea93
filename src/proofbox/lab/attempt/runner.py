"""One attempt at one mission: from a claimed row of the ledger, or a prompt, to a committed bundle.

    claimed → preparing → running → stopping → verifying → committing → ended

Three outcomes are kept separate: what the agent claims, what the verifier found, and whether the infrastructure worked.
The agent's process tree is dead before the final snapshot is taken, and that snapshot is what is verified.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
from anyio.to_thread import run_sync

from proofbox.agents.contract import AgentRuntime, AgentSession, ApprovalRule, SessionOptions, TurnResult
from proofbox.agents.environment import EnvironmentRecord, decide_environment
from proofbox.agents.recording import Recording
from proofbox.agents.strategies import CandidateResult, first_usable
from proofbox.core.clock import isoformat
from proofbox.core.files.removal import remove_tree
from proofbox.errors import (
    AgentError,
    AuthFailed,
    BundleSecretFound,
    CapabilityUnsupported,
    ContextExceeded,
    InternalError,
    LeaseLost,
    ListenerFailed,
    ModelFailed,
    Overloaded,
    ProofboxError,
    RateLimited,
    RuntimeCrashed,
    RuntimeIncompatible,
    RuntimeProtocolError,
    RuntimeStalled,
    RuntimeStartFailed,
    RuntimeTimedOut,
    SetupFailed,
    StartFailed,
    StreamDisconnected,
    TransportBroken,
    TurnInterrupted,
    UsageLimited,
)
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.claims import Feedback, read_feedback
from proofbox.lab.attempt.cleaning import cleaned, encodable
from proofbox.lab.attempt.context import ON_REQUEST, AttemptControl, RunContext, Watchdog
from proofbox.lab.attempt.documents import FinalSnapshot, ForkedFrom
from proofbox.lab.attempt.expectations import UnmetCondition, unmet
from proofbox.lab.attempt.final_tree import finder
from proofbox.lab.attempt.mission_box import MissionBoxes, requested_options
from proofbox.lab.attempt.result import AttemptResult, Verified
from proofbox.lab.attempt.sharing import Started, refuse_to_share
from proofbox.lab.attempt.states import Reason, State, States
from proofbox.lab.attempt.trace import RecordFull, Trace
from proofbox.lab.attempt.verifier import VerifierResult, check, combine_turns, lay_beside, lay_out, not_run
from proofbox.lab.run import resources
from proofbox.lab.run.failures import retry_after, typed
from proofbox.lab.run.ledger import Attempt, Ended
from proofbox.lab.suite.spec import Mission, Verify, verifiers_of
from proofbox.sandbox.options import PolicyOptions
from proofbox.workspace.model import Snapshot
from proofbox.workspace.workspace import Workspace

# Failures of a turn that always count against the agent.
AGENT_FAILURES = (ContextExceeded, TurnInterrupted)
# Failures that a program in a box can report or cause at will. They count against the agent too, unless a failure was
# observed from outside the box.
SELF_REPORTED = (
    AuthFailed,
    RateLimited,
    UsageLimited,
    Overloaded,
    ModelFailed,
    StreamDisconnected,
    RuntimeCrashed,
    RuntimeProtocolError,
    RuntimeStalled,
    RuntimeTimedOut,
    TransportBroken,
)
# Failures to start the agent again for a later turn. Before its first turn, they are infrastructure failures.
NOT_STARTED = (CapabilityUnsupported, RuntimeIncompatible, RuntimeStartFailed)
Done = TypeVar("Done")


class _Interrupted(Exception):
    """The attempt was interrupted on request; the message says when."""


async def run_attempt(attempt: Attempt, context: RunContext, control: AttemptControl) -> Ended:
    """Run an attempt of a run. Every failure is recorded in its bundle; an exception means that there is no bundle."""
    return await supervise(Supervisor(attempt, context, control))


async def supervise(supervisor: Supervisor, place: Path | None = None) -> Ended:
    """Run an attempt and commit its bundle, in the directory of its run or at a place that the user chose.

    If cancelled, the bundle is committed with what the agent did until then.
    """
    place = place or supervisor.context.run_dir / supervisor.attempt.path
    try:
        index = await _record(supervisor, place)
    except LeaseLost:
        raise
    except Exception as error:
        if not await run_sync(os.path.lexists, place / INDEX):
            raise
        supervisor.fail_commit(error)
        index = await run_sync(artifacts.index_sha256, place)
    supervisor.enter("ended")
    return supervisor.ended(index)


@contextlib.asynccontextmanager
async def _bundle(supervisor: Supervisor, place: Path) -> AsyncIterator[BundleWriter]:
    """Open and commit the bundle in a thread, so that nothing else in this process waits for the disk."""
    context = supervisor.context
    bundle = await run_sync(
        partial(
            BundleWriter.create_at,
            place,
            expected=artifacts.EXPECTED,
            run_id=artifacts.bundle_id(context.run_id, supervisor.attempt.id),
            redactor=context.redactor,
            clock=context.clock,
            ids=context.ids,
        )
    )
    try:
        yield bundle
    except anyio.get_cancelled_exc_class():  # its documents are complete and say so
        with anyio.CancelScope(shield=True):
            await run_sync(bundle.commit)
        raise
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await run_sync(bundle.fail, error)
        raise
    await run_sync(bundle.commit)


async def _record(supervisor: Supervisor, place: Path) -> str:
    """Run the attempt, commit its bundle, and return the digest of the bundle's index."""
    async with _bundle(supervisor, place) as bundle:
        try:
            await supervisor.run(bundle)
        finally:
            with anyio.CancelScope(shield=True):
                await run_sync(remove_tree, supervisor.place)
    return bundle.index_sha256


class Supervisor:
    """Carries out one attempt of a run. A subclass makes an attempt on a workspace of the user (`adhoc/`)."""

    def __init__(self, attempt: Attempt, context: RunContext, control: AttemptControl) -> None:
        self.attempt = attempt
        self.context = context
        self._control = control
        self._mission: Mission = context.suite.mission(attempt.mission)
        self._timeout: float | None = self._mission.timeout
        self._fork: ForkedFrom | None = None
        self._states = States(context.clock)
        self._environment: EnvironmentRecord | None = None
        self._considered: tuple[CandidateResult, ...] = ()
        self._runner: dict[str, Any] = {}
        self._result: TurnResult | None = None
        self._reason: Reason = "completed"
        self._detail = ""
        self._cut_short = False
        self._infra: ProofboxError | None = None
        self._trace: Trace | None = None
        self._checked = VerifierResult(passed=None)
        self._feedback: Feedback = read_feedback("")
        self._unmet: list[UnmetCondition] = []
        self._incomplete_reason = ""
        self._session: AgentSession | None = None
        self._given = ""
        self._turn_ends: list[str] = []
        """The snapshots at the end of the turns that further turns followed."""
        self._final: FinalSnapshot | None = None
        self._workspace: Workspace | None = None
        self.place = context.work / "attempts" / f"{attempt.id}.e{attempt.epoch}"
        self._files = self.place / "workspace"
        self._boxes = MissionBoxes(self._mission, context, self._files)
        self._common = context.work / "shared"
        self._watchdog = Watchdog(control, context.clock)

    def enter(self, state: State) -> None:
        self._states.enter(state)
        self._control.on_state(state)

    def fail(self, error: Exception) -> None:
        """Record an infrastructure failure. A lost lease is raised: the attempt now belongs to another worker."""
        infra = typed(error)
        if isinstance(infra, LeaseLost):
            raise infra
        self._reason = "setup_failed" if isinstance(infra, SetupFailed) else "infra_failed"
        self._infra = infra

    def fail_commit(self, error: Exception) -> None:
        """Record that the bundle could not be completed. It was committed as failed, and states no claim."""
        self.fail(error)
        self._feedback = read_feedback("")

    async def run(self, bundle: BundleWriter) -> None:
        try:
            await self._carry_out(bundle)
        except _Interrupted as interrupted:
            self._cut_short = True
            self._reason, self._detail = "interrupted", f"{ON_REQUEST}, {interrupted}"
        except Exception as error:
            self.fail(error)
        except anyio.get_cancelled_exc_class():
            self._cut_short = True
            self._reason, self._detail = "interrupted", "cancelled"
            with anyio.CancelScope(shield=True):
                await self._conclude(bundle)
            raise
        await self._conclude(bundle)

    async def _conclude(self, bundle: BundleWriter) -> None:
        self.enter("committing")
        await run_sync(self._write, bundle)

    async def _carry_out(self, bundle: BundleWriter) -> None:
        prompt = await run_sync(self._record_prompt, bundle)
        if self._control.is_interrupted:
            raise _Interrupted("before it started")
        self.enter("preparing")
        try:
            workspace = await self._unless_interrupted(self._prepare, "during setup")
            if self._control.is_interrupted:
                raise _Interrupted("before the agent started")
            trace = self._trace = self._open_trace(bundle, workspace)
            try:
                await self._work(trace, prompt)
            except BaseException:
                if self._session is not None and self._session.broken is not None:  # closed: its process tree is dead
                    with anyio.CancelScope(shield=True), contextlib.suppress(ProofboxError, OSError):
                        await run_sync(self._seal, bundle, workspace, trace)
                raise
            self.enter("verifying")
            verify = partial(self._verify, bundle, workspace, trace)
            if self._reason == "interrupted":  # the turn has ended already, and what it left is verified
                await run_sync(verify)
            else:
                await self._unless_interrupted(verify, "during verification")
        finally:
            with anyio.CancelScope(shield=True):
                if self._workspace is not None:
                    await run_sync(self._let_go, bundle, self._workspace)

    async def _unless_interrupted(self, work: Callable[[], Done], when: str) -> Done:
        """Run `work` in a thread. On an interrupt, kill its box and raise `_Interrupted` in place of the failure."""

        async def cut_off() -> None:
            await self._control.interrupted()
            while True:  # a box may be about to start
                await run_sync(self._boxes.cut_off)
                await anyio.sleep(resources.WATCH_SECONDS)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cut_off)
            try:
                return await run_sync(work)
            except Exception as error:
                failed = error
            finally:
                tasks.cancel_scope.cancel()
        if self._control.is_interrupted:
            raise _Interrupted(when) from failed
        raise failed

    # Before the agent runs

    def _record_prompt(self, bundle: BundleWriter) -> str:
        """Store the prompts of all turns, and return the first one."""
        prompt = self.context.suite.prompt_of(self._mission)
        prompts = "\n\n".join([prompt, *(turn.prompt for turn in self._mission.then)])
        bundle.write_bytes(artifacts.PROMPT, self.context.redactor.redact(prompts).encode())
        return prompt

    def _prepare(self) -> Workspace:
        mission = self._mission
        self.place.mkdir(parents=True)
        self._common.mkdir(exist_ok=True)
        workspace = self._workspace = self.context.make_workspace(mission.id, self._files)
        if workspace.lower is not None:
            self._boxes.pin_provider()
        if mission.setup:
            self._boxes.set_up()
            workspace.snapshot("after setup")
        self._given = _latest(workspace)
        return workspace

    def _let_go(self, bundle: BundleWriter, workspace: Workspace) -> None:
        try:
            self._clean_up(bundle)
        finally:
            self._release(workspace)

    def _clean_up(self, bundle: BundleWriter) -> None:
        """Run the mission's cleanup commands, whatever happened before. They never change the result."""
        if self._mission.cleanup:
            bundle.write_json(artifacts.CLEANUP, encodable(msgspec.to_builtins(self._boxes.clean_up())))

    def _release(self, workspace: Workspace) -> None:
        workspace.forget()

    # While the agent runs

    def _open_trace(self, bundle: BundleWriter, workspace: Workspace) -> Trace:
        return Trace(
            bundle,
            self.context.redactor,
            self.attempt.id,
            workspace,
            self._given,
            self._mission.budget,
            on_budget=lambda what: self._control.stop("budget_exceeded", what),
            on_activity=self._control.on_activity,
            on_tokens=self._control.on_tokens,
            shared=self.context.shared is not None,
            reach=self._reach,
        )

    async def _work(self, trace: Trace, prompt: str) -> None:
        self.enter("running")
        shared = self.context.shared
        if shared is None:
            started = await self._start(self._files, self.place)
            folder = ""
        else:
            started = await shared.get(partial(self._start, self.place.parent, self._common))
            folder = f"{self.place.name}/workspace"
        session = self._session = started.session
        self._considered, self._environment = started.considered, started.environment
        self._runner = {"runtime": session.runtime, "version": session.version, "session_id": session.id}
        self._runner["settings"] = cleaned(started.settings, self.context.redactor)
        watchdogs = () if self._mission.watchdog is None else (self._watchdog,)
        recording, thread = Recording(session, trace, *watchdogs, *self._control.listeners), ""
        try:
            if shared is None:
                recording.start()
            thread = await self._open_thread(session, folder)
            if shared is not None:
                recording.start(thread)
            turn = await session.start_turn(thread, prompt)
            self._runner |= {"thread_id": thread, "turn_id": turn}
            self._result = await self._wait(session, thread, turn, self._timeout)
            for further in self._mission.then:
                if self._result.status != "completed" or self._control.reason is not None:
                    break
                self._turn_ends.append(trace.steps[-1].snapshot_after)
                try:
                    turn = await session.start_turn(thread, further.prompt)
                except AgentError as error:
                    self._result = _not_started(self._result, error)
                    break
                self._result = await self._wait(session, thread, turn, further.timeout)
        finally:
            self.enter("stopping")
            with anyio.CancelScope(shield=True):
                facts = cleaned(session.facts(), self.context.redactor)
                if self.context.fork_mode is not None:
                    facts["fork"] = self.context.fork_mode(self._mission.id)
                self._runner |= {"facts": facts, "shared": shared is not None}
                await recording.finish(thread, close=shared is None)
                self._incomplete_reason = recording.incomplete_reason
        self._judge_turn(self._result)
        is_full = isinstance(recording.failure, RecordFull)
        if recording.failure is not None and not is_full and self._infra is None:
            self.fail(ListenerFailed(f"the record is incomplete: {typed(recording.failure).message}", op="listen"))

    async def _start(self, workspace: Path, scratch: Path) -> Started:
        context = self.context

        async def start(runtime: AgentRuntime) -> tuple[AgentSession, Mapping[str, Any]]:
            if context.shared is not None:
                refuse_to_share(runtime)
            options = self._session_options(runtime, workspace, scratch)
            return await runtime.start_session(options, clock=context.clock, ids=context.ids), options.settings

        (session, settings), considered = await first_usable(
            context.chain, context.registry, start, settings=context.settings, required=context.required
        )
        return Started(session, considered, self._environment, settings)

    def _session_options(self, runtime: AgentRuntime, workspace: Path, scratch: Path) -> SessionOptions:
        context, mission = self.context, self._mission
        settings = context.settings(runtime)
        if runtime.id == "scripted":
            settings = {**settings, "script": {"step": list(mission.script.step)}}
        elif runtime.id == "oracle":
            solution = "" if mission.solution is None else str(context.suite.at(mission.solution))
            further = [str(context.suite.at(turn.solution)) if turn.solution else "" for turn in mission.then]
            settings = {**settings, "solution": solution, "further": further, "env": mission.solution_env}
        environment = decide_environment(mission.env, model_keys=_model_keys(settings))
        self._environment = environment.record
        return SessionOptions(
            workspace=workspace,
            scratch=scratch,
            provider=self._boxes.provider,
            policy=self._boxes.agent_policy(workspace),
            box_settings=self._boxes.settings,
            grants=self._boxes.grants(),
            settings=settings,
            env=environment.values,
            approvals=_approvals(mission),
        )

    async def _open_thread(self, session: AgentSession, folder: str) -> str:
        return await session.start_thread(folder)

    def _reach(self) -> tuple[str, ...]:
        """Return what a command could affect besides the workspace, for the workspace's effect log."""
        return ()

    def _policy(self) -> PolicyOptions:
        """Return the requested options of the agent's box, for the record."""
        return requested_options(self._mission)

    async def _wait(self, session: AgentSession, thread: str, turn: str, seconds: float | None) -> TurnResult:
        """Wait until the turn ends, times out or is stopped. Time spent in the queue does not count."""

        async def interrupt_when_stopped() -> None:
            await self._control.stopped()
            await session.interrupt_turn(thread, turn)

        async def interrupt_on_timeout(seconds: float) -> None:
            await anyio.sleep(seconds)
            self._control.stop("timed_out", f"after {seconds:g} s")

        async def interrupt_when_disk_full(allowed: int) -> None:
            while True:
                used = await run_sync(resources.size_of, self._files, allowed << 20)
                if used > allowed << 20:
                    return self._control.stop("budget_exceeded", f"disk: more than {allowed} MB")
                await anyio.sleep(resources.WATCH_SECONDS)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(interrupt_when_stopped)
            if seconds is not None:
                tasks.start_soon(interrupt_on_timeout, seconds)
            if self._mission.watchdog is not None:
                tasks.start_soon(self._watchdog.watch, self._mission.watchdog)
            if self._mission.limits.disk_mb is not None:
                tasks.start_soon(interrupt_when_disk_full, self._mission.limits.disk_mb)
            result = await session.wait_turn(turn)
            tasks.cancel_scope.cancel()
        return result

    def _judge_turn(self, result: TurnResult) -> None:
        """Derive the reason from the turn's status, unless proofbox stopped the turn or it exceeded its budget."""
        self._feedback = read_feedback(result.final_message)
        stopped, seen = self._control.reason, result.observed_failure
        # A turn may end before the stop request reaches it; a budget that was exceeded counts all the same.
        was_stopped = stopped is not None and (result.status != "completed" or stopped == "budget_exceeded")
        if was_stopped or result.status == "interrupted":
            # An agent that was stopped has claimed nothing, even if its last message did.
            self._feedback = msgspec.structs.replace(self._feedback, claimed="none")
        if stopped is not None and was_stopped:
            self._reason, self._detail = stopped, self._control.detail
            waited = stopped in ("timed_out", "stalled")
            if waited and seen is not None:  # the agent was waiting for a model that had failed
                self._reason, self._infra = "infra_failed", seen
        elif result.status == "interrupted":
            self._reason = "interrupted"
        elif result.status == "failed":
            self._infra = self._failed_with(result.error, seen)
            self._reason = "turn_failed" if self._infra is None else "infra_failed"

    def _failed_with(self, error: AgentError | None, seen: ProofboxError | None) -> ProofboxError | None:
        """Return the infrastructure failure that ended a turn; None if the failure is the agent's."""
        if error is None:
            return AgentError("the turn failed without stating a reason", op="turn")
        if error.details.get("cause") == StartFailed.code:  # some providers only notice at the first command
            return StartFailed(error.message, op="turn", fix_hints=error.fix_hints)
        if isinstance(error, AGENT_FAILURES):
            return None
        if seen is not None:
            return seen
        if isinstance(error, RuntimeCrashed) and self.context.shared is not None:
            return error  # the process was shared: another attempt may have ended it
        if self._turn_ends and isinstance(error, NOT_STARTED) and not error.details.get("cause"):
            return None  # its box is there, and the agent could have changed anything that a start depends on
        # A bare AgentError is a program that exited with an error code.
        return None if isinstance(error, SELF_REPORTED) or type(error) is AgentError else error

    # After the agent has ended

    def _seal(self, bundle: BundleWriter, workspace: Workspace, trace: Trace) -> Snapshot:
        final = workspace.snapshot(f"after {self.attempt.id}", sealed=True)
        base = None if workspace.lower is None else self.context.shared_base(workspace.lower.path)
        self._final = artifacts.write_final(bundle, workspace, self._given, final, trace.keep_diff, base)
        return final

    def _verify(self, bundle: BundleWriter, workspace: Workspace, trace: Trace) -> None:
        final = self._seal(bundle, workspace, trace)
        if self._infra is not None:
            return
        verifiers = [verify for _, verify in verifiers_of(self._mission)]
        if any(verify.commands for verify in verifiers):
            ends = [*self._turn_ends, final.id]
            results = [
                self._check(workspace, ends[number], verify, number) if number < len(ends) else not_run(verify)
                for number, verify in enumerate(verifiers)
            ]
            found = self._checked = combine_turns(results, verifiers, self._mission.turn_rewards)
            unscored = found.passed is None and found.reward is not None and found.reward.problem
            if unscored and self._reason == "completed":
                self._reason = unscored
        self._unmet = unmet(
            self._mission.expect,
            self._feedback,
            trace.observed_calls(),
            finder(workspace, final),
            incomplete_reason=self._incomplete_reason,
        )
        if workspace.lower is not None:
            workspace.lower.require_unchanged()

    def _check(self, workspace: Workspace, snapshot: str, verify: Verify, turn: int) -> VerifierResult:
        """Verify the files at the end of one turn."""
        files = None if verify.files is None else self.context.suite.at(verify.files)
        verified = self.place / f"verified-{turn}"
        beside = lay_beside(verify, self.context.suite.at, self.place / f"beside-{turn}")
        with (
            lay_out(workspace, self._given, snapshot, verify, files, verified) as (put_back, left_out),
            self._boxes.over(verified) as boxes,
        ):
            found = check(
                boxes,
                verify,
                self.context.redactor,
                provider=self._boxes.provider,
                policy=self._boxes.policy(verified),
                beside=beside,
                clock=self.context.clock,
            )
        return msgspec.structs.replace(found, put_back=put_back, left_out=left_out)

    def _verified(self) -> Verified:
        """Return `passed` only if something decided it: commands that passed, or conditions that were all met."""
        unscored = self._checked.reward is not None and self._checked.passed is None
        if self._infra is not None or unscored or self._cut_short:
            return "none"
        if self._checked.passed is False or self._unmet:
            return "failed"
        return "passed" if self._checked.passed or self._mission.expect.asks else "none"

    def _write(self, bundle: BundleWriter) -> None:
        if held := bundle.withhold_secrets():
            self.fail(_secret_found(held))
        self._write_documents(bundle)
        if held := bundle.withhold_secrets():
            raise _secret_found(held)  # the documents that remain are not a verdict

    def _write_documents(self, bundle: BundleWriter) -> None:
        artifacts.write_all(
            bundle,
            artifacts.FinishedAttempt(
                attempt=self.attempt,
                run_id=self.context.run_id,
                timeout=self._timeout,
                policy=cleaned({name: value for name, value in self._policy().items() if value}, self.context.redactor),
                fork=self._fork,
                node=self.context.node,
                suite_id=self.context.suite.id,
                suite_sha256=self.context.suite.sha256,
                mission=self._mission,
                chain=str(self.context.chain),
                considered=self._considered,
                isolation=self.context.isolation,
                detail=self._detail,
                infra=self._infra,
                states=tuple(self._states.log),
                runner=self._runner,
                environment=self._environment,
                result=self._result,
                feedback=self._feedback,
                outcome=self._outcome(),
                checked=self._checked,
                final=self._final,
                unmet=tuple(self._unmet),
                report=self._trace.report() if self._trace else {},
                tokens=self._trace.tokens.by_source() if self._trace else {},
                retry_after=retry_after(self._infra, self.context.clock),
                written_at=isoformat(self.context.clock.now()),
            ),
            self.context.redactor,
        )

    def _outcome(self) -> AttemptResult:
        return AttemptResult(
            claimed=self._feedback.claimed,
            verified=self._verified(),
            infra=None if self._infra is None else self._infra.code,
            reason=self._reason,
            strategy=str(self._runner.get("runtime", "")),
        )

    def ended(self, index_sha256: str) -> Ended:
        infra = self._infra
        return Ended(
            **self._outcome().members,
            index_sha256=index_sha256,
            retry_after=retry_after(infra, self.context.clock),
            reset_named=infra is not None and "resets_at" in infra.details,
        )


def _not_started(earlier: TurnResult, error: AgentError) -> TurnResult:
    """Return the result of a turn that could not be started after an earlier one."""
    lost = error if error.details.get("cause") else None  # the box ended, not just the program
    return TurnResult(turn=earlier.turn, thread=earlier.thread, status="failed", error=error, observed_failure=lost)


def _secret_found(paths: Sequence[str]) -> BundleSecretFound:
    return BundleSecretFound(
        f"{', '.join(paths[:5])} contained a secret and was removed from the evidence",
        op="attempt",
        fix_hints=[
            "a file name may contain the value of a variable whose name marks it as a secret: rename one of them",
            "if the value is not secret, unset the variable and run again",
        ],
        details={"paths": list(paths)},
    )


def _latest(workspace: Workspace) -> str:
    head = workspace.head
    if head is None:
        raise InternalError("the forked workspace has no snapshot", op="attempt")
    return head.id


def _approvals(mission: Mission) -> tuple[ApprovalRule, ...]:
    declined = [ApprovalRule(answer="decline", command=each, name=f"decline {each}") for each in mission.tools.decline]
    accepted = [ApprovalRule(answer="accept", command=each, name=f"accept {each}") for each in mission.tools.accept]
    return (*declined, *accepted)


def _model_keys(settings: Mapping[str, Any]) -> tuple[str, ...]:
    name = settings.get("api_key_env")
    return (name,) if isinstance(name, str) else ()
