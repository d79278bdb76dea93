"""`suite`: run missions from a file with any strategy in any sandbox, and record evidence that can be scored."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from proofbox.cli import flags, to_nowhere
from proofbox.cli.live import Progress
from proofbox.cli.output import READER_LEFT, Document, ErrorBody, Streamed, columns, show, write_json
from proofbox.cli.parameters import Parameter
from proofbox.cli.progress import watched
from proofbox.cli.schemas import json_schema
from proofbox.config.consent import Widening, agree, describe
from proofbox.core.ids import IdSource
from proofbox.core.text import printable
from proofbox.core.words import counted
from proofbox.errors import (
    ConsentRequired,
    EvidenceIncomplete,
    ProofboxError,
    RunInterrupted,
    SuiteInvalid,
    SuiteNotPassed,
    UsageError,
)
from proofbox.lab.reports.finding import EvidenceFinding
from proofbox.lab.reports.totals import Totals, final_attempts, totals
from proofbox.lab.run.ledger import Attempt, Ledger
from proofbox.lab.suite.problems import Problem
from proofbox.lab.suite.spec import SuiteDocument as SuiteFile

if TYPE_CHECKING:
    from proofbox.agents.contract import AgentRuntime
    from proofbox.lab.run.plan import Plan
    from proofbox.lab.suite.reading import Suite

SpecPath = Annotated[
    Path, Parameter(help="The suite file (TOML, or JSON by its suffix), or a directory of Harbor tasks.")
]
HostRoot = Annotated[
    bool,
    Parameter(
        name="--host-root",
        help="Run Harbor tasks in bubblewrap with this host's programs, not in their images. Not comparable.",
    ),
]
RunPath = Annotated[Path, Parameter(help="A run's directory, or an --out directory, for its last run.")]
Trust = Annotated[
    bool,
    Parameter(
        name="--trust",
        help="Consent to everything the suite asks for beyond your settings; `suite lint` lists it.",
    ),
]
SHOWN_IDS = 3
"""Maximum number of mission ids listed in one line."""
Jsonl = Annotated[bool, Parameter(name="--jsonl", help="Print events as they happen, one JSON object per line.")]


class LintDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.suite_lint/1"
    suite: str | None
    missions: int
    sha256: str | None
    """The digest of the suite's content, independent of its formatting; null: the suite is invalid."""
    problems: tuple[Problem, ...]
    notes: Mapping[str, tuple[str, ...]] = {}
    """For each mission written for another system, what is left out or done differently here."""
    warnings: Mapping[str, tuple[str, ...]] = {}
    """For each mission, how an agent could pass verification without doing the work."""
    widenings: tuple[Widening, ...] = ()
    """What the suite asks for beyond your settings. `suite run` needs your consent to it."""
    error: ErrorBody | None = None


class SchemaDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.suite_schema/1"
    json_schema: dict[str, Any]
    """The JSON Schema of suite files, in draft 2020-12."""


class AttemptFacts(msgspec.Struct, frozen=True):
    attempt_id: str
    mission_id: str
    replicate: int
    parent: str | None
    state: str
    """planned, claimed, preparing, running, stopping, verifying, committing or ended."""
    strategy: str | None
    claimed: str | None
    verified: str | None
    infra: str | None
    reason: str | None
    bundle: str

    @classmethod
    def of(cls, attempt: Attempt, run: Path) -> AttemptFacts:
        result = attempt.result
        return cls(
            attempt.id,
            attempt.mission,
            attempt.replicate,
            attempt.parent,
            attempt.phase if attempt.state == "claimed" else attempt.state,
            None if result is None else result.strategy,
            None if result is None else result.claimed,
            None if result is None else result.verified,
            None if result is None else result.infra,
            None if result is None else result.reason,
            str(run / attempt.path),
        )


class RunDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.suite_run/1"
    run_id: str
    suite: str
    committed: bool
    bundle: str
    attempts: tuple[AttemptFacts, ...]
    """From the bundles of a committed run, where an attempt with invalid evidence has no result; before that, from the
    ledger."""
    totals: Totals
    findings: tuple[EvidenceFinding, ...] = ()
    """For a committed run, the problems in its evidence, and where the ledger contradicts it."""
    not_comparable: Mapping[str, tuple[str, ...]] = {}
    """Missions whose results are not comparable with those of the system they were written for, and why."""
    skipped: Mapping[str, str] = {}
    """Strategies that came before the one that ran, and why they could not be used."""
    error: ErrorBody | None = None


