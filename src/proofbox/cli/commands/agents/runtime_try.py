"""`runtime try`: give an agent in a box one prompt. Its flags are also those of `attempt fork`."""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from proofbox.cli import flags
from proofbox.cli.output import show
from proofbox.cli.parameters import Parameter
from proofbox.cli.progress import watched
from proofbox.core.plurals import counted
from proofbox.core.text import preview, printable
from proofbox.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from proofbox.agents.contract import ApprovalRule
    from proofbox.agents.events import Event
    from proofbox.lab.attempt.adhoc.request import AttemptOptions, AttemptRun

LINE = 160
PROMPT_LIMIT = 4 << 20


class AttemptFlags(msgspec.Struct, frozen=True):
    """Flags of an attempt made by hand, whether new or forked from another attempt."""

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
    command: Annotated[
        str | None, Parameter(name="--command", help="The command line of the agent, for process and acp.")
    ] = None
    set_: flags.Settings = ()
    timeout: Annotated[
        float | None, Parameter(name="--timeout", help="Kill the agent and its children after this many seconds.")
    ] = None
    stall_timeout: Annotated[
        float | None, Parameter(name="--stall-timeout", help="End the turn after this many seconds without activity.")
    ] = None
    out: Annotated[
        Path | None,
        Parameter(name="--out", help="A new directory for the evidence. Default: one in your state directory."),
    ] = None
    env: Annotated[
        tuple[str, ...],
        Parameter(name="--env", help="NAME or NAME=VALUE for the agent and its commands. Repeatable."),
    ] = ()
    grant: Annotated[
        tuple[str, ...],
        Parameter(
            name="--grant",
            help="A variable to pass by name that is withheld from boxes by default. Repeatable.",
        ),
    ] = ()
    approval: Annotated[
        tuple[str, ...],
        Parameter(
            name="--approval",
            allow_leading_hyphen=True,
            help="accept:PATTERN or decline:PATTERN for approval requests; the first match decides.",
        ),
    ] = ()
    no_sandbox: Annotated[
        bool, Parameter(name="--no-sandbox", help="Run the agent outside any box; the record says so.")
    ] = False

    @property
    def has_prompt(self) -> bool:
        return self.prompt is not None or self.prompt_file is not None

    def read_prompt(self) -> str:
        return _prompt(self.prompt, self.prompt_file)

    def options(self, box: flags.BoxFlags, required: tuple[str, ...] = (), *, json: bool) -> AttemptOptions:
        return {
            "strategies": self.strategies,
            "required": required,
            "settings": self._settings(),
            "provider": self.provider,
            "policy": box.options(),
            "env": self.env,
            "grants": self.grant,
            "approvals": _approvals(self.approval),
            "sandboxed": not self.no_sandbox,
            "timeout": _seconds(self.timeout),
            "stall_timeout": _seconds(self.stall_timeout),
            "out": self.out,
            "on_event": _progress if watched(as_json=json) else None,
        }

    def _settings(self) -> dict[str, Any]:
        """Collect the runtime settings from flags and from --set."""
        settings: dict[str, Any] = {
            "base_url": self.base_url,
            "model": self.model,
            "api_key_env": self.api_key_env,
            "script": str(self.script.resolve()) if self.script is not None else None,
            "command": _words(self.command) if self.command is not None else None,
        }
        settings |= flags.runtime_settings(self.set_)
        return {name: value for name, value in settings.items() if value is not None}


NO_FLAGS = AttemptFlags()
AttemptArgs = Annotated[AttemptFlags, Parameter(name="*")]


def try_(
    *,
    attempt: AttemptArgs = NO_FLAGS,
    workspace: Annotated[
        Path, Parameter(name="--workspace", help="The directory the agent works on; its history is recorded.")
    ] = Path(),
    require: Annotated[
        tuple[str, ...],
        Parameter(name="--require", help="A capability that the strategy must have. Repeatable."),
    ] = (),
    box: flags.Box = flags.NO_BOX_FLAGS,
    json: flags.Json = False,
) -> int:
    """Give one prompt to an agent in a box over a workspace, and record the attempt. Exit code 1 if the turn fails.

    Without --strategies, the workspace's config.toml, then PROOFBOX_STRATEGIES decide; the default is scripted. The
    evidence has the format of a suite's attempt: see `attempt explain`, `attempt diff` and `attempt fork`.

    For example:
      proofbox runtime try --strategies codex_app_server --prompt "fix the failing test" --workspace project --out t1
      proofbox runtime try --strategies scripted --script play.toml --prompt go --json
      proofbox runtime try --strategies process --command 'my-agent --quiet' --prompt-file task.md
    """
    from proofbox.lab.attempt.adhoc.run import run_attempt

    run = run_attempt(attempt.read_prompt(), workspace, **attempt.options(box, require, json=json))
    show(run, lambda: summary(run), as_json=json)
    return 0 if run.ok else 1


async def _progress(event: Event) -> None:
    """Print one line per action as it happens, escaped: an agent's output could contain terminal control sequences."""
    from proofbox.agents.events import ApprovalDecision, FileChange, Message, Notice, Retrying, ToolCall

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


def summary(run: AttemptRun) -> str:
    """Describe an attempt made by hand in a few lines."""
    lines = [run.final_message.strip(), ""] if run.final_message.strip() else []
    amount = f"{counted(len(run.tool_calls), 'tool call')}, {counted(len(run.steps), 'step')}"
    lines.append(f"{run.strategy} {run.status}: {amount}")
    if run.error is not None:
        lines += [f"error: {run.error.code}: {run.error.message}", *(f"  fix: {h}" for h in run.error.fix_hints)]
    lines += [f"skipped {each.strategy}: {each.reason}" for each in run.chain if each.code]
    lines += [f"integrity: {found.code}: {found.message}" for found in run.integrity]
    if run.fork is not None and not run.fork.exact:
        lines.append(f"fork: {run.fork.why}")
    if not run.session.get("sandboxed", True):
        lines.append("the agent ran outside any box")
    lines.append(f"files: {run.snapshot_before[:12]} → {run.snapshot_after[:12]} in {run.workspace}")
    lines.append(f"evidence: {run.bundle}")
    return printable("\n".join(lines))


def _prompt(text: str | None, file: Path | None) -> str:
    from proofbox.core.files.plain import open_plain

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
    from proofbox.agents.contract import ApprovalRule

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
