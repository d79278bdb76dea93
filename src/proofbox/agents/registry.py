"""Which runtimes there are. Nothing of a runtime is loaded before it is asked for.

Besides the built-in ones, an installed package may bring its own by an entry point of the group `proofbox.runtimes`:
its name is the strategy's id, its object a class that keeps `AgentRuntime`. A built-in id can't be taken over.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from proofbox.agents.contract import AgentRuntime
from proofbox.core.nearest import nearest
from proofbox.errors import StrategyUnavailable, StrategyUnsupported

GROUP = "proofbox.runtimes"
BUILT_IN: dict[str, str] = {
    "codex_app_server": "proofbox.agents.runtimes.codex:CodexAppServer",
    "nop": "proofbox.agents.runtimes.controls:NopRuntime",
    "oracle": "proofbox.agents.runtimes.controls:OracleRuntime",
    "process": "proofbox.agents.runtimes.process.runtime:ProcessRuntime",
    "scripted": "proofbox.agents.runtimes.scripted.runtime:ScriptedRuntime",
}
ID = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")

Loader = Callable[[], AgentRuntime]


class Registry:
    """Strategy ids and how each one's runtime is had."""

    def __init__(self, loaders: Mapping[str, Loader]) -> None:
        self._loaders = dict(loaders)

    @property
    def ids(self) -> tuple[str, ...]:
        """In the order of the alphabet, so that nothing depends on the order of installation."""
        return tuple(sorted(self._loaders))

    def runtime(self, strategy: str) -> AgentRuntime:
        """Raises `StrategyUnsupported` for an id nobody has, `StrategyUnavailable` for one whose code can't be had."""
        loader = self._loaders.get(strategy)
        if loader is None:
            raise StrategyUnsupported(
                f"there is no strategy {strategy[:60]!r}",
                op="strategy",
                fix_hints=[nearest(strategy, self.ids), "list them: proofbox runtime list"],
            )
        try:
            return loader()
        except Exception as error:
            raise StrategyUnavailable(
                f"the runtime {strategy} can't be loaded: {type(error).__name__}: {error}",
                op="strategy",
                fix_hints=["reinstall the package it comes from"],
            ) from error


@cache
def installed() -> Registry:
    """The built-in runtimes, and those that installed packages bring: looked for once."""
    loaders: dict[str, Loader] = {
        entry.name: lambda entry=entry: entry.load()()  # type: ignore[misc]  # a default binds it
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