class EventDocument(Streamed, frozen=True, kw_only=True):
    schema: str = "proofbox.suite_event/1"
    run_id: str
    event: str
    """A state of an attempt (preparing, running, stopping, verifying, committing, ended), activity, tokens, lost, or
    waiting: a rate limit, the delay before a retry, or a full disk prevents it from starting."""
    attempt_id: str
    mission_id: str
    activity: str | UnsetType = UNSET
    """For `activity`: the agent's current action."""
    tokens: int | UnsetType = UNSET
    """For `tokens`: tokens used so far."""
    claimed: str | UnsetType = UNSET
    """For `ended`, like the members below up to `strategy`: the agent's claim."""
    verified: str | UnsetType = UNSET
    infra: str | UnsetType | None = UNSET
    reason: str | UnsetType = UNSET
    strategy: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    """For `lost`: why the worker could not end the attempt. For `waiting`: for what, and until when."""
    until: str | UnsetType = UNSET
    """For `waiting`: until when, if known."""


def lint(spec: SpecPath, *, host_root: HostRoot = False, json: flags.Json = False) -> int:
    """Check a suite file or Harbor tasks and list every problem. Exit 1 on any problem.

    Also list everything it asks for beyond your settings: `suite run` needs your consent to that.

    For example:
      proofbox suite lint suite.toml
    """
    problems: tuple[Problem, ...] = ()
    suite, error = None, None
    try:
        suite = _read(spec, host_root=host_root)
    except SuiteInvalid as invalid:
        problems = msgspec.convert(invalid.details.get("problems", []), tuple[Problem, ...])
        error = ErrorBody.of(invalid)
    document = LintDocument(
        ok=suite is not None,
        suite=None if suite is None else suite.id,
        missions=0 if suite is None else len(suite.missions),
        sha256=None if suite is None else suite.sha256,
        problems=problems,
        notes=_notes(suite),
        warnings={} if suite is None else _warnings(suite),
        widenings=() if suite is None else _widenings(suite),
        error=error,
    )

    def text() -> str:
        if suite is not None:
            lines = [f"{spec}: suite {suite.id}, {counted(len(suite.missions), 'mission')}"]
            lines += [f"{id}: note: {note}" for id, notes in document.notes.items() for note in notes]
            lines += [f"{id}: warning: {each}" for id, found in document.warnings.items() for each in found]
            lines += [f"asks for {each}" for each in describe(document.widenings)]
            return printable("\n".join(lines))
        return printable("\n".join(f"{spec}:{problem}" for problem in problems) or str(error and error.message))

    show(document, text, as_json=json)
    return 0 if suite is not None else 1


def schema(*, json: flags.Json = False) -> int:
    """Print the JSON Schema of suite files, for editors that complete and check TOML.

    For example:
      proofbox suite schema > suite.schema.json
    """
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "proofbox suite"}
    found = {**dialect, **json_schema(SuiteFile)}
    show(
        SchemaDocument(json_schema=found),
        lambda: msgspec.json.format(msgspec.json.encode(found)).decode(),
        as_json=json,
    )
    return 0


