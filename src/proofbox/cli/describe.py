"""Commands as data, from the command line itself: what the parser takes, what help says, what the code prints."""

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
    """What is not said is as it usually is: not required, not repeated, without a default or a choice."""

    name: str
    """`--timeout` of a flag, `SPEC` of an argument."""
    kind: Literal["flag", "argument"]
    """An argument is known by its place, a flag by its name."""
    type: str
    """text, integer, number, path, or switch: a flag without a value."""
    help: str
    """What its line in the help says."""
    required: bool = False
    """The command is refused without it."""
    repeated: bool = False
    """It may be given several times."""
    default: Any = None
    """What counts where it is not given; absent: nothing, no, or an empty list."""
    choices: tuple[str, ...] = ()
    """The only values it takes; absent: any of its type."""
    aliases: tuple[str, ...] = ()
    """Other names of it: `-n`."""


class CommandFacts(msgspec.Struct, frozen=True, kw_only=True):
    summary: str
    """What it does, as the list of commands says it."""
    usage: str
    """How it is called, in one line."""
    description: str
    """What its help says, without the examples."""
    parameters: tuple[ParameterFacts, ...]
    """Its arguments and flags."""
    examples: tuple[str, ...]
    """Lines for a shell, from its help."""
    prints: tuple[str, ...]
    """The schemas of what it prints with --json, besides `proofbox.error/1`."""
    streams: tuple[str, ...]
    """The schema of each line with --jsonl."""
    passes_exit_code: bool
    """The command inside decides the exit code; proofbox's own failures are 125."""


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
        usage=_said(command.path, words) or _usage(command.path, parameters),
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
        help="The command and its arguments, behind --." if anything else argument.parameter.help or "",
        aliases=tuple(names[1:]) if flag else (),
    )


def _type(hint: Any) -> tuple[str, bool]:
    """A type as a caller thinks of it, and whether the parameter may be given several times."""
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


def _said(path: str, words: str) -> str:
    """A command that runs another says in its first line how that is written."""
    usage = words.partition("\n")[0].partition(f": proofbox {path} ")[2]
    return usage and f"proofbox {path} {usage}"


def _usage(path: str, parameters: tuple[ParameterFacts, ...]) -> str:
    words = [f"proofbox {path}"]
    words += [f"{each.name} VALUE" for each in parameters if each.kind == "flag" and each.required]
    words.append("[OPTIONS]")
    arguments = [each for each in parameters if each.kind == "argument"]
    return " ".join([*words, *(each.name if each.required else f"[{each.name}]" for each in arguments)])


def _docstring(function: Callable[..., Any]) -> tuple[str, tuple[str, ...]]:
    """What a command's help says, and its examples."""
    words, _, examples = inspect.cleandoc(function.__doc__ or "").partition(EXAMPLES)
    lines = tuple(line.strip() for line in examples.strip().splitlines())
    return words.strip(), tuple(line for line in lines if line)


def schema_of(kind: type[Document]) -> str:
    """Empty for a class that others are made from."""
    default = next(field.default for field in msgspec.structs.fields(kind) if field.name == "schema")
    return default if isinstance(default, str) else ""


def _printed(function: Callable[..., Any]) -> set[type[Document]]:
    """The documents that a command's code makes: those it names itself, and those its helpers name."""
    found: set[type[Document]] = set()
    seen: set[int] = set()
    pending: list[FunctionType] = [f for f in [function] if isinstance(f, FunctionType)]
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        for name in _names(each.__code__):
            value = each.__globals__.get(name)
            if isinstance(value, FunctionType) and value.__module__.startswith("proofbox.cli."):
                pending.append(value)
            elif isinstance(value, type) and value.__module__.startswith("proofbox.cli."):
                if issubclass(value, Document) and schema_of(value):
                    found.add(value)
                pending += [member for member in vars(value).values() if isinstance(member, FunctionType)]
    return found


def _names(code: CodeType) -> Iterator[str]:
    """What it loads by name from its module, and what the functions inside it do."""
    yield from (each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
