"""A script for the scripted agent: what it does in each turn, as data.

    [[step]]
    tool = "write_file"
    args = { path = "answer.txt", content = "42\\n" }

    [[step]]
    say = "done"

Each step does one thing:

    tool, args    a call of one of the workspace's tools, really made
    say, think    a message, a thought
    delay         seconds of waiting
    hear          wait until it is steered
    claim         a lie: report a tool call that was never made (command, exit_code, output)
    usage         report tokens (input_tokens, output_tokens)
    garbage       say something that means nothing
    fault         end the turn as failed: one of FAULTS, with retry_after or resets_at where they belong

A script with `[[turn]]` tables, each with its own `[[turn.step]]`, plays the n-th in a thread's n-th turn, and the last
one from then on; otherwise every turn plays the same steps. In texts and arguments `@{prompt}` is what was asked,
`@{turn}` the number of the turn in its thread, `@{heard}` what it was last steered by, and `@{history}` everything the
thread was told, one line each.
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
from proofbox.core.toml import parse_toml
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

FORMAT = "1"  # of the script: what the runtime calls its version
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
        """What a fault ends the turn with."""
        details = {name: value for name in ("retry_after", "resets_at") if (value := getattr(self, name)) is not None}
        return FAULTS[str(self.fault)](f"the script says so: {self.fault}", op="turn", details=details)


class ScriptTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    step: tuple[ScriptStep, ...] = ()


class AgentScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    step: tuple[ScriptStep, ...] = ()
    turn: tuple[ScriptTurn, ...] = ()

    @property
    def uses_tools(self) -> bool:
        return any(step.tool is not None for steps in (self.step, *(each.step for each in self.turn)) for step in steps)

    def steps_of(self, number: int) -> tuple[ScriptStep, ...]:
        """What is played in a thread's turn, counted from 1."""
        return self.turn[min(number, len(self.turn)) - 1].step if self.turn else self.step


# Without a script nothing is pretended.
SILENT = AgentScript((ScriptStep(say="There is no script to play, so nothing was done."),))

ACTIONS = ("tool", "say", "think", "delay", "hear", "claim", "usage", "garbage", "fault")


def read_script(said: str | Mapping[str, Any]) -> AgentScript:
    """A script from the path of a TOML file, or as a table. Raises `UsageError` that names the step."""
    if not said:
        return SILENT
    where = "the script"
    if isinstance(said, str):
        where, said = said, _load(Path(said))
    try:
        script = msgspec.convert(said, AgentScript)
    except msgspec.ValidationError as error:
        raise _wrong(where, str(error)) from None
    if script.step and script.turn:
        raise _wrong(where, "it has steps and turns; put the steps into a turn")
    for steps in [script.step, *(turn.step for turn in script.turn)]:
        for number, step in enumerate(steps, 1):
            if wrong := wrong_with(step):
                raise _wrong(f"{where}, step {number}", "; ".join(filter(None, (wrong.message, wrong.hint))))
    return script


class WrongStep(NamedTuple):
    """Why a step can't be played, and which of its fields says so."""

    field: str
    message: str
    hint: str = ""


def wrong_with(step: ScriptStep) -> WrongStep | None:
    """What the types can't say of it."""
    does = [name for name in ACTIONS if getattr(step, name) is not None]
    if len(does) != 1:
        return WrongStep(does[1] if does else "", f"it must do one thing, and does {', '.join(does) or 'none'}")
    if step.args and step.tool is None:
        return WrongStep("args", "args are for a tool")
    if step.delay is not None and not 0 <= step.delay <= 86_400:
        return WrongStep("delay", "a delay is from 0 to 86400 seconds")
    if step.fault is not None and step.fault not in (*FAULTS, STALL):
        return WrongStep("fault", f"there is no fault {step.fault[:60]!r}", nearest(step.fault, (*FAULTS, STALL)))
    return None


def filled(value: Any, places: Mapping[str, str]) -> Any:
    """The value with what `@{…}` stands for, in every text of it."""
    if isinstance(value, str):
        return _PLACE.sub(lambda match: places[match[1]], value)
    if isinstance(value, dict):
        return {name: filled(member, places) for name, member in value.items()}
    return [filled(member, places) for member in value] if isinstance(value, list | tuple) else value


def _load(path: Path) -> dict[str, Any]:
    try:
        data = read_plain(path, SIZE_LIMIT + 1)
        if len(data) > SIZE_LIMIT:
            raise _wrong(str(path), f"it is larger than {SIZE_LIMIT >> 20} MiB")
        return parse_toml(data.decode())
    except OSError as error:
        raise _wrong(str(path), f"it can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(str(path), f"it is no TOML: {error}") from None


def _wrong(where: str, what: str) -> UsageError:
    return UsageError(f"{where}: {what}", op="script", fix_hints=["see docs/agents.md for what a script may say"])
