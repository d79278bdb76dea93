"""`runtime try` and `runtime fork`: give an agent in a box one prompt, and continue from one of its steps."""

from __future__ import annotations

import io
import shlex
import sys
import tomllib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
from cyclopts import Parameter

from proofbox.agents.contract import ApprovalRule
from proofbox.agents.environment import EnvironmentRecord
from proofbox.agents.events import ApprovalDecision, Event, FileChange, Message, Notice, Retrying, TokenUsage, ToolCall
from proofbox.agents.steps import Step
from proofbox.agents.strategies import CandidateResult
from proofbox.agents.trials.fork import fork_trial
from proofbox.agents.trials.result import CallMade, ForkedFrom, Status, Trial, TrialFailure, TrialRequest
from proofbox.agents.trials.trial import run_trial
from proofbox.cli import flags
from proofbox.cli.output import Document, show
from proofbox.cli.progress import watched
from proofbox.core.files.plain import open_plain
from proofbox.core.text import preview, printable
from proofbox.core.toml import parse_toml
from proofbox.core.words import counted
from proofbox.errors import NotFoundError, UsageError

LINE = 160
PROMPT_LIMIT = 4 << 20


@dataclass(frozen=True)
class TrialFlags:
    """Flags of a trial, whether new or forked from another trial."""

    prompt: Annotated[
        str | None,
        Parameter(name="--prompt", allow_leading_hyphen=True, help="The prompt; - reads it from stdin."),
    ] = None
    prompt_file: Annotated[Path | None, Parameter(name="--prompt-file", help="A file that contains the prompt.")] = None
    strategies: flags.Strategies = None
    provider: flags.Provider = None
    base_url: flags.BaseUrl = None
    model: flags.Model = None
    api_key_env: flags.ApiKeyEnv = None
    script: Annotated[
        Path | None, Parameter(name="--script", help="The script for the scripted agent: a TOML file.")
    ] = None
    command: Annotated[str | None, Parameter(name="--command", help="The command line for the process agent.")] = None
    set_: Annotated[
        tuple[str, ...],
        Parameter(name="--set", negative="", help="NAME=VALUE: a setting of the runtime; VALUE is TOML. Repeatable."),
    ] = ()
    timeout: Annotated[
        float | None, Parameter(name="--timeout", help="Kill the agent and its children after this many seconds.")
    ] = None
    stall_timeout: Annotated[
        float | None, Parameter(name="--stall-timeout", help="End the turn after this many seconds without activity.")
    ] = None
    out: Annotated[
        Path | None, Parameter(name="--out", help="A new directory for the record, which a fork can start from.")
    ] = None
    env: Annotated[
        tuple[str, ...],
        Parameter(name="--env", negative="", help="NAME or NAME=VALUE for the agent and its commands. Repeatable."),
    ] = ()
    grant: Annotated[
        tuple[str, ...],
        Parameter(
            name="--grant",
            negative="",
            help="A variable to pass by name that is withheld from boxes by default. Repeatable.",
        ),
    ] = ()
    approval: Annotated[
        tuple[str, ...],
        Parameter(
            name="--approval",
            negative="",
            allow_leading_hyphen=True,
            help="accept:PATTERN or decline:PATTERN for approval requests; the first match decides.",
        ),
    ] = ()
    no_sandbox: Annotated[
        bool, Parameter(name="--no-sandbox", negative="", help="Run the agent outside any box; the record says so.")
    ] = False

    def request(self, workspace: Path, box: flags.BoxFlags, required: tuple[str, ...] = ()) -> TrialRequest:
        return TrialRequest(
            prompt=_prompt(self.prompt, self.prompt_file),
            workspace=workspace,
            strategies=self.strategies,
            required=required,
            flags=self._settings(),
            provider=self.provider,
            policy=box.options(),
            env=self.env,
            grants=self.grant,
            approvals=_approvals(self.approval),
            sandboxed=not self.no_sandbox,
            timeout=_seconds(self.timeout),
            stall_timeout=_seconds(self.stall_timeout),
            out=self.out,
        )

    def _settings(self) -> dict[str, Any]:
        """Collect the runtime settings from flags and from --set."""
        settings: dict[str, Any] = {
            "base_url": self.base_url,
            "model": self.model,
            "api_key_env": self.api_key_env,
            "script": str(self.script.resolve()) if self.script is not None else None,
            "command": _words(self.command) if self.command is not None else None,
        }
        for each in self.set_:
            name, equals, value = each.partition("=")
            if not equals or not name:
                raise UsageError(
                    f"--set takes NAME=VALUE, not {each[:60]!r}", op="runtime", fix_hints=["--set retries=2"]
                )
            try:
                settings[name] = parse_toml(f"value = {value}")["value"]
            except tomllib.TOMLDecodeError:
                settings[name] = value  # not TOML: a bare word is a string
        return {name: value for name, value in settings.items() if value is not None}


NO_FLAGS = TrialFlags()
TrialArgs = Annotated[TrialFlags, Parameter(name="*")]


class TrialDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.trial/1"
    trial: str
    strategy: str
    version: str
    chain: tuple[CandidateResult, ...]
    status: Status
    """`completed`: the agent finished its turn, and its files are sealed. `interrupted`: the trial was stopped."""
    error: TrialFailure | None
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
    """The trial and step that it was forked from; null: not a fork."""
    runtime_reported: tuple[str, ...]

    @classmethod
    def of(cls, trial: Trial) -> TrialDocument:
        names = set(cls.__struct_fields__) & set(Trial.__struct_fields__)
        return cls(ok=trial.status == "completed", **{name: getattr(trial, name) for name in names})


