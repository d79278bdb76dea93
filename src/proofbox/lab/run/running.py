"""Runs a suite in one call: preflight, plan, conduct, read the results. `suite run` parses its flags and calls this.

The coroutines run the same functions in a thread, so that they never block the event loop.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Literal, ParamSpec, TypeVar

import anyio
import msgspec

from proofbox.agents.contract import AgentRuntime
from proofbox.agents.health.recommendation import default_chain
from proofbox.agents.registry import installed
from proofbox.agents.settings import RuntimeSettings, with_absolute_paths
from proofbox.agents.strategies import Chain, decide_chain, first_usable
from proofbox.config.engine import EngineSettings, chosen_engine
from proofbox.config.settings import Settings, load
from proofbox.core.ids import IdSource
from proofbox.core.plurals import counted
from proofbox.core.results import ErrorBody
from proofbox.errors import (
    EngineUnavailable,
    EvidenceIncomplete,
    ProofboxError,
    RunInterrupted,
    SuiteNotPassed,
    UsageError,
)
from proofbox.lab.attempt.sharing import refuse_to_share
from proofbox.lab.reports.results import RunResults, read_run
from proofbox.lab.reports.suite_run import SuiteRun, facts_of
from proofbox.lab.reports.totals import Totals, final_attempts, totals
from proofbox.lab.run.conductor import Conductor, create_run, refuse_to_share_on
from proofbox.lab.run.events import OnSuiteEvent, SuiteEvent
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import Plan, count_refused, find_run, is_conducted, ledger_path, refused_dir
from proofbox.lab.suite.reading import Suite
from proofbox.lab.suite.runnable import check_provider
from proofbox.lab.suite.spec import Isolation, verifiers_of

P = ParamSpec("P")
T = TypeVar("T")
_Path = str | os.PathLike[str]


def run_suite(
    spec: _Path,
    *,
    out: _Path = "out",
    strategies: str | Sequence[str] | None = None,
    concurrency: int = 4,
    isolation: Literal["process", "shared"] | None = None,
    engine: str | None = None,
    per_node: int | None = None,
    resources: Sequence[str] = (),
    provider: str | None = None,
    host_root: bool = False,
    build: bool = False,
    replicates: int | None = None,
    retries: int = 1,
    model: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    commands: Mapping[str, Sequence[str]] | None = None,
    settings: Mapping[str, Any] | None = None,
    missions: Sequence[str] = (),
    tags: Sequence[str] = (),
    trust: bool = False,
    on_event: OnSuiteEvent | None = None,
    stop: threading.Event | None = None,
) -> SuiteRun:
    """Run every mission of a suite, commit the evidence in `out`, and return the results.

    For example:

        run = proofbox.run_suite("suite.toml", strategies="codex_app_server!", concurrency=8)
        for attempt in run.attempts:
            print(attempt.attempt_id, attempt.claimed, attempt.verified, attempt.infra)

    `spec` is a suite file, or a directory of Harbor tasks. The keywords are the flags of `proofbox suite run`, with the
    same defaults. Missions that fail do not raise: the result's `ok` is False and its `error` says why. Whatever
    prevents the run from starting raises before anything is written.

    `commands` adds command lines as agents: `{"fast": ["my-agent", "--quick"]}` is the strategy `process.fast`, like a
    table `[runtimes.process.fast]`; `acp.fast` is one that speaks ACP. A single one is used without `strategies`.
    `settings` are settings of the runtimes, like `--set`.

    `build` builds the missing images of Harbor tasks, which runs the commands of their Dockerfiles in the engine.

    `engine` runs the attempts on a cluster: `ray:10.0.0.1:6379`, or `ray` for a private one on this machine.
    `concurrency` is then the total over all nodes, `per_node` the maximum on each, and `resources` what each attempt
    reserves there, such as `["memory=4g", "gpus=1"]`.

    `missions` (patterns for ids) and `tags` select missions. The run's suite then consists of these alone.

    `trust` consents to everything the suite asks for beyond the user's settings; without it, and without an earlier
    consent, such a suite raises `ConsentRequired`.

    `on_event` receives `RunStarted` and then a `SuiteEvent` for every change. It is called from other threads, one call
    at a time. If it raises, the run stops and the exception is raised here.

    After an exception, an interrupt, or `stop.set()` in another thread, which raises `RunInterrupted`, the committed
    attempts are kept and `resume_suite` runs the missing ones. In a running event loop, await `run_suite_async`.
    """
    from proofbox.lab.suite.opening import open_suite  # with the formats of other systems, which only a new run needs

    for name, value in (("concurrency", concurrency), ("replicates", replicates)):
        if value is not None and value < 1:
            raise UsageError(f"{name} must be at least 1", op="suite")
    if not os.fspath(out):  # an unset variable, not the current directory
        raise UsageError("out is empty", op="suite")
    place, to = Path(spec), Path(out)
    suite = open_suite(
        place, host_root=host_root, provider=provider, to_run=True, build=build, missions=missions, tags=tags
    )
    as_json = place.suffix == ".json" or place.is_dir() or bool(missions or tags)
    agents = _agents(commands or {})
    if strategies is None and len(agents) == 1:
        strategies = [f"{id}!" for id in agents]
    plan = prepare_run(
        suite,
        name=str(place),
        as_json=as_json,
        strategies=strategies,
        concurrency=concurrency,
        isolation=isolation,
        engine=chosen_engine(load(Path().resolve()).engine, engine, per_node, resources),
        provider=provider,
        replicates=replicates,
        retries=retries,
        flags={**(settings or {}), **_given(model=model, base_url=base_url, api_key_env=api_key_env)},
        tables=agents,
    )
    _refuse_unused(agents, plan.parsed_chain())
    create_run(plan, to, trust=trust)
    return conduct_run(to, plan.run_id, on_event, stop)


def _agents(commands: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Return the settings of each agent that is given by its command line, by strategy."""
    agents: dict[str, dict[str, Any]] = {}
    for name, command in commands.items():
        id = name if "." in name else f"process.{name}"
        if id in agents:
            raise UsageError(f"two commands are given for {id}", op="suite", fix_hints=["give each its own name"])
        agents[id] = {"command": list(command)}
    return agents


