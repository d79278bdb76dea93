"""The rigs of Codex, Claude Code and OpenCode: the real program, with a fake model that plays scenes.

The model is stateless: it derives the turn and its history from each request.
"""

from __future__ import annotations

import contextlib
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
from proofbox.agents.fakemodel.script import Fault, ScriptedResponse, ScriptEntry
from proofbox.agents.fakemodel.server import FakeModel
from proofbox.sandbox.conformance.check import NotApplicable

_ABORTED = ("<turn_aborted>", "[Request interrupted")


class CodexRig:
    @contextlib.asynccontextmanager
    async def stage(self, scenes: Sequence[Scene], scratch: Path) -> AsyncIterator[Mapping[str, Any]]:
        del scratch
        _refuse_garbage(scenes, "codex")
        async with SceneModel(scenes).listening() as url:
            yield {"base_url": url, "model": "fake-model", "max_retries": 0}


class ClaudeRig:
    @contextlib.asynccontextmanager
    async def stage(self, scenes: Sequence[Scene], scratch: Path) -> AsyncIterator[Mapping[str, Any]]:
        del scratch
        _refuse_garbage(scenes, "claude")
        async with SceneModel(scenes).listening() as url:
            yield {"base_url": url, "max_retries": 0}


class AcpRig:
    """Drives OpenCode, as the agent that speaks ACP."""

    @contextlib.asynccontextmanager
    async def stage(self, scenes: Sequence[Scene], scratch: Path) -> AsyncIterator[Mapping[str, Any]]:
        del scratch
        _refuse_garbage(scenes, "opencode")
        async with SceneModel(scenes).listening() as url:
            yield {"agent": "opencode", "base_url": url, "model": "fake-model"}


MODEL_RIGS: dict[str, type[Rig]] = {"acp": AcpRig, "claude_code": ClaudeRig, "codex_app_server": CodexRig}


def _refuse_garbage(scenes: Sequence[Scene], program: str) -> None:
    if any(isinstance(act, WriteGarbage) for scene in scenes for act in scene):
        raise NotApplicable(
            f"a model can't make the real {program} write garbage; the tests of {program} do that with a fake program"
        )


class SceneModel(FakeModel):
    def __init__(self, scenes: Sequence[Scene]) -> None:
        super().__init__()
        self._scenes = scenes

    def _choose(self, conversation: Sequence[ScriptEntry]) -> list[ScriptedResponse]:
        turns: list[_Turn] = []
        over = True
        for entry in conversation:
            if entry.kind == "assistant" or entry.text.startswith(_ABORTED):
                over = True
            elif entry.kind == "outcome" and turns:
                turns[-1].outcomes += 1
            elif entry.kind == "user" and not entry.text.lstrip().startswith(("<", "# ")):
                if over:
                    turns.append(_Turn())
                turns[-1].told.append(entry.text)
                over = False
        scene = self._scenes[min(max(len(turns), 1), len(self._scenes)) - 1]
        told = [text for turn in turns for text in turn.told]
        return [_next_response(scene, turns[-1] if turns else _Turn(), told)]


class _Turn:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.outcomes = 0


def _next_response(scene: Scene, turn: _Turn, told: Sequence[str]) -> ScriptedResponse:
    """Return the response to the latest request of a turn. The tool results in it show which commands have run."""
    answer = ScriptedResponse()
    left = turn.outcomes
    for number, act in enumerate(scene):
        last = number + 1 == len(scene)
        match act:
            case Run(command):
                if left == 0:
                    return msgspec.structs.replace(answer, kind="run", text=command)
                left -= 1
            case ReportSteering():
                if len(turn.told) < 2:
                    return msgspec.structs.replace(answer, kind="run", text="sleep 0.1")
            case _:
                answer = _with(answer, act, told, last)
    return answer


def _with(answer: ScriptedResponse, act: Act, told: Sequence[str], last: bool) -> ScriptedResponse:
    match act:
        case Say(text):  # a message ends the turn, so earlier ones are sent as reasoning
            return msgspec.structs.replace(answer, **({"text": text} if last else {"think": text}))
        case Recall():
            return msgspec.structs.replace(answer, text="; ".join(told))
        case ReportUsage(input_tokens, output_tokens):
            usage = {"input": input_tokens, "output": output_tokens, "cached": 0, "reasoning": 0}
            return msgspec.structs.replace(answer, usage=usage)
        case Hang():
            return msgspec.structs.replace(answer, faults=(Fault(kind="idle", value="300"),))
        case Fail():
            fault = Fault(kind="http", value="400", type="invalid_request_error", message="fault injected by the scene")
            return msgspec.structs.replace(answer, faults=(fault,))
        case _:
            return answer
