"""Layers that add behaviour to an environment.

A layer receives each call and the next layer below it. It may inspect or refuse the call, act before and after it, and
add facts to the call for the outer layers. `Layered` is itself an environment, so layers and environments compose.

    env = Layered(HostEnvironment("."), [CapabilityCheck(capabilities), EffectRecording(log), Nudge()])

The first layer is the outermost. `middleware.py` defines the layers, and `workspace_layers` their usual order.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import msgspec

from proofbox.workspace.capabilities.rules import RuleDecision
from proofbox.workspace.tools.contract import R, ToolEnvironment, ToolRequest
from proofbox.workspace.tools.environments.patch import parse
from proofbox.workspace.tools.results import ToolResult


@dataclass
class ToolInvocation:
    """One tool call on its way through the layers."""

    request: ToolRequest[Any]
    decision: RuleDecision | None = None
    snapshot_before: str = ""
    snapshot_after: str = ""

    @property
    def tool(self) -> str:
        return self.request.tool

    @property
    def arguments(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self.request)

    @property
    def writes(self) -> bool:
        return not self.request.read_only

    @property
    def target(self) -> str:
        """The target of the call: the path, the command in shell syntax, or the files of a patch."""
        if self.tool == "run_command":
            command = self.arguments["command"]
            return command if isinstance(command, str) else shlex.join(command)
        if self.tool == "apply_patch":
            return ", ".join(dict.fromkeys(path for _, path in patched_paths(self.arguments["patch"])))
        if self.tool == "search_text":
            return f"{self.arguments['path']}: {self.arguments['pattern']}"
        return str(self.arguments.get("path", ""))


def patched_paths(patch: str) -> list[tuple[str, str]]:
    """Return the actions of a patch as (`write` or `delete`, path). Raises PatchRefused for a malformed patch."""
    found = []
    for each in parse(patch):
        if each.new is not None:
            found.append(("write", each.new))
        if each.old is not None and each.old != each.new:
            found.append(("delete", each.old))
    return found


Below = Callable[[ToolInvocation], ToolResult]


class Layer(Protocol):
    def __call__(self, call: ToolInvocation, below: Below, /) -> ToolResult:
        """Handle a call: return the result of `below(call)`, or raise."""


class Layered(ToolEnvironment):
    """An environment with layers around it. The creator of the inner environment closes it."""

    def __init__(self, env: ToolEnvironment, layers: Sequence[Layer]) -> None:
        self._env = env
        self._top: Below = lambda call: env.call(call.request)
        for layer in reversed(layers):
            self._top = _wrapped(layer, self._top)

    @property
    def root(self) -> str:
        return self._env.root

    def call(self, request: ToolRequest[R]) -> R:
        return cast("R", self._top(ToolInvocation(request)))


def _wrapped(layer: Layer, below: Below) -> Below:
    return lambda call: layer(call, below)