def _refuse_unused(agents: Iterable[str], chain: Chain) -> None:
    """Refuse a run that would use none of the agents that were given for it."""
    given = sorted(agents)
    if given and not {each.strategy for each in chain.candidates} & set(given):
        why = "a run uses one agent" if len(given) > 1 else f"the chain is {chain}"
        raise UsageError(
            f"no strategy selects a command that was given ({', '.join(given)}): {why}",
            op="suite",
            fix_hints=[f"--strategies {id}" for id in given],
        )


def prepare_run(
    suite: Suite,
    *,
    name: str,
    as_json: bool,
    strategies: str | Sequence[str] | None,
    concurrency: int,
    isolation: Isolation | None,
    engine: EngineSettings | None = None,
    provider: str | None,
    replicates: int | None,
    retries: int,
    flags: Mapping[str, Any],
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    run_id: str | None = None,
) -> Plan:
    """Return the plan of a run, after checking that a strategy of its chain is usable here. Nothing is written.

    `flags` and `tables` are settings of runtimes: of the whole chain, and of single runtimes in addition to the user's.
    """
    settings = load(Path().resolve())
    runtimes = merged_tables(settings, tables or {})
    chain = decide_chain(
        flag=strategies,
        spec=suite.fields.strategies or None,
        config=settings.strategies,
        default=lambda: default_chain(RuntimeSettings(runtimes, flags)),
    )
    plan = Plan(
        run_id=run_id or IdSource().new_id("run"),
        suite_name=name,
        suite_source=suite.source,
        suite_json=as_json,
        base=str(suite.base.resolve()),
        chain=str(chain),
        chain_origin=chain.origin,
        concurrency=concurrency,
        isolation=isolation or suite.fields.isolation,
        engine=engine or settings.engine or EngineSettings(),
        provider=provider,
        replicates=replicates,
        retries=max(0, retries),
        runtimes=runtimes,
        flags=dict(_given(**flags)),
    )
    _check_engine(plan)
    plan.runtime_settings().check(chain, installed())
    strategy, skipped = anyio.run(_preflight, plan)
    return msgspec.structs.replace(plan, strategy=strategy, skipped=skipped)


