"""`contract`: everything a program may rely on, in one document. A committed snapshot of it guards against drift."""

from __future__ import annotations

from typing import Any

import msgspec

from proofbox import __version__
from proofbox.agents.contract import RuntimeCapabilities
from proofbox.agents.registry import BUILT_IN, installed
from proofbox.agents.strategies import DEFAULT_CHAIN
from proofbox.cli import flags, schemas
from proofbox.cli.describe import CommandFacts, commands
from proofbox.cli.output import EXIT_CODES, PASSING_EXIT_CODES, Document, columns, show
from proofbox.cli.schemas import StoredFacts
from proofbox.errors import ProofboxError, error_classes
from proofbox.sandbox.contract import Isolation
from proofbox.sandbox.providers import ALIASES, AUTO, AUTO_ORDER, PROVIDERS


class CodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    exit_code: int
    """What proofbox exits with; commands with `passes_exit_code` have codes of their own."""
    retryable: bool
    meaning: str
    """What has happened where this code is given."""
    hints: tuple[str, ...]
    """What to do, where an error of the kind has no better advice of its own."""
    parent: str | None
    """The code of the kind that it is a case of."""


class ProviderFacts(msgspec.Struct, frozen=True):
    isolation: Isolation
    aliases: tuple[str, ...]
    """Other names that are taken for it."""


class StrategyFacts(msgspec.Struct, frozen=True):
    title: str
    """What it is, in a line."""
    capabilities: RuntimeCapabilities
    settings: dict[str, Any]
    """The JSON schema of what `[runtimes.ID]` may say."""


class ContractDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.contract/1"
    version: str
    commands: dict[str, CommandFacts]
    """By the words that call them, such as `bundle verify`."""
    exit_codes: dict[int, str]
    """What each exit code of proofbox means."""
    passing_exit_codes: dict[int, str]
    """Of commands with `passes_exit_code`."""
    schemas: dict[str, Any]
    """The JSON Schema of everything that is printed."""
    stored: dict[str, StoredFacts]
    """Of everything that is written to a disk."""
    codes: dict[str, CodeFacts]
    """Every error that is raised on purpose, by its code."""
    providers: dict[str, ProviderFacts]
    """The sandbox providers, by name."""
    auto_order: tuple[str, ...]
    """What `auto` tries, in this order; with an image, then those that run one."""
    strategies: dict[str, StrategyFacts]
    """The agent runtimes that are built in, by id."""
    default_chain: str
    """The strategies that are tried where nobody says which."""
    capabilities: tuple[str, ...]
    """What a strategy may be able to do."""


def contract(*, json: flags.Json = False) -> int:
    """List every command, schema, code and provider, for programs that drive proofbox.

    For example:
      proofbox contract --json | python3 -I -m json.tool
    """
    document = make_contract()
    show(document, lambda: _text(document), as_json=json)
    return 0


def make_contract() -> ContractDocument:
    return ContractDocument(
        version=__version__,
        commands=commands(),  # first: it loads the modules of all commands, and with them every document
        exit_codes=EXIT_CODES,
        passing_exit_codes=PASSING_EXIT_CODES,
        schemas=schemas.printed(),
        stored=schemas.stored(),
        codes={kind.code: _code(kind) for kind in error_classes()},
        providers={
            name: ProviderFacts(kind.isolation, tuple(alias for alias, meant in ALIASES.items() if meant == name))
            for name, kind in PROVIDERS.items()
        },
        auto_order=AUTO_ORDER,
        strategies={id: _strategy(id) for id in sorted(BUILT_IN)},
        default_chain=DEFAULT_CHAIN,
        capabilities=RuntimeCapabilities.__struct_fields__,
    )


def _strategy(id: str) -> StrategyFacts:
    """Of the built-in ones: what else is installed is no part of the contract."""
    runtime = installed().runtime(id)
    return StrategyFacts(runtime.title, runtime.capabilities, schemas.json_schema(runtime.settings))


def _code(kind: type[ProofboxError]) -> CodeFacts:
    above = kind.__mro__[1]
    return CodeFacts(
        exit_code=kind.exit_code,
        retryable=kind.retryable,
        meaning=" ".join((kind.__doc__ or "").partition("\n\n")[0].split()),
        hints=kind.hints,
        parent=above.code if issubclass(above, ProofboxError) else None,
    )


def _text(document: ContractDocument) -> str:
    parts = [
        columns([("COMMAND", "WHAT IT DOES"), *((name, facts.summary) for name, facts in document.commands.items())]),
        columns([("CODE", "EXIT", "MEANING"), *((c, str(f.exit_code), f.meaning) for c, f in document.codes.items())]),
        columns(
            [("PROVIDER", "ISOLATION"), *((name, facts.isolation.value) for name, facts in document.providers.items())]
        ),
        columns([("STRATEGY", "WHAT IT IS"), *((id, facts.title) for id, facts in document.strategies.items())]),
        columns([("STORED", "WHERE"), *((name, facts.at) for name, facts in document.stored.items())]),
        "printed: " + ", ".join(document.schemas),
        f"{AUTO} tries: " + ", ".join(document.auto_order),
    ]
    return "\n\n".join(parts)
