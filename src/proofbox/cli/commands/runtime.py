"""`runtime`: the agents that can be driven here, and one prompt to one of them."""

from __future__ import annotations

import shlex
import sys
import tomllib
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import msgspec
from cyclopts import Parameter

from proofbox.agents.conformance import CHECKS, RuntimeReport, run_conformance
from proofbox.agents.contract import ApprovalRule, Capabilities, RuntimeProbe
from proofbox.agents.environment import EnvironmentRecord
from proofbox.agents.events import Decision, Event, FileChange, Message, Notice, Retrying, TokenUsage, ToolCall
from proofbox.agents.forking import fork_trial
from proofbox.agents.outcome import CallMade, Failure, ForkedFrom, Status, Trial, TrialRequest
from proofbox.agents.registry import Registry, installed
from proofbox.agents.settings import RuntimeSettings
from proofbox.agents.steps import Step
from proofbox.agents.strategies import Considered, decide_chain
from proofbox.agents.trial import run_trial
from proofbox.cli.commands import flags
from proofbox.cli.output import Document, columns, show
from proofbox.core.text import preview, printable
from proofbox.errors import NotFoundError, StrategyUnavailable, UsageError
from proofbox.sandbox.config import load
from proofbox.sandbox.conformance.check import Result

LINE = 160

Prompt = Annotated[
    str | None, Parameter(name="--prompt", allow_leading_hyphen=True, help="What the agent is asked; - reads stdin.")
]
PromptFile = Annotated[Path | None, Parameter(name="--prompt-file", help="The same, from a file.")]
Timeout = Annotated[float | None, Parameter(name="--timeout", help="Seconds for the turn, then everything is ended.")]
Stall = Annotated[
    float | None, Parameter(name="--stall-timeout", help="Seconds without a sign of life that end the turn.")
]
Out = Annotated[Path | None, Parameter(name="--out", help="A new directory for the record; a fork needs one.")]
Require = Annotated[
    tuple[str, ...],
    Parameter(name="--require", negative="", help="A capability that the strategy must have. May be repeated."),
]
Env = Annotated[
    tuple[str, ...],
    Parameter(name="--env", negative="", help="NAME or NAME=VALUE for the agent and its commands. May be repeated."),
]
Grant = Annotated[
    tuple[str, ...],
    Parameter(name="--grant", negative="", help="A variable of yours that is else kept out of a box, by its name."),
]
Approval = Annotated[
    tuple[str, ...],
    Parameter(
        name="--approval",
        negative="",
        allow_leading_hyphen=True,
        help="accept:PATTERN or decline:PATTERN for what the agent asks leave for; the first that fits.",
    ),
]
Unboxed = Annotated[
    bool, Parameter(name="--no-sandbox", negative="", help="Run the agent outside any box; the record says so.")
]
ScriptFile = Annotated[Path | None, Parameter(name="--script", help="What scripted plays: a TOML file.")]
CommandLine = Annotated[str | None, Parameter(name="--command", help="What process runs: a command line.")]
Set = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set", negative="", help="NAME=VALUE, any setting of the runtime; VALUE is TOML. May be repeated."
    ),
]


class RuntimeFacts(msgspec.Struct, frozen=True, kw_only=True):
    strategy: str
    title: str
    available: bool
    compatible: bool
    version: str
    code: str
    reason: str
    fix_hints: tuple[str, ...]
    capabilities: Capabilities


class RuntimesDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.runtimes/1"
    runtimes: tuple[RuntimeFacts, ...]
    chain: str
    """What would be tried here without a flag."""
    chain_origin: str


class RuntimeCheckDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.runtime_check/1"
    strategy: str
    version: str
    capabilities: Capabilities
    passed: int
    failed: int
    results: tuple[Result, ...]


class TrialDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.trial/1"
    trial: str
    strategy: str
    version: str
    chain: tuple[Considered, ...]
    status: Status
    error: Failure | None
    final_message: str
    tool_calls: tuple[CallMade, ...]
    steps: tuple[Step, ...]
    usage: TokenUsage | None
    thread_id: str
    turn_id: str
    workspace: str
    snapshot_before: str
    snapshot_after: str
    session: dict[str, Any]
    environment: EnvironmentRecord
    integrity: tuple[dict[str, Any], ...]
    rate_windows: tuple[dict[str, Any], ...]
    duration_ms: float
    record: str | None
    fork: ForkedFrom | None
    runtime_reported: tuple[str, ...]

    @classmethod
    def of(cls, trial: Trial) -> TrialDocument:
        names = set(cls.__struct_fields__) & set(Trial.__struct_fields__)
        return cls(ok=trial.status == "completed", **{name: getattr(trial, name) for name in names})


