"""A worker process: it claims attempts from a run's ledger and runs several concurrently.

It dies with its conductor, and its boxes die with it. It writes progress events to stdout, one JSON object per line;
nothing depends on them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from anyio.to_thread import current_default_thread_limiter, run_sync

from proofbox.agents.health.counters import AttemptHealth
from proofbox.core.clock import Clock, SystemClock
from proofbox.errors import IoFailed, LeaseLost, RateLimited, UsageLimited
from proofbox.evidence.bundle.identity import process_identity
from proofbox.lab.attempt.context import AttemptControl, RunContext
from proofbox.lab.attempt.runner import run_attempt
from proofbox.lab.attempt.states import State
from proofbox.lab.attempt_metrics import count_health, health_of
from proofbox.lab.run import resources
from proofbox.lab.run.failures import typed
from proofbox.lab.run.ledger import Attempt, Ended, Ledger
from proofbox.lab.run.limiter import Limiter
from proofbox.lab.run.plan import Plan, credential_of, ledger_path, read_plan, run_context
from proofbox.workspace.scanning.stack import enter_private_mounts

LEASE = 60.0
BEAT = 1.0
POLL_SECONDS = 0.05
THREADS = 4
"""The maximum number of threads that one attempt blocks: a command, a snapshot, a disk check, a request."""
GARBAGE_OBJECTS = 10_000
"""New objects after which garbage is collected. An attempt makes some thousands, most of them without cycles."""
_PDEATHSIG = 1


class Worker:
    def __init__(
        self,
        name: str,
        epoch: int,
        slots: int,
        inputs: WorkerInputs,
    ) -> None:
        self._name = name
        self._epoch = epoch
        self._slots = slots
        self._ledger = inputs.ledger
        self._context = inputs.context
        self._limiter = inputs.limiter
        self._clock = inputs.clock
        self._process = process_identity()
        self._running: dict[str, AttemptControl] = {}
        self._given_up: list[Attempt] = []
        self._uncounted: deque[tuple[str, AttemptHealth]] = deque()
        """The strategies and figures of attempts that the health counters lack. Written about once a second."""
        self._entered = 0
        self._asking = anyio.CapacityLimiter(4)
        self._beating = anyio.CapacityLimiter(1)
        self._freed = anyio.Event()

    async def work(self) -> None:
        """Work until no attempt is planned and none is running that may have to be retried."""
        # Enough threads for all slots. Heartbeats and ledger calls have their own, so they never wait for an attempt.
        threads = current_default_thread_limiter()
        threads.total_tokens = max(threads.total_tokens, THREADS * self._slots)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._beat)
            while True:
                try:
                    wait = await run_sync(self._next, limiter=self._asking)
                except IoFailed:  # running attempts continue
                    wait = BEAT
                if wait is None:
                    break
                if isinstance(wait, float):
                    with anyio.move_on_after(wait):
                        await self._freed.wait()
                    continue
                attempt, place = wait
                control = self._running[attempt.id] = self._control_of(attempt)
                if attempt.interrupt:
                    control.interrupt()
                tasks.start_soon(self._run, attempt, control, place)
                if len(self._running) >= self._slots:
                    with anyio.move_on_after(BEAT):
                        await self._freed.wait()
            tasks.cancel_scope.cancel()
        self._count()
        if self._context.shared is not None:
            await self._context.shared.close()

    def _next(self) -> tuple[Attempt, str] | float | None:
        """Return an attempt and its slot name; or seconds to wait; or None when everything is done."""
        interrupted = self._ledger.claim_interrupted(self._name, self._epoch, LEASE)
        if interrupted is not None:  # it is only ended, which needs no slot, resources or model requests
            return interrupted, ""
        if len(self._running) >= self._slots:
            return BEAT
        due = self._ledger.next_time()
        if due is None:
            # An attempt of this worker may have ended in the ledger, but not reported it or updated the limiter yet.
            return POLL_SECONDS if self._running or self._ledger.counts()["claimed"] else None
        early = due - self._clock.now().timestamp()
        if early > 0:
            return min(early, BEAT)
        if resources.reason(self._context.run_dir):
            return resources.POLL_SECONDS
        self._entered += 1
        place = f"{self._name}/{self._entered}"
        closed = self._limiter.enter(place, self._process) if self._limiter is not None else None
        if closed is not None:
            return min(closed, BEAT)
        attempt = None
        try:
            attempt = self._ledger.claim(self._name, self._epoch, LEASE)
        finally:
            if attempt is None:
                self._release(place)
        return POLL_SECONDS if attempt is None else (attempt, place)  # None: another worker was faster

    def _release(self, place: str) -> None:
        if self._limiter is not None and place:
            with contextlib.suppress(OSError):  # the slot is released when this process ends
                self._limiter.release(place)

    async def _run(self, attempt: Attempt, control: AttemptControl, place: str) -> None:
        began = self._clock.now().timestamp()
        try:
            ended = await self._execute(attempt, control)
            await run_sync(self._end, attempt, ended, began, limiter=self._asking)
            self._emit(attempt, "ended", **ended.members)
        except LeaseLost as error:
            self._emit(attempt, "lost", message=error.message)
        except Exception as error:  # no bundle, or the ledger failed: the other attempts continue
            self._given_up.append(attempt)
            self._emit(attempt, "lost", message=self._context.redactor.redact(typed(error).message))
        finally:
            del self._running[attempt.id]
            self._release(place)
            self._freed.set()
            self._freed = anyio.Event()

    async def _execute(self, attempt: Attempt, control: AttemptControl) -> Ended:
        """Run an attempt to its committed bundle, in this process."""
        return await run_attempt(attempt, self._context, control)

    def _end(self, attempt: Attempt, ended: Ended, began: float) -> None:
        self._ledger.end(attempt, ended)
        with contextlib.suppress(OSError):  # the limiter learns it from the next attempt
            self._update_limiter(ended, began)
        strategy = ended.strategy or self._context.chain.candidates[0].strategy  # without one, no agent started
        bundle = self._context.run_dir / attempt.path
        self._uncounted.append((strategy, health_of(bundle, ended, is_retry=attempt.parent is not None)))

    def _count(self) -> None:
        ended: dict[str, list[AttemptHealth]] = {}
        while self._uncounted:
            strategy, health = self._uncounted.popleft()
            ended.setdefault(strategy, []).append(health)
        for strategy, attempts in ended.items():
            count_health(strategy, *attempts, clock=self._clock)

    def _update_limiter(self, ended: Ended, began: float) -> None:
        if self._limiter is None:
            return
        if ended.infra == UsageLimited.code:
            resets = None if ended.retry_after is None else self._clock.now().timestamp() + ended.retry_after
            self._limiter.usage_limited(resets)
        elif ended.infra == RateLimited.code:
            self._limiter.rate_limited(began, ended.retry_after)
        elif ended.infra is None and ended.strategy:  # otherwise no agent started
            self._limiter.succeeded()

    def _control_of(self, attempt: Attempt) -> AttemptControl:
        def on_state(state: State) -> None:
            if state != "ended":  # that event is sent once the ledger has it
                with contextlib.suppress(IoFailed):  # only informs observers
                    self._ledger.enter_phase(attempt, state)
                self._emit(attempt, state)

        return AttemptControl(
            on_state,
            lambda what: self._emit(attempt, "activity", activity=what),
            lambda spent: self._emit(attempt, "tokens", tokens=spent),
        )

    async def _beat(self) -> None:
        while True:
            with contextlib.suppress(IoFailed):  # a lease lasts for many heartbeats
                for id in await run_sync(self._renew, limiter=self._beating):
                    if id in self._running:
                        self._running[id].interrupt()
            await anyio.sleep(BEAT)

    def _renew(self) -> list[str]:
        """Renew the leases of running attempts and release those given up; return the ids of those to interrupt."""
        self._count()
        while self._given_up:
            self._ledger.give_up(self._given_up[0])
            del self._given_up[0]
        return self._ledger.heartbeat(self._name, LEASE)

    def _emit(self, attempt: Attempt, event: str, **more: Any) -> None:
        print_event({"event": event, "attempt_id": attempt.id, "mission_id": attempt.mission, **more})


def print_event(event: dict[str, Any]) -> None:
    """Write an event to stdout for the conductor."""
    with contextlib.suppress(BrokenPipeError):  # events are optional
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


def die_with(conductor: int) -> bool:
    """Ask to be killed when the conductor dies. Return whether it is still alive."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == conductor


class WorkerInputs(NamedTuple):
    """What a worker process works with."""

    plan: Plan
    ledger: Ledger
    context: RunContext
    limiter: Limiter | None
    clock: Clock

    @classmethod
    def open(cls, out: Path, run_id: str, name: str) -> WorkerInputs:
        clock = SystemClock()
        ledger = Ledger(ledger_path(out, run_id), clock=clock)
        plan = read_plan(ledger)
        credential = credential_of(plan)
        limiter = None if credential is None else Limiter(credential, plan.concurrency, caller=plan.run_id, clock=clock)
        return cls(plan, ledger, run_context(plan, out, name, clock=clock), limiter, clock)


def main(argv: list[str]) -> None:
    out, run_id, name, epoch, slots, conductor = argv
    if not die_with(int(conductor)):
        return
    with contextlib.suppress(OSError):  # attempts then get copies of their files
        enter_private_mounts()
    inputs = WorkerInputs.open(Path(out), run_id, name)
    gc.freeze()  # modules, types and the suite stay until the end: looking for garbage among them is a waste
    gc.set_threshold(GARBAGE_OBJECTS)
    anyio.run(Worker(name, int(epoch), int(slots), inputs).work)


if __name__ == "__main__":
    main(sys.argv[1:])
