"""The registry of runtimes. Runtimes are imported lazily.

Besides the built-in runtimes, an installed package may provide its own with an entry point in the group
`proofbox.runtimes`: the entry point's name is the strategy id, its object a class that implements `AgentRuntime`. A
built-in id can't be overridden.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from proofbox.agents.contract import AgentRuntime
from proofbox.config.settings import NAMED_RUNTIMES
from proofbox.core.nearest import nearest
from proofbox.errors import StrategyUnavailable, StrategyUnsupported

GROUP = "proofbox.runtimes"
BUILT_IN: dict[str, str] = {
    "acp": "proofbox.agents.runtimes.acp:AcpRuntime",
    "claude_code": "proofbox.agents.runtimes.claude:ClaudeCode",
    "codex_app_server": "proofbox.agents.runtimes.codex:CodexAppServer",
    "nop": "proofbox.agents.runtimes.controls:NopRuntime",
    "oracle": "proofbox.agents.runtimes.controls:OracleRuntime",
    "process": "proofbox.agents.runtimes.process.runtime:ProcessRuntime",
    "scripted": "proofbox.agents.runtimes.scripted.runtime:ScriptedRuntime",
}
ID = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
STRATEGY = re.compile(rf"{ID.pattern}(?:\.[a-z0-9]+(?:[_-][a-z0-9]+)*)?")
"""The id of a runtime, and a name if it is one of several of a kind: `process.NAME`."""

Loader = Callable[[], AgentRuntime]


class Registry:
    """Strategy ids and the loader of each runtime."""

    def __init__(self, loaders: Mapping[str, Loader]) -> None:
        self._loaders = dict(loaders)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids in alphabetical order, independent of the order of installation."""
        return tuple(sorted(self._loaders))

    def __contains__(self, strategy: str) -> bool:
        id, dot, _ = strategy.partition(".")
        named = id in NAMED_RUNTIMES and STRATEGY.fullmatch(strategy) is not None
        return id in self._loaders and (not dot or named)

    def runtime(self, strategy: str) -> AgentRuntime:
        """Load a runtime. Raises `StrategyUnsupported` for an unknown id, `StrategyUnavailable` if loading fails."""
        id, _, name = strategy.partition(".")
        loader = self._loaders.get(id) if strategy in self else None
        if loader is None:
            raise StrategyUnsupported(
                f"unknown strategy {strategy[:60]!r}",
                op="strategy",
                fix_hints=[nearest(strategy, self.ids), "list strategies: proofbox runtime list"],
            )
        try:
            runtime = loader()
        except Exception as error:
            raise StrategyUnavailable(
                f"the runtime {strategy} can't be loaded: {type(error).__name__}: {error}",
                op="strategy",
                fix_hints=["reinstall the package that provides it"],
            ) from error
        if name:
            runtime.id = strategy
        return runtime


@cache
def installed() -> Registry:
    """Return the built-in runtimes and those of installed packages. The result is cached."""
    from importlib.metadata import entry_points

    loaders: dict[str, Loader] = {
        entry.name: lambda entry=entry: entry.load()()  # type: ignore[misc]  # the default binds the loop variable
        for entry in entry_points(group=GROUP)
        if ID.fullmatch(entry.name)
    }
    return Registry(loaders | {id: _from(target) for id, target in BUILT_IN.items()})


def _from(target: str) -> Loader:
    module, _, name = target.partition(":")

    def load() -> AgentRuntime:
        runtime: Any = getattr(importlib.import_module(module), name)
        return runtime()  # type: ignore[no-any-return]

    return load