def list_(*, project: flags.Project = Path(), json: flags.Json = False) -> int:
    """List the agent runtimes: what each can do, and whether it could be used here.

    For example:
      proofbox runtime list
      proofbox runtime list --json
    """
    found = runtimes(project)
    said = load(project.resolve())
    chain = decide_chain(config=said.strategies)
    document = RuntimesDocument(runtimes=found, chain=str(chain), chain_origin=chain.origin)
    show(document, lambda: _matrix(document), as_json=json)
    return 0


def check(
    strategy: Annotated[str, Parameter(help="The runtime's id.")],
    /,
    *,
    provider: flags.Provider = None,
    only: Annotated[
        tuple[str, ...], Parameter(name="--only", negative="", help="A check or a subject. May be repeated.")
    ] = (),
    json: flags.Json = False,
) -> int:
    """Check a runtime by driving it: the conformance suite that every runtime passes. Exit code 1 when one fails.

    For example:
      proofbox runtime check scripted
      proofbox runtime check process --provider bubblewrap --only turns
    """
    done = 0

    def tell(result: Result) -> None:
        nonlocal done
        done += 1
        if not json and sys.stderr.isatty():
            print(f"\r{done}/{len(CHECKS)} {result.check:<60}", end="", file=sys.stderr, flush=True)

    report = run_conformance(strategy, provider=provider, only=only or None, on_result=tell)
    if not json and sys.stderr.isatty():
        print("\r" + " " * 79 + "\r", end="", file=sys.stderr, flush=True)
    document = RuntimeCheckDocument(
        ok=report.ok,
        strategy=report.strategy,
        version=report.version,
        capabilities=report.capabilities,
        passed=len(report.of("passed")),
        failed=len(report.of("failed")),
        results=report.results,
    )
    show(document, lambda: _report(report), as_json=json)
    return 0 if report.ok else 1


def try_(
    *,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    workspace: Annotated[
        Path, Parameter(name="--workspace", help="The directory the agent works on; it gets a history.")
    ] = Path(),
    strategies: flags.Strategies = None,
    provider: flags.Provider = None,
    base_url: flags.BaseUrl = None,
    model: flags.Model = None,
    api_key_env: flags.ApiKeyEnv = None,
    script: ScriptFile = None,
    command: CommandLine = None,
    set_: Set = (),
    timeout: Timeout = None,
    stall_timeout: Stall = None,
    out: Out = None,
    require: Require = (),
    env: Env = (),
    grant: Grant = (),
    approval: Approval = (),
    no_sandbox: Unboxed = False,
    box: flags.Box = flags.ASKED_OF_THE_BOX,
    json: flags.Json = False,
) -> int:
    """Give one prompt to an agent in a box over a workspace, and tell every step. Exit code 1 when its turn failed.

    Without --strategies the workspace's config.toml, then PROOFBOX_STRATEGIES decide, and else the scripted agent.

    For example:
      proofbox runtime try --strategy codex_app_server --prompt "fix the failing test" --workspace project --out t1
      proofbox runtime try --strategy scripted --script play.toml --prompt go --json
      proofbox runtime try --strategy process --command 'my-agent --quiet' --prompt-file task.md
    """
    request = TrialRequest(
        prompt=_prompt(prompt, prompt_file),
        workspace=workspace,
        strategies=strategies,
        required=require,
        flags=_flags(base_url, model, api_key_env, script, command, set_),
        provider=provider,
        policy=box.options(),
        env=env,
        grants=grant,
        approvals=_approvals(approval),
        sandboxed=not no_sandbox,
        timeout=_seconds(timeout),
        stall_timeout=_seconds(stall_timeout),
        out=out,
    )
    return _tell(partial(run_trial, request), json)


