"""What a runtime is told: its table in `config.toml`, and over that the flags of this call.

Each runtime declares its settings as a struct (`AgentRuntime.settings`); a name that is not in it is refused with the
nearest one that is. A flag such as `--model` is for every runtime of the chain that has a setting of that name.
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


def read_settings(kind: type[S], said: Mapping[str, Any], runtime: str) -> S:
    """The settings as the runtime's own struct, or a `UsageError` that names what is wrong."""
    known = kind.__struct_fields__
    for name in said:
        if name not in known:
            raise UsageError(f"{runtime} has no setting {name[:60]!r}", op="settings", fix_hints=[nearest(name, known)])
    try:
        return msgspec.convert(dict(said), kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"[runtimes.{runtime}]: {error}", op="settings", fix_hints=["see docs/agents.md"]) from None


def with_absolute_mounts(tables: Mapping[str, Mapping[str, Any]], base: Path) -> dict[str, dict[str, Any]]:
    """Return the tables with every mount's host path made absolute: a worker runs in another directory."""
    return {
        id: {name: _anchored(value, base) if name == "mounts" else value for name, value in said.items()}
        for id, said in tables.items()
    }


def _anchored(mounts: Any, base: Path) -> Any:
    if not isinstance(mounts, list | tuple) or not all(isinstance(each, str) for each in mounts):
        return mounts  # the runtime says what is wrong with them
    return [f"{base}/{each}" if each and not each.startswith(("/", ":")) else each for each in mounts]


class RuntimeSettings:
    """The settings of every runtime, from the file and from flags. Calling it with a runtime gives that one's."""

    def __init__(self, tables: Mapping[str, Mapping[str, Any]], flags: Mapping[str, Any] | None = None) -> None:
        self._tables = tables
        self._flags = {name: value for name, value in (flags or {}).items() if value is not None}

    def __call__(self, runtime: AgentRuntime) -> dict[str, Any]:
        known = runtime.settings.__struct_fields__
        said = dict(self._tables.get(runtime.id, {}))
        return said | {name: value for name, value in self._flags.items() if name in known}

    def check(self, chain: Chain, registry: Registry) -> None:
        """Refuse a table for a runtime that nobody has, and a flag that no runtime of the chain would hear."""
        for id in self._tables:
            if id not in registry.ids:
                hint = nearest(id, registry.ids)
                raise UsageError(f"[runtimes.{id[:60]}]: there is no such runtime", op="settings", fix_hints=[hint])
        heard: set[str] = set()
        for candidate in chain.candidates:
            try:
                heard |= set(registry.runtime(candidate.strategy).settings.__struct_fields__)
            except AgentError:  # it will be told when the chain is resolved
                return
        deaf = sorted(set(self._flags) - heard)
        if deaf:
            raise UsageError(
                f"no runtime of the chain {chain} has a setting {deaf[0]!r}",
                op="settings",
                fix_hints=[
                    "leave the flag out, or add a strategy that has it",
                    f"known: {', '.join(sorted(heard))}",
                ],
            )