def try_(
    *,
    trial: TrialArgs = NO_FLAGS,
    workspace: Annotated[
        Path, Parameter(name="--workspace", help="The directory the agent works on; its history is recorded.")
    ] = Path(),
    require: Annotated[
        tuple[str, ...],
        Parameter(name="--require", negative="", help="A capability that the strategy must have. Repeatable."),
    ] = (),
    box: flags.Box = flags.NO_BOX_FLAGS,
    json: flags.Json = False,
) -> int:
    """Give one prompt to an agent in a box over a workspace, and record every step. Exit code 1 if the turn fails.

    Without --strategies, the workspace's config.toml, then PROOFBOX_STRATEGIES decide; the default is scripted.

    For example:
      proofbox runtime try --strategies codex_app_server --prompt "fix the failing test" --workspace project --out t1
      proofbox runtime try --strategies scripted --script play.toml --prompt go --json
      proofbox runtime try --strategies process --command 'my-agent --quiet' --prompt-file task.md
    """
    return _run_and_show(partial(run_trial, trial.request(workspace, box, require)), json)


def fork(
    record: Annotated[Path, Parameter(help="The --out directory of a trial.")],
    /,
    *,
    step: Annotated[int, Parameter(name="--step", help="The step to continue from; 0 is the start of the trial.")],
    trial: TrialArgs = NO_FLAGS,
    workspace: Annotated[
        Path | None, Parameter(name="--workspace", help="The new workspace. Default: next to the record.")
    ] = None,
    trust: Annotated[
        bool,
        Parameter(name="--trust", negative="", help="Consent to what a record made elsewhere requests for its box."),
    ] = False,
    box: flags.Box = flags.NO_BOX_FLAGS,
    json: flags.Json = False,
) -> int:
    """Continue from a step of a recorded trial, with its files in a new workspace and the agent's thread.

    The fork is exact if the turn ended at that step. Within a turn, it uses the thread from before the turn, and the
    record says so. Strategy, settings and box are those of the trial unless a flag overrides them. If a record was made
    elsewhere, or changed since, what it requests beyond your own settings needs your consent (--trust).

    For example:
      proofbox runtime fork t1 --step 3 --prompt "now try it without the cache" --out t2
    """
    request = trial.request(workspace or _beside(record, step), box)
    return _run_and_show(partial(fork_trial, record, step, request, trust=trust), json)


def _run_and_show(run: Callable[..., Coroutine[Any, Any, Trial]], json: bool) -> int:
    progress = _progress if watched(as_json=json) else None
    trial = anyio.run(partial(run, on_event=progress))
    show(TrialDocument.of(trial), lambda: _summary(trial), as_json=json)
    return 0 if trial.status == "completed" else 1


async def _progress(event: Event) -> None:
    """Print one line per action as it happens, escaped: an agent's output could contain terminal control sequences."""
    match event:
        case ToolCall():
            end = event.status if event.exit_code is None else f"exit {event.exit_code}"
            line = f"{event.command if event.tool == 'command' else f'{event.tool} {event.command}'} → {end}"
        case FileChange():
            line = f"changed {', '.join(event.paths)}"
        case Message():
            line = f"says {event.text}"
        case ApprovalDecision():
            line = f"asked for {event.subject}: {event.answer} ({event.rule})"
        case Retrying() | Notice():
            line = event.message
        case _:
            return
    print(f"  {event.at_ms / 1000:7.1f} s  {_line(line)}", file=sys.stderr, flush=True)


def _line(text: str) -> str:
    return preview(printable(" ".join(text.split())), LINE)[0]


def _summary(trial: Trial) -> str:
    lines = [trial.final_message.strip(), ""] if trial.final_message.strip() else []
    amount = f"{counted(len(trial.tool_calls), 'tool call')}, {counted(len(trial.steps), 'step')}"
    lines.append(f"{trial.strategy} {trial.status}: {amount}")
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


def _prompt(text: str | None, file: Path | None) -> str:
    if (text is None) == (file is None):
        raise UsageError(
            "give one prompt, with --prompt or --prompt-file",
            op="runtime",
            fix_hints=['--prompt "fix the failing test"', "--prompt-file task.md", "read it from stdin: --prompt -"],
        )
    try:
        if file is not None:
            with io.TextIOWrapper(open_plain(file)) as source:
                found = source.read(PROMPT_LIMIT + 1)
        elif text == "-":
            found = sys.stdin.read(PROMPT_LIMIT + 1) if sys.stdin is not None else ""
        else:
            found = str(text)
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError(f"cannot read the prompt: {error}", op="runtime") from None
    if len(found) > PROMPT_LIMIT:
        raise UsageError(f"the prompt is longer than {PROMPT_LIMIT >> 20} Mi characters", op="runtime")
    return found


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(
            f"--command is not a valid command line: {error}", op="runtime", fix_hints=["--command 'my-agent task.md'"]
        ) from None


def _approvals(given: tuple[str, ...]) -> tuple[ApprovalRule, ...]:
    rules = []
    for number, each in enumerate(given, 1):
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
        raise UsageError("a timeout must be a positive number of seconds", op="runtime", fix_hints=["--timeout 600"])
    return value


def _beside(record: Path, step: int) -> Path:
    base = record.resolve()
    for number in range(1, 10_000):
        path = base.parent / f"{base.name}-step{step}{'' if number == 1 else f'-{number}'}"
        if not path.exists():
            return path
    raise UsageError("found no free name for the new workspace", op="runtime fork", fix_hints=["--workspace DIR"])
