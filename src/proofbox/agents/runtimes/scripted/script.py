"""The format of scripts for the scripted agent: the steps of each turn, as data.

    [[step]]
    tool = "write_file"
    args = { path = "answer.txt", content = "42\\n" }

    [[step]]
    say = "done"

Each step does one thing:

    tool, args    call one of the workspace's tools
    say, think    report a message or reasoning
    delay         wait for a number of seconds
    hear          wait until the turn is steered
    claim         report a tool call that was not made (command, exit_code, output)
    usage         report token usage (input_tokens, output_tokens)
    garbage       report an unrecognized message
    fault         end the turn as failed: one of FAULTS, with retry_after or resets_at where they apply

In a script with `[[turn]]` tables, each with its own `[[turn.step]]` tables, a thread's n-th turn plays the n-th table;
the last table also serves all later turns. Without them, every turn plays the same steps. In texts and arguments,
`@{prompt}` stands for the prompt, `@{turn}` for the number of the turn in its thread, `@{heard}` for the latest
steering text, and `@{history}` for all prompts and steering texts of the thread, one per line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from proofbox.agents.events import TokenUsage
from proofbox.core.files.plain import read_plain
from proofbox.core.nearest import nearest
from proofbox.core.parsing.toml import parse_toml
from proofbox.errors import (
    AgentError,
    AuthFailed,
    ContextExceeded,
    ModelFailed,
    Overloaded,
    RateLimited,
    RuntimeCrashed,
    RuntimeProtocolError,
    StreamDisconnected,
    TransportBroken,
    UsageError,
    UsageLimited,
)

FORMAT = "1"  # version of the script format, reported as the runtime's version
STALL = "stall"
CRASH = "crash"
FAULTS: dict[str, type[AgentError]] = {
    CRASH: RuntimeCrashed,
    "stream_disconnect": StreamDisconnected,
    "transport": TransportBroken,
    "protocol": RuntimeProtocolError,
    "rate_limit": RateLimited,
    "usage_limit": UsageLimited,
    "overloaded": Overloaded,
    "auth": AuthFailed,
    "context_exceeded": ContextExceeded,
    "model_error": ModelFailed,
}
SIZE_LIMIT = 4 << 20
_PLACE = re.compile(r"@\{(prompt|turn|heard|history)\}")


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: str
    exit_code: int = 0
    output: str = ""


class ScriptStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tool: str | None = None
    args: dict[str, Any] = {}
    say: str | None = None
    think: str | None = None
    delay: float | None = None
    hear: bool | None = None
    claim: Claim | None = None
    usage: TokenUsage | None = None
    garbage: str | None = None
    fault: str | None = None
    retry_after: float | None = None
    resets_at: float | None = None

    def error(self) -> AgentError:
        """Return the error that a fault ends the turn with."""
        details = {name: value for name in ("retry_after", "resets_at") if (value := getattr(self, name)) is not None}
        return FAULTS[str(self.fault)](f"fault injected by the script: {self.fault}", op="turn", details=details)


class ScriptTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    step: tuple[ScriptStep, ...] = ()


class AgentScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    step: tuple[ScriptStep, ...] = ()
    turn: tuple[ScriptTurn, ...] = ()

    @property
    def uses_tools(self) -> bool:
        return any(step.tool is not None for steps in (self.step, *(each.step for each in self.turn)) for step in steps)

    def steps_of(self, number: int) -> tuple[ScriptStep, ...]:
        """Return the steps of a thread's turn; turns are numbered from 1."""
        return self.turn[min(number, len(self.turn)) - 1].step if self.turn else self.step


SILENT = AgentScript((ScriptStep(say="There is no script to play, so nothing was done."),))

ACTIONS = ("tool", "say", "think", "delay", "hear", "claim", "usage", "garbage", "fault")


def read_script(source: str | Mapping[str, Any]) -> AgentScript:
    """Read a script from the path of a TOML file or from a table. Raises `UsageError` that names the invalid step."""
    if not source:
        return SILENT
    where = "the script"
    if isinstance(source, str):
        where, source = source, _load(Path(source))
    try:
        script = msgspec.convert(source, AgentScript)
    except msgspec.ValidationError as error:
        raise _wrong(where, str(error)) from None
    if script.step and script.turn:
        raise _wrong(where, "it has both steps and turns; move the steps into a turn")
    for steps in [script.step, *(turn.step for turn in script.turn)]:
        for number, step in enumerate(steps, 1):
            if wrong := step_problem(step):
                raise _wrong(f"{where}, step {number}", "; ".join(filter(None, (wrong.message, wrong.hint))))
    return script


class StepProblem(NamedTuple):
    """Why a step is invalid, and the field that is wrong."""

    field: str
    message: str
    hint: str = ""


def step_problem(step: ScriptStep) -> StepProblem | None:
    """Return an error that the types can't express, or None if the step is valid."""
    actions = [name for name in ACTIONS if getattr(step, name) is not None]
    if len(actions) != 1:
        found = ", ".join(actions) or "none"
        return StepProblem(actions[1] if actions else "", f"a step must have exactly one action, found {found}")
    if step.args and step.tool is None:
        return StepProblem("args", "args requires tool")
    if step.delay is not None and not 0 <= step.delay <= 86_400:
        return StepProblem("delay", "delay must be between 0 and 86400 seconds")
    if step.fault is not None and step.fault not in (*FAULTS, STALL):
        return StepProblem("fault", f"unknown fault {step.fault[:60]!r}", nearest(step.fault, (*FAULTS, STALL)))
    return None


def filled(value: Any, places: Mapping[str, str]) -> Any:
    """Return the value with every `@{…}` placeholder in its texts replaced."""
    if isinstance(value, str):
        return _PLACE.sub(lambda match: places[match[1]], value)
    if isinstance(value, dict):
        return {name: filled(member, places) for name, member in value.items()}
    return [filled(member, places) for member in value] if isinstance(value, list | tuple) else value


def _load(path: Path) -> dict[str, Any]:
    try:
        data = read_plain(path, SIZE_LIMIT + 1)
        if len(data) > SIZE_LIMIT:
            raise _wrong(str(path), f"the file is larger than {SIZE_LIMIT >> 20} MiB")
        return parse_toml(data.decode())
    except OSError as error:
        raise _wrong(str(path), f"can't read the file: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(str(path), f"invalid TOML: {error}") from None


def _wrong(where: str, what: str) -> UsageError:
    return UsageError(f"{where}: {what}", op="script", fix_hints=["see docs/agents.md for the format of scripts"])
