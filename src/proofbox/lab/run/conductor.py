"""Conducts a whole run: plans it, runs it in worker processes, resumes it after any crash, commits it as one bundle.

out/<run_id>.ledger     the attempts and their results
out/<run_id>/           the run's bundle, in progress until every attempt has ended
out/.work/<run_id>/     workspaces and scratch directories; removed when the run is committed
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from shlex import quote

import msgspec

from proofbox.config import consent
from proofbox.config.engine import EngineSettings, chosen_engine
from proofbox.core.clock import Clock, SystemClock
from proofbox.core.files.locks import locked
from proofbox.core.files.removal import remove_tree
from proofbox.core.ids import IdSource
from proofbox.core.text import require_utf8
from proofbox.errors import PlanUntrusted, RunBusy, RunInterrupted, RunMoved, RunUnknown, UsageError, WorkerLost
from proofbox.evidence.bundle.identity import world
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.evidence.documents.schedule import PATH as SCHEDULE
from proofbox.evidence.documents.schedule import ScheduleLog
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.documents import ChainDecided, RunEnvironment, SuiteNamed
from proofbox.lab.attempt.sharing import refuse_unshareable
from proofbox.lab.attempt_metrics import count_health, health_of
from proofbox.lab.reports.summary import SUMMARY, summarize
from proofbox.lab.run.closing import as_committed, close_altered, close_torn
from proofbox.lab.run.crews.contract import Crew, EventForwarder, OnEvent
from proofbox.lab.run.crews.local import LocalCrew
from proofbox.lab.run.events import RunStarted
from proofbox.lab.run.failures import LOST, counted_tries, pause
from proofbox.lab.run.ledger import Attempt, Ended, Ledger, PlannedAttempt
from proofbox.lab.run.limiter import Limiter
from proofbox.lab.run.plan import (
    PLAN,
    TEMPLATES,
    WORK,
    Plan,
    attempts_of,
    box_settings,
    conductor_lock,
    credential_of,
    ledger_path,
    plan_digest,
    read_plan,
    redactor_of,
    refuse_secrets,
)
from proofbox.lab.run.waiting import WaitReporter
from proofbox.lab.suite.files import SuiteFiles
from proofbox.lab.suite.reading import Suite
from proofbox.lab.suite.runnable import refuse_idle
from proofbox.lab.suite.spec import SCHEMA as SUITE_SCHEMA
from proofbox.lab.suite.spec import Isolation
from proofbox.lab.suite.widening import require_consent
from proofbox.workspace.registry import forget_workspaces

CONDUCTOR = "conductor"
MAX_LOST = 3
"""How often an attempt is retried because its worker died. An attempt that kills its worker must not run forever."""
MAX_STOPPED = 50
"""How often an attempt is retried because the run was stopped. A machine may be shut down every day for weeks, but an
attempt that kills its conductor must not run forever if something resumes the run each time."""
MAX_IDLE_DEATHS = 4
"""How many workers may die in succession without any attempt being started or ended."""
TAKEOVER_LEASE = 60.0
_EXPECTED = ("environment.json", SCHEDULE, SUMMARY)


def create_run(plan: Plan, out: Path, *, trust: bool = False, clock: Clock | None = None) -> Path:
    """Plan a run and return the path of its ledger. From then on any process can resume it.

    Raises `ConsentRequired` if the suite asks for more than the user's settings give a box, and the user has not
    consented to it. `trust` gives that consent, and records it.
    """
    require_utf8(out.absolute(), "the output directory", "suite")
    require_utf8(plan.base, "the suite's directory", "suite")
    require_utf8(plan.suite_name, "the suite's file", "suite")
    suite = plan.suite()
    plan = msgspec.structs.replace(plan, box_settings=box_settings())
    with SuiteFiles(Path(plan.base)) as files:
        chain = plan.parsed_chain()
        refuse_idle(chain, plan.strategy or chain.candidates[0].strategy, suite.missions)
        require_consent(
            suite,
            files,
            plan.box_settings,
            name=plan.suite_name,
            provider=plan.provider,
            trust=trust,
            command=f"proofbox suite run {quote(plan.suite_name)} --trust",
        )
        refuse_secrets(plan, suite, os.environ, files)
        if plan.isolation == "shared":
            refuse_unshareable(suite.missions, plan.provider, chain)
        out.mkdir(parents=True, exist_ok=True)
        with locked(conductor_lock(out, plan.run_id)):  # without a ledger, its files look like those of a dead run
            return _create_run(plan, suite, files, out, clock)


def _create_run(plan: Plan, suite: Suite, files: SuiteFiles, out: Path, clock: Clock | None) -> Path:
    # A planned run has its lanes, templates and files.
    from proofbox.lab.run.concurrency import bounds_of, lanes_of
    from proofbox.lab.run.template import GIVEN, fill
    from proofbox.lab.suite.pinning import PINNED, check_pinned, pin, source_of

    work = (out / WORK / plan.run_id).absolute()
    try:
        work.mkdir(parents=True)
        skip = tuple((info.st_dev, info.st_ino) for info in map(os.stat, (out, work.parent)))
        for mission in suite.missions:
            with source_of(mission, files, skip) as source:
                fill(source, work / TEMPLATES / mission.id / GIVEN)
        inputs = pin(suite, files, work / PINNED, skip)
        plan = msgspec.structs.replace(plan, pinned=str(work / PINNED), inputs=inputs)
        check_pinned(msgspec.structs.replace(suite, pinned=work / PINNED))
        consent.remember_plan(plan.run_id, plan_digest(plan))
    except BaseException:
        remove_tree(work)  # nothing would find it without a ledger
        conductor_lock(out, plan.run_id).unlink()
        raise
    about = {PLAN: msgspec.json.encode(plan).decode(), "run_id": plan.run_id}
    path = ledger_path(out, plan.run_id)
    lanes = lanes_of(plan, suite, lambda mission: work / TEMPLATES / mission.id / GIVEN)
    ledger = Ledger.create(path, about, attempts_of(plan, suite, lanes), clock=clock)
    for lane, limit in bounds_of(suite).items():
        ledger.bound_lane(lane, limit)
    ledger.close()
    return path


class Conductor:
    """Conducts one run from its current state to its end. Only one conductor can be active."""

    def __init__(
        self,
        out: Path,
        run_id: str,
        *,
        on_event: OnEvent | None = None,
        stop: threading.Event | None = None,
        clock: Clock | None = None,
        engine: str | None = None,
    ) -> None:
        """`engine` overrides the engine in the plan."""
        self._out = out
        self._run_id = run_id
        self._stop = stop or threading.Event()
        self._clock: Clock = clock or SystemClock()
        self._emit = EventForwarder(on_event, self._clock)
        self._ids = IdSource(self._clock)
        self._ledger = Ledger(ledger_path(out, run_id), clock=self._clock)
        self._plan = read_plan(self._ledger)
        self._engine = chosen_engine(self._plan.engine, engine, None, ())
        self._crew = _crew(out, self._plan, self._engine, self._ids, self._emit)
        self._epoch = 0

    @functools.cached_property
    def _suite(self) -> Suite:
        return self._plan.suite()

    @functools.cached_property
    def _waiting(self) -> WaitReporter:
        """Not needed for a committed run, and it loads the agent's runtime."""
        credential = credential_of(self._plan)
        gate = None if credential is None else Limiter(credential, self._plan.concurrency, clock=self._clock)
        return WaitReporter(self._ledger, gate, self._out / self._run_id, self._emit, self._clock)

    def started(self) -> RunStarted:
        """Return the first event: how much there is to do."""
        planned = self._ledger.attempts()  # reading all of them finds a damaged ledger before anything else is asked
        ended = sum(each.state == "ended" for each in planned)
        return RunStarted(run_id=self._run_id, bundle=str(self._out / self._run_id), attempts=len(planned), ended=ended)

    def conduct(self, *, trust: bool = False) -> Path:
        """Run the missing attempts, commit the run, and return the path of its bundle. Can be resumed if interrupted.

        Raises `PlanUntrusted` unless the plan is the one that `create_run` recorded for this user; `trust` accepts the
        current plan. Raises `RunInterrupted` when `stop` is set.
        """
        run_dir = self._out / self._run_id
        with self._exclusive():
            if (run_dir / INDEX).exists():
                self._tidy_up()  # the last conductor was killed after the commit
                return run_dir
            refuse_to_share_on(self._engine, self._plan.isolation)
            self._require_known_plan(trust=trust)
            self._require_pinned()
            self._require_known_versions()
            refuse_secrets(self._plan, self._suite, os.environ)
            self._epoch = self._ledger.begin_epoch()
            redactor = redactor_of(self._plan, os.environ)
            expected = (self._plan.source_name, *_EXPECTED)
            for name in expected:  # written last, from the ledger: after a kill they are written again
                (run_dir / name).unlink(missing_ok=True)
            bundle = BundleWriter.take_over(
                self._out,
                self._run_id,
                released=True,  # this is the only conductor
                expected=expected,
                redactor=redactor,
                clock=self._clock,
            )
            try:
                self._run_attempts()
                self._write(bundle)
            except BaseException:
                bundle.abort()  # the run stays in progress, so that it can be resumed
                raise
            bundle.commit()
            self._tidy_up()
        return run_dir

    def _run_attempts(self) -> None:
        try:
            self._close_torn(alive=(), stopped=True)
            self._plan_retries()
            self._work()
        finally:
            self._crew.end()
            self._close_torn(alive=(), stopped=True)

    def _require_known_plan(self, *, trust: bool) -> None:
        digest = plan_digest(self._plan)
        if trust:
            consent.remember_plan(self._run_id, digest)
        elif not consent.knows_plan(self._run_id, digest):
            raise PlanUntrusted(
                f"the plan of {self._run_id} was not created here by you, or has changed since",
                op="suite",
                fix_hints=[
                    "start a new run: proofbox suite run FILE",
                    f"if you trust the plan: proofbox suite resume --trust {quote(str(self._out / self._run_id))}",
                ],
            )

    def _require_pinned(self) -> None:
        """Raise `RunMoved` if the copies of the suite's files are not where they were made: no attempt could start."""
        pinned = self._plan.pinned
        if pinned is None or Path(pinned).is_dir():
            return
        raise RunMoved(f"{self._out} was moved: the files of {self._run_id} are not in {pinned}", op="suite")

    def _require_known_versions(self) -> None:
        """Raise BundleSchemaUnknown if another version of proofbox began the run.

        One attempt is enough: all are checked before the commit, but then the missing ones have run for nothing.
        """
        ended = (each for each in self._ledger.attempts() if each.result is not None)
        as_committed(self._out / self._run_id, islice(ended, 1))

    def _tidy_up(self) -> None:
        """Clean up after the commit. Idempotent."""
        if self._ledger.get_value("committed") != "yes":
            consent.remember_run(self._run_id, artifacts.index_sha256(self._out / self._run_id))
            self._ledger.set_value("committed", "yes")
        work = self._out / WORK / self._run_id
        forget_workspaces(work, self._out / self._run_id)
        remove_tree(work)

    def close(self) -> None:
        self._ledger.close()

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(conductor_lock(self._out, self._run_id), wait=False))
            except BlockingIOError:
                raise RunBusy(f"another process is conducting {self._run_id}", op="suite") from None
            if not ledger_path(self._out, self._run_id).exists():
                raise RunUnknown(f"{self._run_id} was removed", op="suite")
            yield

    def _work(self) -> None:
        idle_deaths = 0
        counts = self._ledger.counts()
        while True:
            left = counts["planned"] + counts["claimed"]
            if not left:
                return self._crew.join()
            self._waiting.report(counts["claimed"], counts["ended"])
            self._emit.check()
            if self._stop.is_set():
                raise RunInterrupted(
                    f"{self._run_id} was stopped",
                    op="suite",
                    fix_hints=[f"resume with: proofbox suite resume {quote(str(self._out / self._run_id))}"],
                )
            self._crew.start_workers(left, self._epoch)
            died = self._crew.wait()
            self._close_torn(alive=self._crew)
            self._plan_retries()
            before, counts = counts, self._ledger.counts()
            idle_deaths = idle_deaths + died if counts == before else 0
            if idle_deaths > MAX_IDLE_DEATHS:
                raise WorkerLost("the workers die before they start an attempt; their output is above", op="suite")

    # Torn attempts and retries

    def _close_torn(self, alive: Iterable[str], *, stopped: bool = False) -> None:
        """End the attempts that no worker runs any more, with the evidence they left. Committed bundles count as is.

        `stopped`: the worker died together with this conductor or an earlier one.
        """
        for attempt in self._ledger.torn(alive):
            self._crew.kill(attempt.worker or "")  # it may be alive with an expired lease
            mine = self._ledger.take_over(attempt, f"{CONDUCTOR}-{self._epoch}", TAKEOVER_LEASE)
            path = self._out / self._run_id / attempt.path
            redactor = redactor_of(self._plan, os.environ)
            run_dir = self._out / self._run_id
            ended = close_torn(run_dir, self._run_id, attempt, redactor, self._clock, stopped=stopped)
            with_run = stopped and ended.infra in LOST
            self._ledger.end(mine, msgspec.structs.replace(ended, stopped=with_run))
            if not with_run:  # a run that was stopped says nothing about its strategy
                self._count(attempt, ended)
            remove_tree(self._out / WORK / self._run_id / "attempts" / path.name)
            fields = ("claimed", "verified", "infra", "reason")
            result = {name: getattr(ended, name) for name in fields}
            self._emit({"event": "ended", "attempt_id": attempt.id, "mission_id": attempt.mission, **result})

    def _count(self, attempt: Attempt, ended: Ended) -> None:
        # Without a strategy, no agent started.
        strategy = ended.strategy or self._plan.strategy or self._plan.parsed_chain().candidates[0].strategy
        bundle = self._out / self._run_id / attempt.path
        count_health(strategy, health_of(bundle, ended, is_retry=attempt.parent is not None), clock=self._clock)

    def _close_altered(self) -> None:
        """Fail the attempts that were mounted over a template that has changed since."""
        from proofbox.lab.run.template import altered_missions  # not for a committed run

        altered = altered_missions(self._out / WORK / self._run_id / TEMPLATES)
        for attempt in self._ledger.attempts():
            if attempt.mission not in altered or attempt.result is None or attempt.result.infra is not None:
                continue
            mine = self._ledger.reopen(attempt, f"{CONDUCTOR}-{self._epoch}", TAKEOVER_LEASE)
            redactor = redactor_of(self._plan, os.environ)
            ended = close_altered(self._out / self._run_id, self._run_id, attempt, redactor, self._clock)
            self._ledger.end(mine, ended)
            self._emit({"event": "ended", "attempt_id": attempt.id, "mission_id": attempt.mission, **ended.members})

    def _plan_retries(self) -> None:
        """Plan a retry for each infrastructure failure that is worth one, with the failed attempt as its parent."""
        for attempt in self._ledger.to_retry():
            line = self._lineage(attempt)
            if attempt.result is None or attempt.result.retry_after is None or not self._should_retry(line):
                continue
            root = line[0].id
            due = self._clock.now().timestamp() + pause([each.result for each in line])
            again = f"{root}.r{len(line)}"
            of = (attempt.mission, attempt.replicate, attempt.id)
            self._ledger.plan(PlannedAttempt(again, *of, due, attempt.lane, attempt.interrupt))

    def _lineage(self, attempt: Attempt) -> list[Attempt]:
        """Return the attempts at the same replicate, from the first to this one."""
        line = [attempt]
        while line[0].parent is not None:
            line.insert(0, self._ledger.attempt(line[0].parent))
        return line

    def _should_retry(self, line: list[Attempt]) -> bool:
        codes = [each.result.infra for each in line if each.result is not None]
        if codes[-1] in LOST:
            stopped = sum(each.result.stopped for each in line if each.result is not None)
            return sum(code in LOST for code in codes) - stopped <= MAX_LOST and stopped <= MAX_STOPPED
        return counted_tries([each.result for each in line]) <= self._plan.retries

    # Commit

    def _write(self, bundle: BundleWriter) -> None:
        self._close_altered()
        attempts = as_committed(self._out / self._run_id, self._ledger.attempts())
        suite = self._suite
        bundle.write_bytes(self._plan.source_name, self._plan.suite_source.encode(), schema_version=SUITE_SCHEMA)
        bundle.write_json(
            "environment.json",
            msgspec.to_builtins(
                RunEnvironment(
                    world=world(),
                    suite=SuiteNamed(suite.id, suite.sha256),
                    chain=ChainDecided(self._plan.chain, self._plan.chain_origin),
                    isolation=self._plan.isolation,
                    concurrency=self._plan.concurrency,
                    provider=self._plan.provider,
                    epochs=self._epoch,
                    inputs=self._plan.inputs,
                )
            ),
        )
        schedule = ScheduleLog(bundle.open_log(SCHEDULE), self._clock)
        for attempt in attempts:
            schedule.planned(attempt.id, attempt.path, parent=attempt.parent, at=_moment(attempt.planned_at))
        for attempt in attempts:
            schedule.started(attempt.id, at=_moment(attempt.claimed_at))
            if attempt.result is not None and attempt.result.index_sha256:
                schedule.finished(attempt.id, attempt.result.index_sha256, at=_moment(attempt.ended_at))
        schedule.close()
        summary = summarize(self._run_id, suite, attempts)
        bundle.write_json(SUMMARY, msgspec.to_builtins(summary))
        bundle.withhold_secrets()
        if summary.status != "ok":
            bundle.mark_partial("some attempts failed because of the infrastructure")


def refuse_to_share_on(engine: EngineSettings, isolation: Isolation) -> None:
    """Raise `UsageError` if attempts would share an agent process on a cluster."""
    if isolation == "shared" and not engine.is_local:
        hints = [
            "--engine local",
            "or start a run with a process per attempt: --isolation process (in a campaign, isolation of the flow)",
        ]
        raise UsageError("attempts on a cluster cannot share one agent process", op="suite", fix_hints=hints)


def _crew(out: Path, plan: Plan, engine: EngineSettings, ids: IdSource, tell: EventForwarder) -> Crew:
    if engine.is_local:
        return LocalCrew(out, plan, ids, tell)
    from proofbox.lab.run.crews.ray import RayCrew

    return RayCrew(out, plan, engine, ids, tell)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