def run(
    spec: SpecPath,
    *,
    out: Annotated[Path, Parameter(name="--out", converter=flags.place, help="The directory for the evidence.")] = Path(
        "out"
    ),
    strategies: flags.Strategies = None,
    concurrency: Annotated[int, Parameter(name=["-n", "--concurrency"], help="Maximum concurrent attempts.")] = 4,
    isolation: Annotated[
        Literal["process", "shared"] | None,
        Parameter(name="--isolation", help="One agent process per attempt, or one shared by all. Default: process."),
    ] = None,
    provider: flags.Provider = None,
    host_root: HostRoot = False,
    replicates: Annotated[
        int | None, Parameter(name="--replicates", help="Attempts per mission; overrides the suite.")
    ] = None,
    retries: Annotated[
        int, Parameter(name="--retries", help="Retries after infrastructure failures; failed missions are not retried.")
    ] = 1,
    model: flags.Model = None,
    base_url: flags.BaseUrl = None,
    api_key_env: flags.ApiKeyEnv = None,
    trust: Trust = False,
    jsonl: Jsonl = False,
    json: flags.Json = False,
) -> int:
    """Run every mission of a suite and commit the evidence. Exit 1 unless every mission was verified as done.

    A suite that asks for more than your settings allow (no sandbox, the network, variables, an image, files outside its
    directory) needs your consent: at a terminal you are asked, elsewhere --trust gives it. Your consent is recorded and
    needed again only if the suite asks for something new.

    A run that was interrupted or killed, or whose event reader exited (exit 141), can be resumed with `suite resume`.

    For example:
      proofbox suite run suite.toml --out out
      proofbox suite run suite.toml --strategies codex_app_server --provider bubblewrap -n 8 --replicates 5 --json
      proofbox suite run tasks/hello-world --strategies oracle
    """
    import anyio

    from proofbox.agents.registry import installed
    from proofbox.agents.settings import with_absolute_mounts
    from proofbox.agents.strategies import decide_chain
    from proofbox.config.settings import load
    from proofbox.lab.run.conductor import create_run
    from proofbox.lab.run.plan import Plan

    for name, value in (("-n", concurrency), ("--replicates", replicates)):
        if value is not None and value < 1:
            raise UsageError(f"{name} must be at least 1", op="suite")
    suite = _read(spec, host_root=host_root, provider=provider, to_run=True)
    settings = load(Path().resolve())
    given = {"model": model, "base_url": base_url, "api_key_env": api_key_env}
    given = {name: value for name, value in given.items() if value is not None}
    chain = decide_chain(flag=strategies, spec=suite.fields.strategies or None, config=settings.strategies)
    plan = Plan(
        run_id=IdSource().new_id("run"),
        suite_name=str(spec),
        suite_source=suite.source,
        suite_json=spec.suffix == ".json" or spec.is_dir(),
        base=str(suite.base.resolve()),
        chain=str(chain),
        chain_origin=chain.origin,
        concurrency=concurrency,
        isolation=isolation or suite.fields.isolation,
        provider=provider,
        replicates=replicates,
        retries=max(0, retries),
        runtimes=with_absolute_mounts(settings.runtimes, Path().resolve()),
        flags=given,
    )
    plan.runtime_settings().check(chain, installed())
    strategy, skipped = anyio.run(_preflight, plan)
    plan = msgspec.structs.replace(plan, strategy=strategy, skipped=skipped)
    try:
        create_run(plan, out, trust=trust)
    except ConsentRequired as required:
        if json or jsonl or not _consents(required):
            raise
        create_run(plan, out)
    return _conduct(out, plan.run_id, json=json, jsonl=jsonl)


def resume(
    run: RunPath = Path("out"),
    *,
    trust: Annotated[
        bool,
        Parameter(name="--trust", help="Run a plan that you did not make here, or that was changed since."),
    ] = False,
    jsonl: Jsonl = False,
    json: flags.Json = False,
) -> int:
    """Resume a run that was interrupted or killed: keep committed attempts and run the missing ones.

    The consent given when the run was planned still applies. A plan that was made elsewhere, or changed since, is
    refused without --trust.

    For example:
      proofbox suite resume out
    """
    from proofbox.lab.run.conductor import find_run

    out, run_id = find_run(run)
    return _conduct(out, run_id, json=json, jsonl=jsonl, trust=trust)


def report(run: RunPath = Path("out"), *, json: flags.Json = False) -> int:
    """Show the results of a run, or its progress. Exit 1 unless every mission was verified as done.

    The results of a committed run are read from its evidence, which is checked completely: an attempt whose evidence is
    invalid has no result, and a ledger that contradicts the evidence is a finding.

    For example:
      proofbox suite report out --json
    """
    from proofbox.lab.run.conductor import find_run

    out, run_id = find_run(run)
    return _show(out, run_id, json=json)


