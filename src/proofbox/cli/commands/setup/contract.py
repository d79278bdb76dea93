"""`contract`: everything a program may rely on, in one document. A test compares it with a committed snapshot."""

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
from proofbox.sandbox.providers import ALIASES, AUTO, AUTO_ORDER, PROVIDERS, provider_named


class CodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    exit_code: int
    """proofbox's exit code; commands with `passes_exit_code` use other codes."""
    retryable: bool
    meaning: str
    """What the code means."""
    hints: tuple[str, ...]
    """How to fix it, unless the error itself gives more specific hints."""
    parent: str | None
    """The code of the more general error."""


class ProviderFacts(msgspec.Struct, frozen=True):
    isolation: Isolation
    aliases: tuple[str, ...]
    """Other names for it."""


class StrategyFacts(msgspec.Struct, frozen=True):
    title: str
    """A one-line description."""
    capabilities: RuntimeCapabilities
    settings: dict[str, Any]
    """The JSON Schema of the `[runtimes.ID]` settings."""


class ContractDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.contract/1"
    version: str
    commands: dict[str, CommandFacts]
    """The commands by name, such as `bundle verify`."""
    exit_codes: dict[int, str]
    """proofbox's exit codes and their meanings."""
    passing_exit_codes: dict[int, str]
    """The exit codes of commands with `passes_exit_code`."""
    schemas: dict[str, Any]
    """The JSON Schemas of all printed documents."""
    stored: dict[str, StoredFacts]
    """All documents that are written to disk."""
    codes: dict[str, CodeFacts]
    """All errors, by code."""
    providers: dict[str, ProviderFacts]
    """The sandbox providers, by name."""
    auto_order: tuple[str, ...]
    """The providers that `auto` tries, in order; with an image, then those that can run one."""
    strategies: dict[str, StrategyFacts]
    """The agent runtimes that are built in, by id."""
    default_chain: str
    """The strategies that are tried by default."""
    capabilities: tuple[str, ...]
    """The names of all capabilities of strategies."""


def contract(*, json: flags.Json = False) -> int:
    """List every command, schema, error code and provider, for programs that use proofbox.

    For example:
      proofbox contract --json | python3 -I -m json.tool
    """
    document = make_contract()
    show(document, lambda: _text(document), as_json=json)
    return 0


def make_contract() -> ContractDocument:
    return ContractDocument(
        version=__version__,
        commands=commands(),  # first: this loads the modules that define the documents
        exit_codes=EXIT_CODES,
        passing_exit_codes=PASSING_EXIT_CODES,
        schemas=schemas.printed(),
        stored=schemas.stored(),
        codes={kind.code: _code(kind) for kind in error_classes()},
        providers={name: _provider(name) for name in PROVIDERS},
        auto_order=AUTO_ORDER,
        strategies={id: _strategy(id) for id in sorted(BUILT_IN)},
        default_chain=DEFAULT_CHAIN,
        capabilities=RuntimeCapabilities.__struct_fields__,
    )


def _provider(name: str) -> ProviderFacts:
    aliases = tuple(alias for alias, meant in ALIASES.items() if meant == name)
    return ProviderFacts(provider_named(name).isolation, aliases)


def _strategy(id: str) -> StrategyFacts:
    """Describe a built-in strategy. Other installed strategies are not part of the contract."""
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
