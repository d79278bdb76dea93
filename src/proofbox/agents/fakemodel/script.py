"""The script of the fake model: directives in the prompt, or in a file of rules.

A directive is `[[verb …]]`. Each of the following directives is one response of the model, in the order written. The
model sends the next one when the agent returns the result of the previous one, and says "done" after the last:

    [[say TEXT]]          a message, which ends the turn
    [[run COMMAND]]       a command for the agent to run
    [[patch PATCH]]       a patch for the agent's own patch tool, if it has one
    [[call NAME JSON]]    a call of any other tool
    [[together N]]        before N of these: calls that the model requests in one response

The following directives modify the next response. With `times=N`, a fault occurs N times (default: always):

    [[wait SECONDS]]      wait first              [[usage input=N output=N cached=N reasoning=N]]
    [[think TEXT]]        a piece of reasoning    [[limits primary=PERCENT secondary=PERCENT resets=SECONDS]]
    [[http STATUS type=T message=M retry_after=S resets=S times=N]]     answer with this status
    [[fail CODE message=M times=N]]               the stream reports that the response failed; SAFETY: a blocked prompt
    [[drop before|mid times=N]]                   the connection breaks before or during the response
    [[idle SECONDS after=WORDS times=N]]          the stream pauses after some words of a message
    [[garbage times=N]]                           the response is not a stream of events

A prompt without directives is answered with one sentence. A rule supplies the directives for prompts that contain the
text `when`.

    [[rule]]
    when = "add a test"
    do = "[[run pytest -q]] [[say all green]]"
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from proofbox.core.parsing.toml import parse_toml
from proofbox.errors import UsageError

_DIRECTIVE = re.compile(r"\[\[\s*([a-z]+)(?:\s+(.*?))?\s*\]\]", re.DOTALL)
_ANSWERS = ("say", "run", "patch", "call")
_FAULTS = ("http", "fail", "drop", "idle", "garbage")
_MODIFIERS = ("wait", "usage", "limits", "think", "together", *_FAULTS)
ALWAYS = 10**9
DEFAULT_USAGE = {"input": 1000, "output": 50, "cached": 400, "reasoning": 10}


class ScriptEntry(msgspec.Struct, frozen=True):
    """A part of a conversation: text from the user or the model, or the outcome of a tool call."""

    kind: Literal["user", "assistant", "outcome"]
    text: str = ""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["http", "fail", "drop", "idle", "garbage"]
    value: str = ""
    """The HTTP status, the error's code, `before` or `mid`, or seconds."""
    times: int = ALWAYS
    type: str = ""
    message: str = ""
    retry_after: float | None = None
    resets: float | None = None
    after: int = 0
    """For `idle`: the number of words of the message that are sent first."""


class ScriptedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One response of the model, and the faults before it."""

    kind: Literal["say", "run", "patch", "call"] = "say"
    text: str = "done"
    tool: str = ""
    wait: float = 0.0
    think: str = ""
    usage: dict[str, int] = {}
    limits: dict[str, float] = {}
    faults: tuple[Fault, ...] = ()
    together: int = 1
    """How many responses, from this one on, are sent as one."""

    def pieces(self) -> list[str]:
        """Return the text as a stream sends it: word by word."""
        words = self.text.split(" ")
        return [word + " " * (at + 1 < len(words)) for at, word in enumerate(words)]


class ResponseRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    when: str
    do: str


class _Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: list[ResponseRule] = []


def load_rules(path: Path) -> list[ResponseRule]:
    try:
        return msgspec.convert(parse_toml(path.read_text("utf-8")), _Rules).rule
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: invalid rules for the fake model: {error}", op="fakemodel") from None


class ModelScript:
    def __init__(self, rules: Sequence[ResponseRule] = ()) -> None:
        self._rules = tuple(rules)

    def directives(self, prompt: str) -> str:
        """Return the text with the directives: the prompt itself, or those of the first matching rule."""
        return next((rule.do for rule in self._rules if rule.when in prompt), prompt)

    def answers(self, prompt: str) -> list[ScriptedResponse]:
        """Return all responses that a prompt asks for. Raises `UsageError` for an invalid directive."""
        found: list[ScriptedResponse] = []
        coming = ScriptedResponse()
        pending = False
        for verb, rest in _DIRECTIVE.findall(self.directives(prompt)):
            if verb in _ANSWERS:
                tool, text = rest.split(maxsplit=1) if verb == "call" and " " in rest else ("", rest)
                found.append(msgspec.structs.replace(coming, kind=verb, text=text, tool=tool))
                coming, pending = ScriptedResponse(), False
            elif verb in _MODIFIERS:
                coming, pending = _modified(coming, verb, rest), True
            else:
                raise UsageError(
                    f"unknown directive {verb!r} for the fake model",
                    op="fakemodel",
                    fix_hints=[f"known: {', '.join(_ANSWERS)}"],
                )
        if pending or not found:
            text = "done" if found or pending else f"I heard {len(prompt)} characters."
            found.append(msgspec.structs.replace(coming, text=text))
        return found


def _modified(answer: ScriptedResponse, verb: str, rest: str) -> ScriptedResponse:
    words = shlex.split(rest) if verb != "think" else []
    named = dict(word.split("=", 1) for word in words if "=" in word)
    plain = [word for word in words if "=" not in word]
    try:
        if verb == "think":
            return msgspec.structs.replace(answer, think=rest)
        if verb == "wait":
            return msgspec.structs.replace(answer, wait=float(plain[0]))
        if verb == "together":
            return msgspec.structs.replace(answer, together=max(int(plain[0]), 1))
        if verb == "usage":
            return msgspec.structs.replace(answer, usage={name: int(value) for name, value in named.items()})
        if verb == "limits":
            return msgspec.structs.replace(answer, limits={name: float(value) for name, value in named.items()})
        value = plain[0] if plain else ""
        fault = msgspec.convert({"kind": verb, "value": value, **named}, Fault, strict=False)
    except (ValueError, IndexError, msgspec.ValidationError) as error:
        raise UsageError(f"[[{verb} {rest[:80]}]] is invalid: {error}", op="fakemodel") from None
    return msgspec.structs.replace(answer, faults=(*answer.faults, fault))
