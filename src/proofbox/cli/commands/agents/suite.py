"""`suite`: run missions from a file with any strategy in any sandbox, and record evidence that can be scored."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from proofbox.cli import flags
from proofbox.cli.output import READER_LEFT, columns, show
from proofbox.cli.parameters import Parameter
from proofbox.core.plurals import counted
from proofbox.core.text import one_line, printable
from proofbox.errors import ConsentRequired, UsageError

if TYPE_CHECKING:
    from proofbox.lab.reports.suite_run import SuiteRun
    from proofbox.lab.reports.suite_status import SuiteStatus
    from proofbox.lab.run.events import OnSuiteEvent, RunStarted

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
_AGENT_NAME = re.compile(r"(?:(?:acp|process)\.)?[a-z0-9]+(?:[_-][a-z0-9]+)*")
Jsonl = Annotated[bool, Parameter(name="--jsonl", help="Print events as they happen, one JSON object per line.")]


def lint(spec: SpecPath, *, host_root: HostRoot = False, json: flags.Json = False) -> int:
    """Check a suite file or Harbor tasks and list every problem. Exit 1 on any problem.

    Also list everything it asks for beyond your settings: `suite run` needs your consent to that.

    For example:
      proofbox suite lint suite.toml
    """
    from proofbox.config.consent import describe
    from proofbox.lab.suite.linting import lint_suite

    found = lint_suite(spec, host_root=host_root)

    def text() -> str:
        if not found.ok:
            problems = "\n".join(f"{spec}:{each}" for each in found.problems)
            return printable(problems or str(found.error and found.error.message))
        lines = [f"{spec}: suite {found.suite}, {counted(found.missions, 'mission')}"]
        lines += [f"{id}: note: {note}" for id, notes in found.notes.items() for note in notes]
        lines += [f"{id}: warning: {each}" for id, warnings in found.warnings.items() for each in warnings]
        lines += [f"asks for {each}" for each in describe(found.widenings)]
        return printable("\n".join(lines))

    show(found, text, as_json=json)
    return 0 if found.ok else 1


def schema(*, json: flags.Json = False) -> int:
    """Print the JSON Schema of suite files, for editors that complete and check TOML.

    For example:
      proofbox suite schema > suite.schema.json
    """
    from proofbox.cli.commands.agents.documents import SchemaDocument
    from proofbox.cli.schemas import json_schema
    from proofbox.lab.suite.spec import SuiteDocument as SuiteFile

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
    engine: flags.Engine = None,
    per_node: flags.PerNode = None,
    resource: flags.Resource = (),
    provider: flags.Provider = None,
    host_root: HostRoot = False,
    build: Annotated[
        bool,
        Parameter(
            name="--build",
            help="Build missing images of Harbor tasks with the engine. This runs the commands of their Dockerfiles.",
        ),
    ] = False,
    replicates: Annotated[
        int | None, Parameter(name="--replicates", help="Attempts per mission; overrides the suite.")
    ] = None,
    retries: Annotated[
        int, Parameter(name="--retries", help="Retries after infrastructure failures; failed missions are not retried.")
    ] = 1,
    model: flags.Model = None,
    base_url: flags.BaseUrl = None,
    api_key_env: flags.ApiKeyEnv = None,
    mission: Annotated[
        tuple[str, ...],
        Parameter(name="--mission", help="Run only missions whose id matches this pattern, such as 'a*'. Repeatable."),
    ] = (),
    tag: Annotated[tuple[str, ...], Parameter(name="--tag", help="Run only missions with this tag. Repeatable.")] = (),
    command: Annotated[
        tuple[str, ...],
        Parameter(
            name="--command",
            help="NAME='PROGRAM ARGUMENT…': an agent, the strategy process.NAME. acp.NAME: one that speaks ACP. "
            "Repeatable.",
        ),
    ] = (),
    set_: flags.Settings = (),
    trust: Trust = False,
    view: Annotated[
        bool, Parameter(name="--view", help="Show the run in the browser while it runs; see `proofbox view`.")
    ] = False,
    jsonl: Jsonl = False,
    json: flags.Json = False,
) -> int:
    """Run every mission of a suite and commit the evidence. Exit 1 unless every mission was verified as done.

    A suite that asks for more than your settings allow (no sandbox, the network, variables, an image, files outside its
    directory) needs your consent. proofbox asks for it at a terminal; otherwise, pass --trust. Your consent is recorded
    and needed again only if the suite asks for something new.

    A run that was interrupted or killed, or whose event reader exited (exit 141), can be resumed with `suite resume`.

    For example:
      proofbox suite run suite.toml --out out
      proofbox suite run suite.toml --strategies codex_app_server --provider bubblewrap -n 8 --replicates 5 --json
      proofbox suite run suite.toml --engine ray:10.0.0.1:6379 -n 64 --per-node 8 --resource memory=4g
      proofbox suite run suite.toml --mission 'parser-*' --tag fast
      proofbox suite run suite.toml --command quick='my-agent --quick' --replicates 5
      proofbox suite run tasks/hello-world --strategies oracle --build
    """
    from proofbox.lab.run.running import run_suite

    def start(on_event: OnSuiteEvent) -> SuiteRun:
        return run_suite(
            spec,
            out=out,
            strategies=strategies,
            concurrency=concurrency,
            isolation=isolation,
            engine=engine,
            per_node=per_node,
            resources=resource,
            provider=provider,
            host_root=host_root,
            build=build,
            replicates=replicates,
            retries=retries,
            model=model,
            base_url=base_url,
            api_key_env=api_key_env,
            missions=mission,
            tags=tag,
            commands=_named_commands(command),
            settings=flags.runtime_settings(set_),
            trust=trust,
            on_event=on_event,
        )

    with _viewing(out) if view else contextlib.nullcontext():
        try:
            return _conduct(start, json=json, jsonl=jsonl)
        except ConsentRequired as required:
            if json or jsonl or not consents(required):
                raise
            return _conduct(start, json=json, jsonl=jsonl)


@contextlib.contextmanager
def _viewing(out: Path) -> Iterator[None]:
    """Serve the viewer during the run."""
    from proofbox.cli.commands.evidence.view import open_browser
    from proofbox.viewer.web.serve import serving

    out.mkdir(parents=True, exist_ok=True)
    with serving(out) as url:
        print(printable(f"showing {out}: {url}"), file=sys.stderr, flush=True)
        open_browser(url)
        yield
    print(printable(f"show it again: proofbox view {shlex.quote(str(out))}"), file=sys.stderr)


def _named_commands(given: tuple[str, ...]) -> dict[str, list[str]]:
    commands: dict[str, list[str]] = {}
    for name, words in map(_named_command, given):
        if name in commands:
            hints = ["give each command its own name"]
            raise UsageError(f"--command {name} is given twice", op="suite", fix_hints=hints)
        commands[name] = words
    return commands


def _named_command(text: str) -> tuple[str, list[str]]:
    name, equals, line = text.partition("=")
    try:
        words = shlex.split(line)
    except ValueError:
        words = []
    if not equals or not _AGENT_NAME.fullmatch(name) or not words:
        raise UsageError(
            f"--command {text[:80]!r} is not NAME=COMMAND",
            op="suite",
            fix_hints=["--command quick='my-agent --quick'", "names consist of lower-case letters, digits, - and _"],
        )
    return name, words


def resume(
    run: RunPath = Path("out"),
    *,
    engine: flags.OtherEngine = None,
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
    from proofbox.lab.run.running import resume_suite

    def start(on_event: OnSuiteEvent) -> SuiteRun:
        return resume_suite(run, engine=engine, trust=trust, on_event=on_event)

    return _conduct(start, json=json, jsonl=jsonl)


def status(run: RunPath = Path("out"), *, json: flags.Json = False) -> int:
    """Show a run's progress: which attempts are running, for how long, and where. Exit 1 if it was interrupted.

    The results are shown by `suite report`.

    For example:
      proofbox suite status out
    """
    from proofbox.lab.reports.suite_status import suite_status

    found = suite_status(run)
    show(found, lambda: _status_text(found), as_json=json)
    return 0 if found.ok else 1


def _status_text(found: SuiteStatus) -> str:
    begun = f"{len(found.running)} {'running' if found.ok else 'interrupted'}"
    lines = [f"{found.ended} ended, {begun}, {found.waiting} waiting"]
    if found.running:
        rows: list[tuple[str, ...]] = [("ATTEMPT", "STATE", "SECONDS", "NODE")]
        rows += [(each.attempt_id, each.state, f"{each.seconds:.0f}", each.node or "-") for each in found.running]
        lines += ["", columns(rows)]
    if found.nodes:
        nodes = [("NODE", "RUNNING", "STATE"), *((each.name, str(each.running), each.standing) for each in found.nodes)]
        lines += ["", columns(nodes)]
    state = "committed" if found.committed else "under way" if found.conducted else "interrupted"
    lines += ["", printable(f"evidence: {found.bundle} ({state})")]
    if found.refused:
        lines.append(f"{counted(found.refused, 'bundle')} from lost nodes came too late")
    if found.error is not None:
        lines += [printable(each) for each in found.error.fix_hints]
    return "\n".join(lines)


def report(run: RunPath = Path("out"), *, json: flags.Json = False) -> int:
    """Show the results of a run, or its progress. Exit 1 unless every mission was verified as done.

    The results of a committed run are read from its evidence, which is checked completely: an attempt whose evidence is
    invalid has no result, and a ledger that contradicts the evidence is a finding.

    For example:
      proofbox suite report out --json
    """
    from proofbox.lab.run.running import load_run

    return _show(load_run(run), json=json)


def consents(required: ConsentRequired) -> bool:
    """Ask for consent at a terminal, and record it for the list shown."""
    from proofbox.config.consent import Widening, agree, describe

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


def _conduct(conduct: Callable[[OnSuiteEvent], SuiteRun], *, json: bool, jsonl: bool) -> int:
    from proofbox.cli.live import following

    run: SuiteRun | None = None
    with following(_resume_hint, "suite", json=json, jsonl=jsonl) as on_event:
        run = conduct(on_event)
    return READER_LEFT if run is None else _show(run, json=json or jsonl)


def _resume_hint(started: RunStarted) -> str:
    return f"resume with: proofbox suite resume {shlex.quote(started.bundle)}"


def _show(run: SuiteRun, *, json: bool) -> int:
    show(run, lambda: _text(run), as_json=json)
    return 0 if run.ok else 1


def _text(run: SuiteRun) -> str:
    rows: list[tuple[str, ...]] = [("ATTEMPT", "CLAIMED", "VERIFIED", "REASON", "INFRA", "STRATEGY")]
    on_nodes = any(each.node for each in run.attempts)
    if on_nodes:
        rows[0] += ("NODE",)
    for each in run.attempts:
        cells = [each.claimed, each.verified, each.reason or each.state, each.infra, each.strategy]
        cells += [each.node] if on_nodes else []
        rows.append((each.attempt_id, *(cell or "-" for cell in cells)))
    lied = sum(each.claimed == "success" and each.verified == "failed" for each in run.final)
    lines = [
        columns(rows),
        "",
        f"{run.totals.passed} of {run.totals.results} verified as done"
        + (f"; {lied} claimed success and failed" if lied else "")
        + ("" if run.verifiable else ": nothing verifies these missions"),
    ]
    lines += [printable(f"{id} was skipped: {why}") for id, why in run.skipped.items()]
    if run.isolation == "shared":
        lines.append("isolation: shared, so attempts could reach each other; the built-in policies do not promote it")
    by_reason: dict[tuple[str, ...], list[str]] = {}
    for id, reasons in run.not_comparable.items():
        by_reason.setdefault(reasons, []).append(id)
    for reasons, ids in by_reason.items():
        more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
        which = f"{', '.join(ids[:SHOWN_IDS])}{more} {'is' if len(ids) == 1 else 'are'}"
        lines.append(printable(f"{which} not comparable: {'; '.join(reasons)}"))
    lines += [one_line(f"{each.code}: {each.path}: {each.detail}") for each in run.findings]
    if run.refused:
        counts = (
            f"{counted(run.refused, 'bundle')} from lost nodes came too late and {'does' if run.refused == 1 else 'do'}"
        )
        lines.append(printable(f"{counts} not count: {run.refused_bundles}"))
    resume = f"proofbox suite resume {shlex.quote(run.bundle)}"
    state = "" if run.committed else " (under way)" if run.conducted else f" (not committed: {resume})"
    lines.append(f"evidence: {run.bundle}{state}")
    if run.committed:
        lines.append(f"check it:  proofbox verify {shlex.quote(run.bundle)}")
    return "\n".join(lines)
