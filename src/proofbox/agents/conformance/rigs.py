"""The rigs of the built-in runtimes. Other runtimes provide a rig with the method `conformance_rig()`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from proofbox.agents.conformance.rig import (
    Act,
    Fail,
    Hang,
    Recall,
    ReportSteering,
    ReportUsage,
    Rig,
    Run,
    Say,
    Scene,
    WriteGarbage,
)
from proofbox.agents.contract import AgentRuntime
from proofbox.errors import UsageError
from proofbox.sandbox.conformance.check import NotApplicable


def rig_for(runtime: AgentRuntime) -> Rig:
    if runtime.id in ("acp", "codex_app_server", "claude_code"):
        from proofbox.agents.conformance.model_rigs import MODEL_RIGS  # imports an HTTP server

        return MODEL_RIGS[runtime.id]()
    if runtime.id in RIGS:
        return RIGS[runtime.id]()
    own = getattr(runtime, "conformance_rig", None)
    if own is None:
        raise UsageError(
            f"{runtime.id} can't be checked: it has no rig",
            op="runtime check",
            fix_hints=["add a method conformance_rig() to the runtime: see docs/guides/add-a-runtime.md"],
        )
    rig: Rig = own()
    return rig


class ScriptedRig:
    """Plays scenes as scripts."""

    @contextlib.asynccontextmanager
    async def stage(self, scenes: Sequence[Scene], scratch: Path) -> AsyncIterator[Mapping[str, Any]]:
        del scratch
        yield {"script": {"turn": [{"step": [step for act in scene for step in _steps(act)]} for scene in scenes]}}


def _steps(act: Act) -> list[dict[str, Any]]:
    match act:
        case Run(command):
            return [{"tool": "run_command", "args": {"command": command}}]
        case Say(text):
            return [{"say": text}]
        case Recall():
            return [{"say": "@{history}"}]
        case ReportSteering():
            return [{"hear": True}]
        case Hang():
            return [{"fault": "stall"}]
        case Fail():
            return [{"fault": "model_error"}]
        case WriteGarbage():
            return [{"garbage": "\x1b]0;\ufffd no such thing \u202e"}]
        case ReportUsage(input_tokens, output_tokens):
            return [{"usage": {"input_tokens": input_tokens, "output_tokens": output_tokens}}]


# A small agent for any sh, because not every box has Python. It keeps no threads, so it counts the turns of its box.
_AGENT = """\
prompt=$(cat)
turns=$(cat /tmp/turns 2>/dev/null || echo 0)
echo $((turns + 1)) > /tmp/turns
n=0
run() {
  n=$((n + 1)); out=$(sh -c "$2" 2>&1); code=$?
  printf '{"type":"tool_call","id":"call-%s","command":%s,"exit_code":%s,"output":"%s"}\\n' "$n" "$1" "$code" "$out"
}
"""


class ProcessRig:
    """Plays scenes with a program that prints JSON lines."""

    @contextlib.asynccontextmanager
    async def stage(self, scenes: Sequence[Scene], scratch: Path) -> AsyncIterator[Mapping[str, Any]]:
        del scratch
        plays = ["\n".join(_shell(act) for act in scene) for scene in scenes]
        cases = [f"{number}) {observed};;" for number, observed in enumerate(plays[:-1])]
        script = _AGENT + "\n".join(["case $turns in", *cases, f"*) {plays[-1]};;", "esac", ""])
        yield {"command": ["sh", "-c", script], "output": "jsonl"}


def _shell(act: Act) -> str:
    match act:
        case Run(command):
            return f"run {_quoted(json.dumps(command))} {_quoted(command)}"
        case Say(text):
            return f"printf '%s\\n' {_quoted(json.dumps({'type': 'message', 'text': text}))}"
        case Recall():
            return """printf '{"type":"message","text":"%s"}\\n' "$prompt\""""
        case ReportSteering():
            return ":"  # steering is not supported, so the check ends before this
        case Hang():
            return "exec sleep 300"
        case Fail():
            return "echo 'it went wrong' >&2; exit 3"
        case WriteGarbage():
            lines = r"""\033]0;\377\n{"type":"no_such_thing"}\n[1,2\n\n{"type":"tool_call","exit_code":"x"}\n"""
            return f"printf '{lines}'"
        case ReportUsage(input_tokens, output_tokens):
            line = {"type": "usage", "input_tokens": input_tokens, "output_tokens": output_tokens}
            return f"printf '%s\\n' {_quoted(msgspec.json.encode(line).decode())}"


class NopRig:
    """Plays only empty scenes."""

    @contextlib.asynccontextmanager
    async def stage(self, scenes: Sequence[Scene], scratch: Path) -> AsyncIterator[Mapping[str, Any]]:
        del scratch
        if any(scenes):
            raise NotApplicable("nop does nothing")
        yield {}


class OracleRig:
    """Plays one scene as a solution, which runs commands and sends no messages."""

    @contextlib.asynccontextmanager
    async def stage(self, scenes: Sequence[Scene], scratch: Path) -> AsyncIterator[Mapping[str, Any]]:
        acts = [act for scene in scenes for act in scene]
        if len(scenes) > 1 or not all(isinstance(act, Run | Hang) for act in acts):
            raise NotApplicable("oracle runs one solution and sends no messages")
        solution = scratch / "solve.sh"
        solution.write_text("\n".join(act.command if isinstance(act, Run) else "exec sleep 300" for act in acts))
        yield {"solution": str(solution)}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


RIGS: dict[str, type[Rig]] = {"scripted": ScriptedRig, "process": ProcessRig, "nop": NopRig, "oracle": OracleRig}