def fork(
    record: Annotated[Path, Parameter(help="The --out of a trial.")],
    /,
    *,
    step: Annotated[int, Parameter(name="--step", help="The step to go on from; 0 is the trial's beginning.")],
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    workspace: Annotated[
        Path | None, Parameter(name="--workspace", help="The new workspace. Default: beside the record.")
    ] = None,
    strategies: flags.Strategies = None,
    provider: flags.Provider = None,
    base_url: flags.BaseUrl = None,
    model: flags.Model = None,
    api_key_env: flags.ApiKeyEnv = None,
    script: ScriptFile = None,
    command: CommandLine = None,
    set_: Set = (),
    timeout: Timeout = None,
    stall_timeout: Stall = None,
    out: Out = None,
    env: Env = (),
    grant: Grant = (),
    approval: Approval = (),
    no_sandbox: Unboxed = False,
    box: flags.Box = flags.ASKED_OF_THE_BOX,
    json: flags.Json = False,
) -> int:
    """Go on from a step of a recorded trial: its files in a new workspace, and the agent's thread with them.

    Exact where the turn ended at that step; within a turn the thread is the one before it, and the record says so.
    Strategy, settings and box are those of the trial, where no flag says otherwise.

    For example:
      proofbox runtime fork t1 --step 3 --prompt "now try it without the cache" --out t2
    """
    request = TrialRequest(
        prompt=_prompt(prompt, prompt_file),
        workspace=workspace or _beside(record, step),
        strategies=strategies,
        flags=_flags(base_url, model, api_key_env, script, command, set_),
        provider=provider,
        policy=box.options(),
        env=env,
        grants=grant,
        approvals=_approvals(approval),
        sandboxed=not no_sandbox,
        timeout=_seconds(timeout),
        stall_timeout=_seconds(stall_timeout),
        out=out,
    )
    return _tell(partial(fork_trial, record, step, request), json)


def runtimes(project: Path, registry: Registry | None = None) -> tuple[RuntimeFacts, ...]:
    """Every runtime there is, and whether it could be used with the settings of this project."""
    registry = registry or installed()
    settings = RuntimeSettings(load(project.resolve()).runtimes)

    async def look() -> tuple[RuntimeFacts, ...]:
        return tuple([await _look(strategy, registry, settings) for strategy in registry.ids])

    return anyio.run(look)


async def _look(strategy: str, registry: Registry, settings: RuntimeSettings) -> RuntimeFacts:
    title, capabilities = "", Capabilities(supports_thread_start=False)
    try:
        runtime = registry.runtime(strategy)
        title, capabilities = runtime.title, runtime.capabilities
        probe = await runtime.probe(settings(runtime))
    except (StrategyUnavailable, UsageError) as error:
        probe = RuntimeProbe(
            strategy=strategy, available=False, code=error.code, reason=error.message, fix_hints=error.fix_hints
        )
    return RuntimeFacts(
        strategy=strategy,
        title=title,
        available=probe.available,
        compatible=probe.compatible,
        version=probe.version,
        code=probe.code,
        reason=probe.reason,
        fix_hints=probe.fix_hints,
        capabilities=capabilities,
    )


def _tell(run: Callable[..., Coroutine[Any, Any, Trial]], json: bool) -> int:
    progress = None if json or not sys.stderr.isatty() else _progress
    trial = anyio.run(partial(run, on_event=progress))
    show(TrialDocument.of(trial), lambda: _story(trial), as_json=json)
    return 0 if trial.status == "completed" else 1


async def _progress(event: Event) -> None:
    """One line for each thing done, as it is done. What the agent wrote is hostile to a terminal."""
    match event:
        case ToolCall():
            end = event.status if event.exit_code is None else f"exit {event.exit_code}"
            line = f"{event.command if event.tool == 'command' else f'{event.tool} {event.command}'} → {end}"
        case FileChange():
            line = f"changed {', '.join(event.paths)}"
        case Message():
            line = f"says {event.text}"
        case Decision():
            line = f"asked for {event.subject}: {event.answer} ({event.rule})"
        case Retrying() | Notice():
            line = event.message
        case _:
            return
    print(f"  {event.at_ms / 1000:7.1f} s  {_line(line)}", file=sys.stderr, flush=True)


def _line(text: str) -> str:
    return preview(printable(" ".join(text.split())), LINE)[0]


def _story(trial: Trial) -> str:
    lines = [trial.final_message.strip(), ""] if trial.final_message.strip() else []
    lines.append(f"{trial.strategy} {trial.status}: {len(trial.tool_calls)} tool calls, {len(trial.steps)} steps")
    if trial.error is not None:
        lines += [f"error: {trial.error.code}: {trial.error.message}", *(f"  fix: {h}" for h in trial.error.fix_hints)]
    lines += [f"skipped {each.strategy}: {each.reason}" for each in trial.chain if each.code]
    lines += [f"integrity: {found['code']}: {found['message']}" for found in trial.integrity]
    if trial.fork is not None and not trial.fork.exact:
        lines.append(f"fork: {trial.fork.why}")
    if not trial.session.get("sandboxed", True):
        lines.append("the agent ran outside any box")
    lines.append(f"files: {trial.snapshot_before[:12]} → {trial.snapshot_after[:12]} in {trial.workspace}")
    if trial.record is not None:
        lines.append(f"record: {trial.record}")
    return printable("\n".join(lines))


