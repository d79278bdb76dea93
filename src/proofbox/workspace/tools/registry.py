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
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proofbox.core.text import printable
from proofbox.errors import ArgumentsInvalid, IoFailed, ProofboxError, ToolUnknown
from proofbox.workspace.tools import rendering
from proofbox.workspace.tools.contract import (
    COMMAND_TIMEOUT,
    LISTING_LIMIT,
    MATCH_LIMIT,
    ToolEnvironment,
    ToolResult,
)

ARGUMENTS_LIMIT = 32 * 1024 * 1024

Path = Annotated[str, Meta(description="A path inside the workspace, relative to its root.")]
Folder = Annotated[str, Meta(description="A directory inside the workspace, relative to its root.")]


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The arguments of a tool. The fields are the parameters of the environment's method."""


class ReadFile(Arguments, frozen=True, kw_only=True):
    path: Path
    first_line: Annotated[int, Meta(ge=1, description="The first line to read, counted from 1.")] = 1
    max_lines: Annotated[int, Meta(ge=1, description="Maximum number of lines.")] | None = None


class WriteFile(Arguments, frozen=True, kw_only=True):
    path: Path
    content: Annotated[str, Meta(description="The complete new content of the file.")]
    executable: Annotated[bool, Meta(description="Whether it is executable; unchanged if not given.")] | None = None


class RemoveFile(Arguments, frozen=True, kw_only=True):
    path: Path


class ListDirectory(Arguments, frozen=True, kw_only=True):
    path: Folder = "."


class ListFiles(Arguments, frozen=True, kw_only=True):
    path: Folder = "."
    depth: Annotated[int, Meta(ge=1, description="Maximum depth of directories.")] = 32
    max_entries: Annotated[int, Meta(ge=1, le=10 * LISTING_LIMIT, description="Maximum number of entries.")] = 1000


class SearchText(Arguments, frozen=True, kw_only=True):
    pattern: Annotated[
        str, Meta(description="A regular expression, matched line by line: no look-around, no back references.")
    ]
    path: Annotated[str, Meta(description="A directory or file to search.")] = "."
    glob: Annotated[str, Meta(description="Files to search: *.py by name, src/**/*.py by path.")] | None = None
    max_matches: Annotated[int, Meta(ge=1, le=LISTING_LIMIT, description="Maximum number of lines.")] = MATCH_LIMIT
    context: Annotated[int, Meta(ge=0, le=20, description="Lines to show before and after each match.")] = 0
    ignore_case: bool = False
    literal: Annotated[bool, Meta(description="Treat the pattern as plain text.")] = False


class RunCommand(Arguments, frozen=True, kw_only=True):
    command: (
        Annotated[str, Meta(description="A shell command, run with sh.")]
        | Annotated[tuple[str, ...], Meta(min_length=1, description="A program and its arguments, without a shell.")]
    )
    cwd: Folder = "."
    timeout: Annotated[float, Meta(gt=0, le=3600, description="Timeout in seconds.")] = COMMAND_TIMEOUT
    env: Annotated[dict[str, str], Meta(description="Environment variables to set.")] | None = None
    stdin: Annotated[str, Meta(description="Text passed to its standard input.")] | None = None


class EditFile(Arguments, frozen=True, kw_only=True):
    path: Path
    old: Annotated[str, Meta(min_length=1, description="The exact text to replace. It must occur exactly once.")]
    new: Annotated[str, Meta(description="The replacement text.")]
    replace_all: Annotated[bool, Meta(description="Replace every occurrence.")] = False


class ApplyPatch(Arguments, frozen=True, kw_only=True):
    patch: Annotated[str, Meta(min_length=1, description="A unified diff in the format of git diff.")]


class Tool(msgspec.Struct, frozen=True):
    """One tool. `schema` is a self-contained JSON Schema object."""

    name: str
    description: str
    schema: dict[str, Any]
    arguments: type[Arguments]
    run: Callable[..., ToolResult]
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
            return tool.run(**{field: getattr(given, field) for field in given.__struct_fields__})
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


TOOLS: dict[str, tuple[type[Arguments], str, bool]] = {
    "read_file": (ReadFile, "Read a file of the workspace, completely or from a line on.", True),
    "write_file": (WriteFile, "Create a file or replace its content. Creates missing directories.", False),
    "edit_file": (EditFile, "Replace an exact text in a file.", False),
    "apply_patch": (ApplyPatch, "Apply a unified diff to one or more files: all of it, or nothing.", False),
    "remove_file": (RemoveFile, "Remove a file or a symbolic link.", False),
    "list_directory": (ListDirectory, "List the entries of a directory.", True),
    "list_files_recursive": (ListFiles, "List every file below a directory.", True),
    "search_text": (SearchText, "Find lines that match a pattern in one or more files.", True),
    "run_command": (RunCommand, "Run a command in the workspace's sandbox and return its output.", False),
}
"""For each tool name: its arguments, its description, and whether it is read-only."""


def create_tool_registry(
    env: ToolEnvironment, *, only: Collection[str] | None = None, more: Iterable[Tool] = ()
) -> ToolRegistry:
    """Create a registry of the nine tools, or of those named in `only`, plus additional tools in `more`.

    For example:

        registry = proofbox.create_tool_registry(environment, only=["read_file", "search_text"])
        registry.schemas()  # JSON Schemas for function calling
    """
    made = [
        make_tool(getattr(env, name), arguments, description, read_only=read_only)
        for name, (arguments, description, read_only) in TOOLS.items()
    ]
    kept = [tool for tool in made if only is None or tool.name in only]
    return ToolRegistry({tool.name: tool for tool in [*kept, *more]})


def make_tool(
    run: Callable[..., ToolResult], arguments: type[Arguments], description: str, *, read_only: bool = False
) -> Tool:
    """Create a tool with the name of the function and the parameters of `arguments`."""
    return Tool(run.__name__, description, _schema(arguments), arguments, run, read_only)


@functools.cache
def _schema(arguments: type[Arguments]) -> dict[str, Any]:
    """Return the schema in the form that APIs require: the object itself, without references or titles."""
    (found,), _ = msgspec.json.schema_components([arguments])
    whole = msgspec.json.schema(arguments)
    schema = dict(whole["$defs"][found["$ref"].rpartition("/")[2]])
    schema.pop("title", None)
    schema.pop("description", None)
    return schema


def _parsed(tool: Tool, arguments: Mapping[str, Any] | str | bytes) -> Arguments:
    try:
        if isinstance(arguments, str | bytes):
            if len(arguments) > ARGUMENTS_LIMIT:
                raise ArgumentsInvalid(f"{tool.name}: the arguments are too large", op=tool.name)
            return msgspec.json.decode(arguments or "{}", type=tool.arguments)
        return msgspec.convert(arguments, tool.arguments)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ArgumentsInvalid(
            f"{tool.name}: {printable(str(error))}",
            op=tool.name,
            fix_hints=[f"valid arguments: {', '.join(tool.schema.get('properties', {}))}"],
        ) from None
