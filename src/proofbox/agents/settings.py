"""The settings of a runtime: its table in `config.toml`, overridden by command-line flags.

Each runtime declares its settings as a struct (`AgentRuntime.settings`). An unknown name is refused, with the nearest
known name as a hint. A flag such as `--model` applies to every runtime of the chain that has a setting of that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args, get_origin, runtime_checkable

import msgspec

from proofbox.agents.contract import AgentRuntime
from proofbox.agents.registry import Registry
from proofbox.agents.strategies import Chain
from proofbox.core.nearest import nearest
from proofbox.errors import AgentError, UsageError

if TYPE_CHECKING:
    from proofbox.agents.gateway.endpoint import ModelAccess

S = TypeVar("S", bound=msgspec.Struct)


def read_settings(kind: type[S], table: Mapping[str, Any], runtime: str) -> S:
    """Convert a table to the runtime's settings struct. Raises `UsageError` that names the invalid setting."""
    known = kind.__struct_fields__
    for name in table:
        if name not in known:
            raise UsageError(f"{runtime} has no setting {name[:60]!r}", op="settings", fix_hints=[nearest(name, known)])
    try:
        return msgspec.convert(dict(table), kind)
    except msgspec.ValidationError as error:
        hints = [*_known_values(kind, str(error)), "see docs/agents.md"]
        raise UsageError(f"[runtimes.{runtime}]: {error}", op="settings", fix_hints=hints) from None


def _known_values(kind: type[msgspec.Struct], message: str) -> Iterator[str]:
    """Yield a hint with the possible values of the setting that a message is about, if it allows only some."""
    for field in msgspec.structs.fields(kind):
        if message.endswith(f"`$.{field.name}`"):
            choices = [value for part in (field.type, *get_args(field.type)) for value in _literals(part)]
            if choices:
                yield f"known: {', '.join(map(str, choices))}"


def _literals(part: Any) -> tuple[Any, ...]:
    return get_args(part) if get_origin(part) is Literal else ()


@runtime_checkable
class _HasDefaultModel(Protocol):
    """A runtime that reaches a model even if its settings name no endpoint."""

    def model_access(self, settings: Mapping[str, Any]) -> ModelAccess | None: ...


def model_access(runtime: AgentRuntime, settings: Mapping[str, Any]) -> ModelAccess | None:
    """Return where a runtime with these settings finds its model; None if it uses none through the gateway.

    Raises `UsageError` for invalid settings.
    """
    from proofbox.agents.gateway.endpoint import ModelAccess  # commands that read evidence access no model

    if isinstance(runtime, _HasDefaultModel):
        return runtime.model_access(settings)
    url, key = settings.get("base_url"), settings.get("api_key_env")
    return ModelAccess(str(url or ""), key) if url or key else None


def with_absolute_paths(tables: Mapping[str, Mapping[str, Any]], base: Path) -> dict[str, dict[str, Any]]:
    """Return the tables with absolute host paths in mounts and scripts, because workers run in another directory."""
    return {
        id: {
            name: _absolute(value, base) if name == "mounts" or (id, name) == ("scripted", "script") else value
            for name, value in table.items()
        }
        for id, table in tables.items()
    }


def _absolute(value: Any, base: Path) -> Any:
    if isinstance(value, str):
        return f"{base}/{value}" if value and not value.startswith(("/", ":")) else value
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return [_absolute(each, base) for each in value]
    return value  # a script itself, or an error that the runtime reports


class RuntimeSettings:
    """The settings of all runtimes, from the file and from flags. Call it with a runtime to get its settings."""

    def __init__(self, tables: Mapping[str, Mapping[str, Any]], flags: Mapping[str, Any] | None = None) -> None:
        self._tables = tables
        self._flags = {name: value for name, value in (flags or {}).items() if value is not None}

    def __call__(self, runtime: AgentRuntime) -> dict[str, Any]:
        known = runtime.settings.__struct_fields__
        table = dict(self._tables.get(runtime.id, {}))
        return table | {name: value for name, value in self._flags.items() if name in known}

    def check(self, chain: Chain, registry: Registry) -> None:
        """Raise `UsageError` for a table of an unknown runtime, or a flag that no runtime of the chain supports."""
        for id in self._tables:
            if id not in registry:
                hint = nearest(id, registry.ids)
                raise UsageError(f"[runtimes.{id[:60]}]: unknown runtime", op="settings", fix_hints=[hint])
        supported: set[str] = set()
        for candidate in chain.candidates:
            try:
                supported |= set(registry.runtime(candidate.strategy).settings.__struct_fields__)
            except AgentError:  # reported when the chain is resolved
                return
        unsupported = sorted(set(self._flags) - supported)
        if unsupported:
            raise UsageError(
                f"no runtime of the chain {chain} has a setting {unsupported[0]!r}",
                op="settings",
                fix_hints=[
                    "omit the flag, or add a strategy that has this setting",
                    f"known: {', '.join(sorted(supported))}",
                ],
            )