def _matrix(document: RuntimesDocument) -> str:
    names = Capabilities.__struct_fields__
    rows = [("", *(each.strategy for each in document.runtimes))]
    rows += [
        (
            name.removeprefix("supports_"),
            *("yes" if getattr(each.capabilities, name) else "-" for each in document.runtimes),
        )
        for name in names
    ]
    rows.append(("version", *(each.version or "-" for each in document.runtimes)))
    usable = ("yes" if each.available and each.compatible else "no" for each in document.runtimes)
    rows.append(("usable here", *usable))
    notes = [
        f"{each.strategy}: {line}"
        for each in document.runtimes
        if not (each.available and each.compatible)
        for line in (each.reason, *(f"  fix: {hint}" for hint in each.fix_hints))
    ]
    notes.append(f"tried without --strategies: {document.chain} (from {document.chain_origin})")
    return columns(rows) + "\n\n" + printable("\n".join(notes))


def _report(report: RuntimeReport) -> str:
    passed, failed = len(report.of("passed")), report.of("failed")
    lines = [f"{report.strategy} {report.version}: {passed} of {passed + len(failed)} checks passed"]
    lines += [f"FAILED {result.check}: {result.detail}" for result in failed]
    others = [*report.of("not_applicable"), *report.of("not_checked")]
    lines += [f"{result.outcome} {result.check}: {result.detail}" for result in others]
    return printable("\n".join(lines))


def _prompt(text: str | None, file: Path | None) -> str:
    if (text is None) == (file is None):
        raise UsageError(
            "a prompt is needed, by --prompt or by --prompt-file",
            op="runtime",
            fix_hints=['--prompt "fix the failing test"', "--prompt-file task.md", "--prompt - reads stdin"],
        )
    try:
        if file is not None:
            return file.read_text()
        if text == "-":
            return sys.stdin.read() if sys.stdin is not None else ""
        return str(text)
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError(f"the prompt can't be read: {error}", op="runtime") from None


def _flags(
    base_url: str | None,
    model: str | None,
    api_key_env: str | None,
    script: Path | None,
    command: str | None,
    more: tuple[str, ...],
) -> dict[str, Any]:
    said: dict[str, Any] = {
        "base_url": base_url,
        "model": model,
        "api_key_env": api_key_env,
        "script": str(script.resolve()) if script is not None else None,
        "command": shlex.split(command) if command is not None else None,
    }
    for each in more:
        name, equals, value = each.partition("=")
        try:
            said[name] = tomllib.loads(f"value = {value}")["value"] if equals and name else _no_value(each)
        except tomllib.TOMLDecodeError:
            said[name] = value  # a bare word is a string, as on any command line
    return {name: value for name, value in said.items() if value is not None}


def _no_value(text: str) -> Any:
    raise UsageError(f"--set takes NAME=VALUE, not {text[:60]!r}", op="runtime", fix_hints=["--set retries=2"])


def _approvals(said: tuple[str, ...]) -> tuple[ApprovalRule, ...]:
    rules = []
    for number, each in enumerate(said, 1):
        answer, colon, pattern = each.partition(":")
        if answer not in ("accept", "decline") or not colon or not pattern:
            raise UsageError(
                f"--approval takes accept:PATTERN or decline:PATTERN, not {each[:60]!r}",
                op="runtime",
                fix_hints=["--approval 'accept:git status*' --approval 'decline:*'"],
            )
        rules.append(ApprovalRule(answer=answer, command=pattern, name=f"flag-{number}"))
    return tuple(rules)


def _seconds(value: float | None) -> float | None:
    if value is not None and not 0 < value < 10_000_000:
        raise UsageError("a timeout is a positive number of seconds", op="runtime", fix_hints=["--timeout 600"])
    return value


def _beside(record: Path, step: int) -> Path:
    base = record.resolve()
    for number in range(1, 10_000):
        path = base.parent / f"{base.name}-step{step}{'' if number == 1 else f'-{number}'}"
        if not path.exists():
            return path
    raise UsageError("no free name for the new workspace", op="runtime fork", fix_hints=["--workspace DIR"])
