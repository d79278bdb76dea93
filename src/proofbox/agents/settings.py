"""The settings of a runtime: its table in `config.toml`, overridden by command-line flags.

Each runtime declares its settings as a struct (`AgentRuntime.settings`). An unknown name is refused, with the nearest
known name as a hint. A flag such as `--model` applies to every runtime of the chain that has a setting of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from proofbox.agents.contract import AgentRuntime
from proofbox.agents.registry import Registry
from proofbox.agents.strategies import Chain
from proofbox.core.nearest import nearest
from proofbox.errors import AgentError, UsageError

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
        raise UsageError(f"[runtimes.{runtime}]: {error}", op="settings", fix_hints=["see docs/agents.md"]) from None


def with_absolute_mounts(tables: Mapping[str, Mapping[str, Any]], base: Path) -> dict[str, dict[str, Any]]:
    """Return the tables with absolute host paths in every mount, because workers run in another directory."""
    return {
        id: {name: _absolute(value, base) if name == "mounts" else value for name, value in table.items()}
        for id, table in tables.items()
    }


def _absolute(mounts: Any, base: Path) -> Any:
    if not isinstance(mounts, list | tuple) or not all(isinstance(each, str) for each in mounts):
        return mounts  # the runtime reports the error
    return [f"{base}/{each}" if each and not each.startswith(("/", ":")) else each for each in mounts]


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
