"""Layers that add behaviour to an environment.

A layer receives each call and the next layer below it. It may inspect or refuse the call, act before and after it, and
add facts to the call for the outer layers. `Layered` is itself an environment, so layers and environments compose.

    env = Layered(HostEnvironment("."), [CapabilityCheck(capabilities), EffectRecording(log), Nudge()])

The first layer is the outermost. `middleware.py` defines the layers, and `workspace_layers` their usual order.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from proofbox.workspace.capabilities.rules import RuleDecision
from proofbox.workspace.tools.contract import (
    COMMAND_TIMEOUT,
    LISTING_LIMIT,
    MATCH_LIMIT,
    OUTPUT_LIMIT,
    READ_LIMIT,
    CommandResult,
    FileContent,
    FileEdited,
    FileRemoved,
    FileWritten,
    Listing,
    PatchApplied,
    SearchResult,
    ToolEnvironment,
    ToolResult,
)
from proofbox.workspace.tools.environments.patch import parse

R = TypeVar("R", bound=ToolResult)

WRITING = frozenset({"write_file", "remove_file", "edit_file", "apply_patch", "run_command"})
READING = frozenset({"read_file", "list_directory", "list_files_recursive", "search_text"})


@dataclass
class ToolInvocation:
    """One tool call on its way through the layers."""

    tool: str
    arguments: Mapping[str, Any]
    decision: RuleDecision | None = None
    snapshot_before: str = ""
    snapshot_after: str = ""

    @property
    def writes(self) -> bool:
        return self.tool in WRITING

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


class Layered:
    """An environment with layers around it. The creator of the inner environment closes it."""

    def __init__(self, env: ToolEnvironment, layers: Sequence[Layer]) -> None:
        self._env = env

        def innermost(call: ToolInvocation) -> ToolResult:
            return cast("ToolResult", getattr(env, call.tool)(**call.arguments))

        self._top: Below = innermost
        for layer in reversed(layers):
            self._top = _wrapped(layer, self._top)

    @property
    def root(self) -> str:
        return self._env.root

    def read_file(
        self, path: str, *, first_line: int = 1, max_lines: int | None = None, max_bytes: int = READ_LIMIT
    ) -> FileContent:
        return self._call(
            FileContent, "read_file", path=path, first_line=first_line, max_lines=max_lines, max_bytes=max_bytes
        )

    def write_file(self, path: str, content: str | bytes, *, executable: bool | None = None) -> FileWritten:
        return self._call(FileWritten, "write_file", path=path, content=content, executable=executable)

    def remove_file(self, path: str) -> FileRemoved:
        return self._call(FileRemoved, "remove_file", path=path)

    def list_directory(self, path: str = ".") -> Listing:
        return self._call(Listing, "list_directory", path=path)

    def list_files_recursive(self, path: str = ".", *, depth: int = 32, max_entries: int = LISTING_LIMIT) -> Listing:
        return self._call(Listing, "list_files_recursive", path=path, depth=depth, max_entries=max_entries)

    def search_text(
        self,
        pattern: str,
        path: str = ".",
        *,
        glob: str | None = None,
        max_matches: int = MATCH_LIMIT,
        context: int = 0,
        ignore_case: bool = False,
        literal: bool = False,
    ) -> SearchResult:
        return self._call(
            SearchResult,
            "search_text",
            pattern=pattern,
            path=path,
            glob=glob,
            max_matches=max_matches,
            context=context,
            ignore_case=ignore_case,
            literal=literal,
        )

    def run_command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = ".",
        timeout: float = COMMAND_TIMEOUT,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        max_output: int = OUTPUT_LIMIT,
    ) -> CommandResult:
        return self._call(
            CommandResult,
            "run_command",
            command=command,
            cwd=cwd,
            timeout=timeout,
            env=env,
            stdin=stdin,
            max_output=max_output,
        )

    def edit_file(self, path: str, old: str, new: str, *, replace_all: bool = False) -> FileEdited:
        return self._call(FileEdited, "edit_file", path=path, old=old, new=new, replace_all=replace_all)

    def apply_patch(self, patch: str) -> PatchApplied:
        return self._call(PatchApplied, "apply_patch", patch=patch)

    def _call(self, kind: type[R], tool: str, **arguments: Any) -> R:
        given = self._top(ToolInvocation(tool, arguments))
        assert isinstance(given, kind)  # noqa: S101 (a layer that changes the kind of a result is wrong)
        return given


def _wrapped(layer: Layer, below: Below) -> Below:
    return lambda call: layer(call, below)
