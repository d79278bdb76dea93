"""Describe commands as data: the parameters they accept, their help texts, and the documents they print."""

from __future__ import annotations

import dis
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import cyclopts
import msgspec

from proofbox.cli import COMMANDS, Command
from proofbox.cli.output import Document, Streamed

EXAMPLES = "For example:"


class ParameterFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A parameter of a command. Omitted members have their defaults: not required, not repeated, no default value."""

    name: str
    """`--timeout` for a flag, `SPEC` for an argument."""
    kind: Literal["flag", "argument"]
    """Arguments are identified by position, flags by name."""
    type: str
    """text, integer, number, path, or switch (a flag without a value)."""
    help: str
    """Its help text."""
    required: bool = False
    """Whether the command fails without it."""
    repeated: bool = False
    """Whether it may be given several times."""
    default: Any = None
    """Its default value; absent: none, false, or an empty list."""
    choices: tuple[str, ...] = ()
    """The values it accepts; absent: any value of its type."""
    aliases: tuple[str, ...] = ()
    """Other names for it: `-n`."""


class CommandFacts(msgspec.Struct, frozen=True, kw_only=True):
    summary: str
    """What the command does, as the list of commands shows it."""
    usage: str
    """How to call it, in one line."""
    description: str
    """Its help text, without the examples."""
    parameters: tuple[ParameterFacts, ...]
    """Its arguments and flags."""
    examples: tuple[str, ...]
    """Shell command lines, from its help."""
    prints: tuple[str, ...]
    """The schemas of the documents it prints with --json, besides `proofbox.error/1`."""
    streams: tuple[str, ...]
    """The schema of each line with --jsonl."""
    passes_exit_code: bool
    """Whether it exits with the exit code of the command it runs; proofbox's own failures exit with 125."""


def commands() -> dict[str, CommandFacts]:
    from proofbox.cli.app import build

    app = build()
    return {command.path: _facts(command, app) for command in COMMANDS}


def function_of(command: Command) -> Callable[..., Any]:
    module, _, name = command.target.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(f"proofbox.cli.commands.{module}"), name)
    return found


def _facts(command: Command, app: cyclopts.App) -> CommandFacts:
    function = function_of(command)
    for word in command.path.split():
        app = app[word]
    arguments = [each for each in app.assemble_argument_collection(parse_docstring=False) if not each.children]
    parameters = tuple(_parameter(each) for each in arguments)
    words, examples = _docstring(function)
    printed = sorted(_printed(function), key=lambda kind: schema_of(kind))
    return CommandFacts(
        summary=command.summary,
        usage=_stated_usage(command.path, words) or _usage(command.path, parameters),
        description=words,
        parameters=parameters,
        examples=examples,
        prints=tuple(schema_of(kind) for kind in printed if not issubclass(kind, Streamed)),
        streams=tuple(schema_of(kind) for kind in printed if issubclass(kind, Streamed)),
        passes_exit_code=command.passes_exit_code,
    )


def _parameter(argument: cyclopts.Argument) -> ParameterFacts:
    field = argument.field_info
    flag = field.kind is inspect.Parameter.KEYWORD_ONLY
    kind, repeated = _type(argument.hint)
    names = sorted(argument.parameter.name or (), key=lambda name: not name.startswith("--"))
    anything = argument.is_var_positional()
    return ParameterFacts(
        name=names[0] if flag else "COMMAND" if anything else field.name.upper(),
        kind="flag" if flag else "argument",
        type=kind,
        required=argument.required,
        repeated=repeated or anything,
        default=None if argument.required or anything else _plain(field.default),
        choices=argument.get_choices(force=True) or (),
        help="The command and its arguments, after --." if anything else argument.parameter.help or "",
        aliases=tuple(names[1:]) if flag else (),
    )


def _type(hint: Any) -> tuple[str, bool]:
    """Return the parameter's type by its public name, and whether it may be given several times."""
    origin, inner = get_origin(hint), [each for each in get_args(hint) if each not in (type(None), Ellipsis)]
    if origin is tuple:
        return _type(inner[0])[0], True
    if origin in (Union, UnionType):
        return _type(inner[0])
    names = {bool: "switch", int: "integer", float: "number", Path: "path"}
    return names.get(hint, "text"), False


def _plain(default: Any) -> Any:
    if isinstance(default, Path):
        return str(default)
    return default if default not in ((), False, "") else None


def _stated_usage(path: str, words: str) -> str:
    """Return the usage from the first line of the help, where a command that runs another command states it."""
    usage = words.partition("\n")[0].partition(f": proofbox {path} ")[2]
    return usage and f"proofbox {path} {usage}"


def _usage(path: str, parameters: tuple[ParameterFacts, ...]) -> str:
    words = [f"proofbox {path}"]
    words += [f"{each.name} VALUE" for each in parameters if each.kind == "flag" and each.required]
    words.append("[OPTIONS]")
    arguments = [each for each in parameters if each.kind == "argument"]
    return " ".join([*words, *(each.name if each.required else f"[{each.name}]" for each in arguments)])


def _docstring(function: Callable[..., Any]) -> tuple[str, tuple[str, ...]]:
    """Split a command's docstring into its help text and its examples."""
    words, _, examples = inspect.cleandoc(function.__doc__ or "").partition(EXAMPLES)
    lines = tuple(line.strip() for line in examples.strip().splitlines())
    return words.strip(), tuple(line for line in lines if line)


def schema_of(kind: type[Document]) -> str:
    """Return the schema that a document class states; empty for an abstract class."""
    default = next(field.default for field in msgspec.structs.fields(kind) if field.name == "schema")
    return default if isinstance(default, str) else ""


def _printed(function: Callable[..., Any]) -> set[type[Document]]:
    """Return the document classes that the code and annotations of a command and its helpers refer to."""
    found: set[type[Document]] = set()
    seen: set[int] = set()
    pending: list[FunctionType] = [f for f in [function] if isinstance(f, FunctionType)]
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        for name in (*_names(each.__code__), *map(str, each.__annotations__.values())):
            value = each.__globals__.get(name)
            if isinstance(value, type) and issubclass(value, Document) and schema_of(value):
                found.add(value)
            if isinstance(value, FunctionType) and value.__module__.startswith("proofbox.cli."):
                pending.append(value)
            elif isinstance(value, type) and value.__module__.startswith("proofbox.cli."):
                pending += [member for member in vars(value).values() if isinstance(member, FunctionType)]
    return found


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global names that the code and its inner functions load."""
    yield from (each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
