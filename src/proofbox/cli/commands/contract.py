"""`contract`: everything a program may rely on, in one document. A committed snapshot of it guards against drift."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import msgspec
from cyclopts import Parameter

from proofbox import __version__
from proofbox.agents.contract import Capabilities
from proofbox.agents.registry import BUILT_IN, installed
from proofbox.agents.strategies import DEFAULT_CHAIN
from proofbox.cli import COMMANDS, Command
from proofbox.cli.commands import flags
from proofbox.cli.output import Document, columns, show
from proofbox.errors import error_classes
from proofbox.sandbox.contract import Isolation
from proofbox.sandbox.providers import ALIASES, AUTO, AUTO_ORDER, PROVIDERS


class ParameterFacts(msgspec.Struct, frozen=True):
    name: str
    required: bool


class CommandFacts(msgspec.Struct, frozen=True):
    summary: str
    parameters: tuple[ParameterFacts, ...]
    passes_exit_code: bool


class CodeFacts(msgspec.Struct, frozen=True):
    exit_code: int
    retryable: bool
    meaning: str


class ProviderFacts(msgspec.Struct, frozen=True):
    isolation: Isolation
    aliases: tuple[str, ...]


class StrategyFacts(msgspec.Struct, frozen=True):
    title: str
    capabilities: Capabilities
    settings: dict[str, Any]
    """The JSON schema of what `[runtimes.ID]` may say."""


class ContractDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.contract/1"
    version: str
    commands: dict[str, CommandFacts]
    schemas: dict[str, Any]
    codes: dict[str, CodeFacts]
    providers: dict[str, ProviderFacts]
    auto_order: tuple[str, ...]
    strategies: dict[str, StrategyFacts]
    default_chain: str
    capabilities: tuple[str, ...]
    """What a strategy may be able to do."""


def contract(*, json: flags.Json = False) -> int:
    """List every command, schema, code and provider, for programs that drive proofbox.

    For example:
      proofbox contract --json | python3 -m json.tool
    """
    document = ContractDocument(
        version=__version__,
        commands={command.path: _command(command) for command in COMMANDS},
        schemas=_schemas(),
        codes={
            kind.code: CodeFacts(kind.exit_code, kind.retryable, (kind.__doc__ or "").split("\n")[0])
            for kind in error_classes()
        },
        providers={
            name: ProviderFacts(kind.isolation, tuple(alias for alias, meant in ALIASES.items() if meant == name))
            for name, kind in PROVIDERS.items()
        },
        auto_order=AUTO_ORDER,
        strategies={id: _strategy(id) for id in sorted(BUILT_IN)},
        default_chain=DEFAULT_CHAIN,
        capabilities=Capabilities.__struct_fields__,
    )
    show(document, lambda: _text(document), as_json=json)
    return 0


def _strategy(id: str) -> StrategyFacts:
    """Of the built-in ones: what else is installed is no part of the contract."""
    runtime = installed().runtime(id)
    schema = _tidied(msgspec.json.schema(runtime.settings))
    return StrategyFacts(runtime.title, runtime.capabilities, schema)


def _command(command: Command) -> CommandFacts:
    module, _, name = command.target.partition(":")
    function = getattr(importlib.import_module(f"proofbox.cli.commands.{module}"), name)
    parameters = []
    for parameter in _flattened(inspect.signature(function, eval_str=True)):
        positional = parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        shown = parameter.name.upper() if positional else _flag(parameter)
        required = (
            parameter.default is inspect.Parameter.empty and parameter.kind is not inspect.Parameter.VAR_POSITIONAL
        )
        parameters.append(ParameterFacts(shown, required))
    return CommandFacts(command.summary, tuple(parameters), command.passes_exit_code)


def _flattened(signature: inspect.Signature) -> Iterator[inspect.Parameter]:
    """A parameter that stands for several flags (a dataclass) gives its fields."""
    for parameter in signature.parameters.values():
        kinds = get_args(parameter.annotation)
        if kinds and dataclasses.is_dataclass(kinds[0]) and isinstance(kinds[0], type):
            fields = inspect.signature(kinds[0], eval_str=True).parameters.values()
            yield from (field.replace(kind=inspect.Parameter.KEYWORD_ONLY) for field in fields)
        else:
            yield parameter


def _flag(parameter: inspect.Parameter) -> str:
    if get_origin(parameter.annotation) is Annotated:
        for note in get_args(parameter.annotation)[1:]:
            if isinstance(note, Parameter) and note.name:
                return str(next(iter(note.name)))
    return "--" + parameter.name.replace("_", "-")


def _schemas() -> dict[str, Any]:
    """Every document there is: the modules of all commands are loaded by now."""
    found: dict[str, Any] = {}
    kinds: list[type[Document]] = [*Document.__subclasses__()]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
        name = next(field.default for field in msgspec.structs.fields(kind) if field.name == "schema")
        found[name] = _tidied(msgspec.json.schema(kind, schema_hook=lambda _: {"type": "string"}))
    return dict(sorted(found.items()))


def _tidied(schema: Any) -> Any:
    """Descriptions without the indentation of the source: Python 3.13 strips it from docstrings, and others don't."""
    if isinstance(schema, dict):
        return {
            name: inspect.cleandoc(value) if name == "description" and isinstance(value, str) else _tidied(value)
            for name, value in schema.items()
        }
    return [_tidied(value) for value in schema] if isinstance(schema, list) else schema


def _text(document: ContractDocument) -> str:
    parts = [
        columns([("COMMAND", "WHAT IT DOES"), *((name, facts.summary) for name, facts in document.commands.items())]),
        columns([("CODE", "EXIT", "MEANING"), *((c, str(f.exit_code), f.meaning) for c, f in document.codes.items())]),
        columns(
            [("PROVIDER", "ISOLATION"), *((name, facts.isolation.value) for name, facts in document.providers.items())]
        ),
        columns([("STRATEGY", "WHAT IT IS"), *((id, facts.title) for id, facts in document.strategies.items())]),
        "schemas: " + ", ".join(document.schemas),
        f"{AUTO} tries: " + ", ".join(document.auto_order),
    ]
    return "\n\n".join(parts)