def merged_tables(settings: Settings, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the settings of runtimes as a plan stores them: those of `config.toml`, overridden by `tables`."""
    runtimes = with_absolute_paths(settings.runtimes, Path().resolve())
    for id, table in tables.items():
        runtimes[id] = runtimes.get(id, {}) | dict(table)
    return runtimes


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _check_engine(plan: Plan) -> None:
    if plan.engine.is_local:
        return
    from proofbox.lab.run.crews.cluster.connection import require_ray

    require_ray()
    refuse_to_share_on(plan.engine, plan.isolation)


def resume_suite(
    run: _Path = "out",
    *,
    engine: str | None = None,
    trust: bool = False,
    on_event: OnSuiteEvent | None = None,
    stop: threading.Event | None = None,
) -> SuiteRun:
    """Resume a run that was interrupted or killed: keep committed attempts, run the others, return the results.

    For example:

        run = proofbox.resume_suite("out")

    `run` is the run's directory, or an output directory, for its last run. The consent given when the run was planned
    still applies; `trust` accepts a plan that was made elsewhere, or changed since, which otherwise raises
    `PlanUntrusted`. `engine` replaces the one that the run was planned with. `on_event` and `stop` are as in
    `run_suite`.
    """
    return conduct_run(*find_run(Path(run)), on_event, stop, trust=trust, engine=engine)


def load_run(run: _Path = "out") -> SuiteRun:
    """Return the results of a run, or its progress so far.

    For example:

        run = proofbox.load_run("out")
        print(run.committed, run.totals.passed, "of", run.totals.results)

    `run` is the run's directory, or an output directory, for its last run. The results of a committed run are read from
    its evidence, which is checked completely: an attempt whose evidence is invalid has no result, and a ledger that
    contradicts the evidence is a finding.
    """
    out, run_id = find_run(Path(run))
    with Ledger(ledger_path(out, run_id), read_only=True) as ledger:
        found = read_run(out / run_id, ledger)
    suite = found.plan.suite()
    figures = totals(found.attempts)
    verifiable = any(
        each.expect.asks or any(verify.commands for _, verify in verifiers_of(each)) for each in suite.missions
    )
    error = _error(found, figures, out / run_id, verifiable=verifiable)
    refused = count_refused(out / run_id)
    return SuiteRun(
        ok=error is None,
        run_id=run_id,
        suite=suite.id,
        committed=found.committed,
        bundle=str(out / run_id),
        attempts=facts_of(found, out / run_id),
        totals=figures,
        findings=found.findings,
        not_comparable=suite.not_comparable,
        skipped=found.plan.skipped,
        isolation=found.plan.isolation,
        verifiable=verifiable,
        refused=refused,
        refused_bundles=str(refused_dir(out / run_id)) if refused else None,
        conducted=not found.committed and is_conducted(out, run_id),
        error=None if error is None else ErrorBody.of(error),
    )


async def _preflight(plan: Plan) -> tuple[str, dict[str, str]]:
    """Return the first usable strategy of the chain, and why the earlier ones are unusable. Check the provider's name.
    This runs before anything is written or started."""
    if plan.provider is not None:
        check_provider(plan.provider)

    async def found(runtime: AgentRuntime) -> str:
        if plan.isolation == "shared":
            refuse_to_share(runtime)
        return runtime.id

    strategy, considered = await first_usable(plan.parsed_chain(), installed(), found, settings=plan.runtime_settings())
    return strategy, {each.strategy: f"{each.reason} ({each.code})" for each in considered if each.code}


def conduct_run(
    out: Path,
    run_id: str,
    on_event: OnSuiteEvent | None,
    stop: threading.Event | None,
    *,
    trust: bool = False,
    engine: str | None = None,
    resume: str | None = None,
) -> SuiteRun:
    """Conduct a planned run to its end and return the results. `engine` overrides the plan's.

    `resume` says how to resume the run if the engine is not available. Default: with `suite resume`.
    """

    def forward(event: dict[str, Any]) -> None:
        if on_event is None:
            return
        try:
            typed = msgspec.convert({**event, "run_id": run_id}, SuiteEvent)
        except msgspec.ValidationError:
            return  # a line that something else wrote to a worker's stdout
        on_event(typed)

    conductor = Conductor(out, run_id, on_event=forward, stop=stop, engine=engine)
    try:
        if on_event is not None:
            on_event(conductor.started())
        conductor.conduct(trust=trust)
    except EngineUnavailable as error:  # the run is planned, so running the same command again would plan another one
        hint = resume or f"resume with: proofbox suite resume {quote(str(out / run_id))}"
        error.fix_hints = (*error.fix_hints, hint)
        raise
    finally:
        conductor.close()
    return load_run(out / run_id)


def _error(found: RunResults, figures: Totals, run: Path, *, verifiable: bool) -> ProofboxError | None:
    """Return why a run is not a success; None if it is one."""
    if not all(each.result is not None and each.result.verified == "passed" for each in final_attempts(found.attempts)):
        what = f"{figures.passed} of {figures.results} were verified as done"
        hint = f"see what happened: proofbox attempt explain ATTEMPT --run {quote(str(run))}"
        define = "define when a mission is done: verify.commands, or expect"
        return SuiteNotPassed(
            what if verifiable else f"{what}: nothing verifies these missions",
            op="suite",
            fix_hints=[hint] if verifiable else [define, hint],
        )
    if found.findings:
        first = found.findings[0]
        what = f"{counted(len(found.findings), 'finding')}, the first: {first.code} in {first.path}"
        return EvidenceIncomplete(what, op="suite")
    return None


# Coroutines


def in_thread(function: Callable[P, T], *, stoppable: bool, doc: str) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return a coroutine function that runs `function` in a thread, with its callback in the event loop.

    `stoppable`: cancelling sets the function's `stop`, and the coroutine ends after the function does.
    """

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # Commands, which are not coroutines, would load these for nothing.
        from anyio.from_thread import run_sync as run_in_loop
        from anyio.lowlevel import current_token
        from anyio.to_thread import run_sync

        options: dict[str, Any] = dict(kwargs)
        stop, ended = options.get("stop") or threading.Event(), threading.Event()
        begun = threading.Lock()  # taken by the thread or by a cancellation, whichever comes first
        if stoppable:
            options["stop"] = stop
        if (listener := options.get("on_event")) is not None:
            # By token, because the threads that read the workers' events are not anyio's.
            options["on_event"] = functools.partial(run_in_loop, listener, token=current_token())

        def work() -> T:
            if not begun.acquire(blocking=False):
                raise RunInterrupted("cancelled before it began", op="suite")
            try:
                return function(*args, **options)
            finally:
                ended.set()

        try:
            return await run_sync(work, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            if stoppable:
                stop.set()
            if stoppable and not begun.acquire(blocking=False):
                with anyio.CancelScope(shield=True):
                    await run_sync(ended.wait)
            raise

    call.__name__ = call.__qualname__ = f"{function.__name__}_async"
    call.__doc__ = doc
    return call


run_suite_async = in_thread(
    run_suite,
    stoppable=True,
    doc="""Run a suite like `run_suite`, without blocking the event loop.

    For example:

        run = await proofbox.run_suite_async("suite.toml", on_event=print)

    `on_event` is called in the event loop. If the task is cancelled, the workers are killed before the coroutine ends,
    and the run can be resumed.
    """,
)
resume_suite_async = in_thread(
    resume_suite,
    stoppable=True,
    doc="""Resume a run like `resume_suite`, without blocking the event loop.

    For example:

        run = await proofbox.resume_suite_async("out")

    `on_event` and cancellation work as in `run_suite_async`.
    """,
)
load_run_async = in_thread(
    load_run,
    stoppable=False,
    doc="""Return the results of a run like `load_run`, without blocking the event loop.

    For example:

        run = await proofbox.load_run_async("out")

    Cancelling it has no effect on the run.
    """,
)
