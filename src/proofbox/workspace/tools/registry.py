"""Tools for function calling: names, descriptions, JSON Schemas, and a call by name with JSON arguments.

    registry = create_tool_registry(env)
    registry.schemas()                                      # for the model's API
    registry.answer("read_file", '{"path": "a.py"}').text   # for the model

Arguments are checked against the schema before anything happens. `call` gives the typed result or raises; `answer`
never raises what proofbox raises on purpose, and has the bounded text that a model is shown for either.
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
    """What a tool takes. The fields are the parameters of the environment's method."""


class ReadFile(Arguments, frozen=True, kw_only=True):
    path: Path
    first_line: Annotated[int, Meta(ge=1, description="The line to begin with, from 1.")] = 1
    max_lines: Annotated[int, Meta(ge=1, description="How many lines at most.")] | None = None


class WriteFile(Arguments, frozen=True, kw_only=True):
    path: Path
    content: Annotated[str, Meta(description="The whole new content of the file.")]
    executable: Annotated[bool, Meta(description="Whether it can be run; left as it is if not given.")] | None = None


class RemoveFile(Arguments, frozen=True, kw_only=True):
    path: Path


class ListDirectory(Arguments, frozen=True, kw_only=True):
    path: Folder = "."


class ListFiles(Arguments, frozen=True, kw_only=True):
    path: Folder = "."
    depth: Annotated[int, Meta(ge=1, description="How many directories deep.")] = 32
    max_entries: Annotated[int, Meta(ge=1, le=10 * LISTING_LIMIT, description="How many at most.")] = 1000


class SearchText(Arguments, frozen=True, kw_only=True):
    pattern: Annotated[
        str, Meta(description="A regular expression, matched line by line: no look-around, no back references.")
    ]
    path: Annotated[str, Meta(description="A directory or file to search.")] = "."
    glob: Annotated[str, Meta(description="Which files: *.py by name, src/**/*.py by path.")] | None = None
    max_matches: Annotated[int, Meta(ge=1, le=LISTING_LIMIT, description="How many lines at most.")] = MATCH_LIMIT
    context: Annotated[int, Meta(ge=0, le=20, description="Lines to show before and after each.")] = 0
    ignore_case: bool = False
    literal: Annotated[bool, Meta(description="Take the pattern as plain text.")] = False


class RunCommand(Arguments, frozen=True, kw_only=True):
    command: (
        Annotated[str, Meta(description="A command for sh.")]
        | Annotated[tuple[str, ...], Meta(min_length=1, description="A program and its arguments, without a shell.")]
    )
    cwd: Folder = "."
    timeout: Annotated[float, Meta(gt=0, le=3600, description="Seconds until it is ended.")] = COMMAND_TIMEOUT
    env: Annotated[dict[str, str], Meta(description="Variables to set.")] | None = None
    stdin: Annotated[str, Meta(description="What it reads.")] | None = None


class EditFile(Arguments, frozen=True, kw_only=True):
    path: Path
    old: Annotated[str, Meta(min_length=1, description="The exact text to replace, found exactly once.")]
    new: Annotated[str, Meta(description="The text to put there.")]
    replace_all: Annotated[bool, Meta(description="Replace every occurrence.")] = False


class ApplyPatch(Arguments, frozen=True, kw_only=True):
    patch: Annotated[str, Meta(min_length=1, description="A unified diff, as git diff writes it.")]


class Tool(msgspec.Struct, frozen=True):
    """One tool. `schema` is a JSON Schema object with everything in place."""

    name: str
    description: str
    schema: dict[str, Any]
    arguments: type[Arguments]
    run: Callable[..., ToolResult]
    read_only: bool = False


class ToolResponse(msgspec.Struct, frozen=True):
    """A call as a model and a program see it: exactly one of `result` and `error` is there."""

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
        """Name, description and parameters of each, as function-calling APIs take them."""
        return [{"name": t.name, "description": t.description, "parameters": t.schema} for t in self.tools.values()]

    def call(self, name: str, arguments: Mapping[str, Any] | str | bytes) -> ToolResult:
        """Raises ToolUnknown, ArgumentsInvalid, IoFailed when the machine would not, and what the tool raises."""
        tool = self.tools.get(name)
        if tool is None:
            raise ToolUnknown(
                f"there is no tool {printable(name[:80])!r}", op="call", fix_hints=[f"known: {', '.join(self.tools)}"]
            )
        given = _parsed(tool, arguments)
        try:
            return tool.run(**{field: getattr(given, field) for field in given.__struct_fields__})
        except OSError as error:
            raise IoFailed(
                f"{name}: {error.strerror or type(error).__name__}",
                op=name,
                fix_hints=["check that there is room, and that the state directory can be written"],
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
    "read_file": (ReadFile, "Read a file of the workspace, whole or from a line on.", True),
    "write_file": (WriteFile, "Create a file or replace its content; directories are made as needed.", False),
    "edit_file": (EditFile, "Replace an exact text in a file.", False),
    "apply_patch": (ApplyPatch, "Apply a unified diff to several files: all of it, or nothing.", False),
    "remove_file": (RemoveFile, "Remove a file or a symbolic link.", False),
    "list_directory": (ListDirectory, "List what is in a directory.", True),
    "list_files_recursive": (ListFiles, "List every file below a directory.", True),
    "search_text": (SearchText, "Find lines that match a pattern, in many files.", True),
    "run_command": (RunCommand, "Run a command in the workspace's sandbox and give its output.", False),
}
"""By its name what a tool takes, what it does, and whether it leaves everything as it was."""


def create_tool_registry(
    env: ToolEnvironment, *, only: Collection[str] | None = None, more: Iterable[Tool] = ()
) -> ToolRegistry:
    """The nine tools over an environment, or `only` some of them by name, and `more` that are not its own."""
    made = [
        make_tool(getattr(env, name), arguments, description, read_only=read_only)
        for name, (arguments, description, read_only) in TOOLS.items()
    ]
    kept = [tool for tool in made if only is None or tool.name in only]
    return ToolRegistry({tool.name: tool for tool in [*kept, *more]})


def make_tool(
    run: Callable[..., ToolResult], arguments: type[Arguments], description: str, *, read_only: bool = False
) -> Tool:
    """A tool called as the function is, with the parameters that `arguments` has."""
    return Tool(run.__name__, description, _schema(arguments), arguments, run, read_only)


@functools.cache
def _schema(arguments: type[Arguments]) -> dict[str, Any]:
    """As APIs want it: the object itself, without references or titles."""
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
            fix_hints=[f"give what it takes: {', '.join(tool.schema.get('properties', {}))}"],
        ) from None