def _read(spec: Path, *, host_root: bool, provider: str | None = None, to_run: bool = False) -> Suite:
    """Read a suite file, or a directory of Harbor tasks."""
    from proofbox.lab.suite import reading
    from proofbox.lab.suite.harbor import tasks

    if not spec.is_dir():
        if host_root:
            raise UsageError("--host-root applies only to Harbor tasks, and this is a suite file", op="suite")
        return reading.read_suite(spec, unpacking=not to_run)
    required = "bubblewrap" if host_root else "docker"
    if provider not in (None, required):
        raise UsageError(
            f"Harbor tasks cannot run in {provider} here: they need docker, or bubblewrap with --host-root",
            op="suite",
            fix_hints=["omit --provider", "run with this host's programs, not comparable: --host-root"],
        )
    return tasks.read_tasks(spec, host_root=host_root, to_run=to_run)


def _notes(suite: Suite | None) -> dict[str, tuple[str, ...]]:
    found = {}
    for mission in () if suite is None else suite.missions:
        if mission.origin is not None:
            reasons = (f"not comparable: {each}" for each in mission.origin.not_comparable)
            found[mission.id] = (*reasons, *mission.origin.notes)
    return found


def _warnings(suite: Suite) -> dict[str, tuple[str, ...]]:
    from proofbox.lab.suite.files import SuiteFiles
    from proofbox.lab.suite.warnings import warnings_of

    with SuiteFiles(suite.base) as files:
        found = {mission.id: tuple(warnings_of(mission, files)) for mission in suite.missions}
    return {id: warnings for id, warnings in found.items() if warnings}


def _widenings(suite: Suite) -> tuple[Widening, ...]:
    from proofbox.lab.run.plan import box_settings
    from proofbox.lab.suite.files import SuiteFiles
    from proofbox.lab.suite.widening import widenings

    with SuiteFiles(suite.base) as files:
        return widenings(suite, files, box_settings(), provider=None)


