"""Tools for function calling: names, descriptions, JSON Schemas, and a call by name with JSON arguments.

    registry = create_tool_registry(env)
    registry.schemas()                                      # for the model's API
    registry.answer("read_file", '{"path": "a.py"}').text   # for the model

Arguments are validated against the schema first. `call` returns the typed result or raises. `answer` converts errors of
proofbox to a response, and contains the bounded text for the model in both cases.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from proofbox.core.text import printable
from proofbox.errors import ArgumentsInvalid, IoFailed, ProofboxError, ToolUnknown
from proofbox.workspace.tools import rendering
from proofbox.workspace.tools.contract import (
    ApplyPatch,
    EditFile,
    ListDirectory,
    ListFiles,
    ReadFile,
    RemoveFile,
    RunCommand,
    SearchText,
    ToolEnvironment,
    ToolRequest,
    WriteFile,
)
from proofbox.workspace.tools.results import ToolResult

ARGUMENTS_LIMIT = 32 * 1024 * 1024


class Tool(msgspec.Struct, frozen=True):
    """One tool. `schema` is a self-contained JSON Schema object."""

    name: str
    description: str
    schema: dict[str, Any]
    request: type[ToolRequest[Any]]
    run: Callable[[Any], ToolResult]
    read_only: bool = False


class ToolResponse(msgspec.Struct, frozen=True):
    """The response to a call, for a model and a program. Exactly one of `result` and `error` is set."""

    text: str
    result: ToolResult | None = None
    error: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


class ToolRegistry:
    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.tools = dict(tools)

    def schemas(self) -> list[dict[str, Any]]:
        """Return the name, description and parameters of each tool, in the format of function-calling APIs."""
        return [{"name": t.name, "description": t.description, "parameters": t.schema} for t in self.tools.values()]

    def call(self, name: str, arguments: Mapping[str, Any] | str | bytes) -> ToolResult:
        """Call a tool. Raises ToolUnknown, ArgumentsInvalid, IoFailed for OS errors, and the errors of the tool."""
        tool = self.tools.get(name)
        if tool is None:
            raise ToolUnknown(
                f"unknown tool {printable(name[:80])!r}", op="call", fix_hints=[f"known tools: {', '.join(self.tools)}"]
            )
        given = _parsed(tool, arguments)
        try:
            return tool.run(given)
        except OSError as error:
            raise IoFailed(
                f"{name}: {error.strerror or type(error).__name__}",
                op=name,
                fix_hints=["check that the disk has free space and the state directory is writable"],
            ) from error

    def answer(
        self, name: str, arguments: Mapping[str, Any] | str | bytes, limit: int = rendering.TEXT_LIMIT
    ) -> ToolResponse:
        try:
            result = self.call(name, arguments)
        except ProofboxError as error:
            hints = "".join(f"\nfix: {hint}" for hint in error.fix_hints)
            return ToolResponse(
                rendering.bounded(f"error {error.code}: {error.message}{hints}", limit), error=error.as_dict()
            )
        return ToolResponse(result.text(limit), result=result)


TOOLS: dict[str, type[ToolRequest[Any]]] = {
    request.tool: request
    for request in (
        ReadFile,
        WriteFile,
        EditFile,
        ApplyPatch,
        RemoveFile,
        ListDirectory,
        ListFiles,
        SearchText,
        RunCommand,
    )
}


def create_tool_registry(
    env: ToolEnvironment, *, only: Collection[str] | None = None, more: Iterable[Tool] = ()
) -> ToolRegistry:
    """Create a registry of the nine tools, or of those named in `only`, plus additional tools in `more`.

    For example:

        registry = proofbox.create_tool_registry(environment, only=["read_file", "search_text"])
        registry.schemas()  # JSON Schemas for function calling
    """
    made = [make_tool(request, env.call) for name, request in TOOLS.items() if only is None or name in only]
    return ToolRegistry({tool.name: tool for tool in [*made, *more]})


def make_tool(request: type[ToolRequest[Any]], run: Callable[[Any], ToolResult]) -> Tool:
    """Create the tool that a class of requests defines."""
    description = (request.__doc__ or "").partition("\n")[0]
    return Tool(request.tool, description, _schema(request), request, run, request.read_only)


@functools.cache
def _schema(request: type[ToolRequest[Any]]) -> dict[str, Any]:
    """Return the schema in the form that APIs require: the object itself, without references or titles."""
    (found,), _ = msgspec.json.schema_components([request])
    whole = msgspec.json.schema(request)
    schema = dict(whole["$defs"][found["$ref"].rpartition("/")[2]])
    schema.pop("title", None)
    schema.pop("description", None)
    return schema


def _parsed(tool: Tool, arguments: Mapping[str, Any] | str | bytes) -> ToolRequest[Any]:
    try:
        if isinstance(arguments, str | bytes):
            if len(arguments) > ARGUMENTS_LIMIT:
                raise ArgumentsInvalid(f"{tool.name}: the arguments are too large", op=tool.name)
            parsed: ToolRequest[Any] = msgspec.json.decode(arguments or "{}", type=tool.request)
        else:
            parsed = msgspec.convert(arguments, tool.request)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ArgumentsInvalid(
            f"{tool.name}: {printable(str(error))}",
            op=tool.name,
            fix_hints=[f"valid arguments: {', '.join(tool.schema.get('properties', {}))}"],
        ) from None
    return parsed
