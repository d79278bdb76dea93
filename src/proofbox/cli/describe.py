"""Describe commands as data: the parameters they accept, their help texts, and the documents they print."""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Literal

import msgspec

from proofbox.cli import COMMANDS, Command
from proofbox.cli.app import function_of
from proofbox.cli.help import split_docstring, usage
from proofbox.cli.output import Document, Streamed
from proofbox.cli.parameters import NO_DEFAULT, CommandInput, CommandSignature


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
    return {command.path: _facts(command) for command in COMMANDS}


def _facts(command: Command) -> CommandFacts:
    function = function_of(command)
    signature = CommandSignature(function)
    description, examples = split_docstring(function.__doc__ or "")
    printed = sorted(_printed(function), key=lambda kind: schema_of(kind))
    return CommandFacts(
        summary=command.summary,
        usage=usage(command, description, signature),
        description=description,
        parameters=tuple(_parameter(each) for each in signature.inputs),
        examples=examples,
        prints=tuple(schema_of(kind) for kind in printed if not issubclass(kind, Streamed)),
        streams=tuple(schema_of(kind) for kind in printed if issubclass(kind, Streamed)),
        passes_exit_code=command.passes_exit_code,
    )


def _parameter(each: CommandInput) -> ParameterFacts:
    command = each.kind == "command"
    return ParameterFacts(
        name=each.name,
        kind="flag" if each.kind == "flag" else "argument",
        type=each.type,
        required=each.required,
        repeated=each.repeated or command,
        default=_plain(each.default),
        choices=each.choices,
        help="The command and its arguments, after --." if command else each.declared.help,
        aliases=each.declared.names[1:],
    )


def _plain(default: Any) -> Any:
    if isinstance(default, Path):
        return str(default)
    return default if default not in (NO_DEFAULT, (), False, "") else None


def schema_of(kind: type[Document]) -> str:
    """Return the schema that a document class states; empty for an abstract class."""
    default = next(field.default for field in msgspec.structs.fields(kind) if field.name == "schema")
    return default if isinstance(default, str) else ""


def _printed(function: Callable[..., Any]) -> set[type[Document]]:
    """Return the document classes that a command and its helpers refer to, and those that functions they call return.

    Documents are imported inside functions, so that `--help` does not load them.
    """
    found: set[object] = set()
    seen: set[object] = set()
    pending: list[object] = [function]
    while pending:
        each = pending.pop()
        if not isinstance(each, FunctionType) or each in seen:
            continue
        seen.add(each)
        body = inspect.unwrap(each)  # of a context manager
        for value in (*_loaded(body.__code__, body.__globals__), *_annotated(each)):
            if isinstance(value, type):
                found.add(value)
            if not isinstance(value, FunctionType | type):
                continue
            if value.__module__.startswith("proofbox.cli."):
                pending += [value] if isinstance(value, FunctionType) else vars(value).values()
            elif isinstance(value, FunctionType):
                found |= _annotated(value, "return")
    return {kind for kind in found if isinstance(kind, type) and issubclass(kind, Document) and schema_of(kind)}


def _annotated(function: FunctionType, *members: str) -> set[object]:
    """Return the classes that annotations name: all annotations, or those of these members."""
    whole = getattr(function, "__wrapped__", function)
    texts = [str(text) for name, text in whole.__annotations__.items() if not members or name in members]
    named = (whole.__globals__.get(name) for text in texts for name in re.findall(r"\w+", text))
    return {value for value in named if isinstance(value, type)}


def _loaded(code: CodeType, scope: dict[str, Any]) -> Iterator[object]:
    """Yield the global names that the code and its inner functions load, and the names that they import from us."""
    module = ""
    for each in dis.get_instructions(code):
        if each.opname == "LOAD_GLOBAL":
            yield scope.get(each.argval)
        elif each.opname == "IMPORT_NAME":
            module = each.argval
        elif each.opname == "IMPORT_FROM" and module.startswith("proofbox."):
            yield getattr(import_module(module), each.argval, None)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _loaded(constant, scope)