def _consents(required: ConsentRequired) -> bool:
    """Ask for consent at a terminal, and record it for the list shown."""
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    widenings = msgspec.convert(required.details["widenings"], tuple[Widening, ...])
    path = required.details["path"]
    lines = [f"{path} asks for more than your settings allow:", *(f"  {each}" for each in describe(widenings))]
    print(printable("\n".join(lines)), file=sys.stderr)
    print("Allow this and run? The answer is remembered for this list. [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        return False
    agree(Path(path), widenings)
    return True


async def _preflight(plan: Plan) -> tuple[str, dict[str, str]]:
    """Return the first usable strategy of the chain, and why the earlier ones are unusable. Check the provider's name.
    This runs before anything is written or started."""
    from proofbox.agents.registry import installed
    from proofbox.agents.strategies import first_usable
    from proofbox.lab.attempt.sharing import refuse_to_share
    from proofbox.lab.suite.runnable import check_provider

    if plan.provider is not None:
        check_provider(plan.provider)

    async def found(runtime: AgentRuntime) -> str:
        if plan.isolation == "shared":
            refuse_to_share(runtime)
        return runtime.id

    strategy, considered = await first_usable(plan.parsed_chain(), installed(), found, settings=plan.runtime_settings())
    return strategy, {each.strategy: f"{each.reason} ({each.code})" for each in considered if each.code}


def _conduct(out: Path, run_id: str, *, json: bool, jsonl: bool, trust: bool = False) -> int:
    from proofbox.lab.run.conductor import Conductor
    from proofbox.lab.run.plan import ledger_path

    with Ledger(ledger_path(out, run_id)) as ledger:
        planned = ledger.attempts()
    with Progress(planned, shown=watched(as_json=json or jsonl)) as progress:

        def hear(event: dict[str, Any]) -> None:
            if jsonl:
                write_json(EventDocument(run_id=run_id, **event))
            progress.hear(event)
            if event["event"] == "waiting" and not jsonl and not progress.shown:
                print(printable(f"waiting: {event['message']}"), file=sys.stderr)

        conductor = Conductor(out, run_id, on_event=hear)
        try:
            conductor.conduct(trust=trust)
        except (KeyboardInterrupt, OSError) as error:  # OSError: the events cannot be written
            progress.close()
            resume_hint = f"resume with: proofbox suite resume {quote(str(out / run_id))}"
            with contextlib.suppress(OSError):
                print(f"interrupted; {resume_hint}", file=sys.stderr)
            if json and isinstance(error, KeyboardInterrupt):
                raise RunInterrupted(f"{run_id} was interrupted", op="suite", fix_hints=[resume_hint]) from None
            if not isinstance(error, BrokenPipeError):
                raise
            to_nowhere(1)
            return READER_LEFT  # unlike for a list (exit 0), the work is not done
        finally:
            conductor.close()
    return _show(out, run_id, json=json or jsonl)


def _show(out: Path, run_id: str, *, json: bool) -> int:
    from proofbox.lab.reports.results import read_run
    from proofbox.lab.run.plan import is_conducted, ledger_path

    with Ledger(ledger_path(out, run_id), read_only=True) as ledger:
        found = read_run(out / run_id, ledger)
    attempts, plan, committed = found.attempts, found.plan, found.committed
    suite = plan.suite()
    final = final_attempts(attempts)
    passed = all(each.result is not None and each.result.verified == "passed" for each in final)
    figures = totals(attempts)
    error: ProofboxError | None = None
    judged = any(each.verify.commands or each.expect.asks for each in suite.missions)
    if not passed:
        what = f"{figures.passed} of {figures.results} were verified as done"
        hint = f"see what happened: proofbox attempt explain ATTEMPT --run {quote(str(out / run_id))}"
        error = SuiteNotPassed(
            what if judged else f"{what}: nothing verifies these missions",
            op="suite",
            fix_hints=[hint] if judged else ["define when a mission is done: verify.commands, or expect", hint],
        )
    elif found.findings:
        error = EvidenceIncomplete(
            f"{counted(len(found.findings), 'finding')}, the first: {found.findings[0].code} in"
            f" {found.findings[0].path}",
            op="suite",
        )
    document = RunDocument(
        ok=error is None,
        run_id=run_id,
        suite=suite.id,
        committed=committed,
        bundle=str(out / run_id),
        attempts=tuple(AttemptFacts.of(each, out / run_id) for each in attempts),
        totals=figures,
        findings=found.findings,
        not_comparable=suite.not_comparable,
        skipped=plan.skipped,
        error=None if error is None else ErrorBody.of(error),
    )
    resume = f"proofbox suite resume {quote(document.bundle)}"
    state = "" if committed else "under way" if is_conducted(out, run_id) else f"not committed: {resume}"
    shared = plan.isolation == "shared"
    show(document, lambda: _text(document, attempts, state=state, shared=shared, judged=judged), as_json=json)
    return 0 if error is None else error.exit_code


def _text(document: RunDocument, attempts: Sequence[Attempt], *, state: str, shared: bool, judged: bool) -> str:
    rows: list[tuple[str, ...]] = [("ATTEMPT", "CLAIMED", "VERIFIED", "REASON", "INFRA", "STRATEGY")]
    for each in document.attempts:
        cells = (each.claimed, each.verified, each.reason or each.state, each.infra, each.strategy)
        rows.append((each.attempt_id, *(cell or "-" for cell in cells)))
    counted = document.totals
    lied = sum(
        each.result is not None and each.result.claimed == "success" and each.result.verified == "failed"
        for each in final_attempts(attempts)
    )
    lines = [
        columns(rows),
        "",
        f"{counted.passed} of {counted.results} verified as done"
        + (f"; {lied} claimed success and failed" if lied else "")
        + ("" if judged else ": nothing verifies these missions"),
    ]
    lines += [printable(f"{id} was skipped: {why}") for id, why in document.skipped.items()]
    if shared:
        lines.append("isolation: shared, so attempts could reach each other; the built-in policies do not promote it")
    by_reason: dict[tuple[str, ...], list[str]] = {}
    for id, reasons in document.not_comparable.items():
        by_reason.setdefault(reasons, []).append(id)
    for reasons, ids in by_reason.items():
        more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
        which = f"{', '.join(ids[:SHOWN_IDS])}{more} {'is' if len(ids) == 1 else 'are'}"
        lines.append(printable(f"{which} not comparable: {'; '.join(reasons)}"))
    lines += [printable(f"{each.code}: {each.path}: {each.detail}") for each in document.findings]
    lines.append(f"evidence: {document.bundle}" + (f" ({state})" if state else ""))
    if document.committed:
        lines.append(f"check it:  proofbox verify {quote(document.bundle)}")
    return "\n".join(lines)
