"""Lists the installed runtimes, and whether each works here with the project's settings."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec

from proofbox.agents.contract import RuntimeCapabilities, RuntimeProbe
from proofbox.agents.health.counters import StrategyHealth, read_health
from proofbox.agents.health.recommendation import Recommendation, recommend
from proofbox.agents.registry import Registry, installed
from proofbox.agents.settings import RuntimeSettings
from proofbox.config.settings import load
from proofbox.errors import StrategyUnavailable, UsageError


class RuntimeFacts(msgspec.Struct, frozen=True, kw_only=True):
    strategy: str
    title: str
    """A one-line description; empty if its code cannot be loaded."""
    available: bool
    compatible: bool
    version: str
    code: str
    reason: str
    fix_hints: tuple[str, ...]
    capabilities: RuntimeCapabilities
    health: StrategyHealth
    """Its attempts on this machine, across runs."""
    recommendation: Recommendation | None
    """Whether it is recommended here; null: it is not a native strategy."""


def list_runtimes(project: Path, registry: Registry | None = None) -> tuple[RuntimeFacts, ...]:
    """Return every installed runtime, and whether it works with the project's settings."""
    registry = registry or installed()
    tables = load(project.resolve()).runtimes
    settings = RuntimeSettings(tables)
    named = [id for id in tables if "." in id and id in registry]

    async def probe_all() -> tuple[RuntimeFacts, ...]:
        return tuple([await _probe(strategy, registry, settings) for strategy in sorted([*registry.ids, *named])])

    return anyio.run(probe_all)


async def _probe(strategy: str, registry: Registry, settings: RuntimeSettings) -> RuntimeFacts:
    title, capabilities = "", RuntimeCapabilities(supports_thread_start=False)
    try:
        runtime = registry.runtime(strategy)
        title, capabilities = runtime.title, runtime.capabilities
        probe = await runtime.probe(settings(runtime))
    except (StrategyUnavailable, UsageError) as error:
        probe = RuntimeProbe(
            strategy=strategy, available=False, code=error.code, reason=error.message, fix_hints=error.fix_hints
        )
    return RuntimeFacts(
        strategy=strategy,
        title=title,
        available=probe.available,
        compatible=probe.compatible,
        version=probe.version,
        code=probe.code,
        reason=probe.reason,
        fix_hints=probe.fix_hints,
        capabilities=capabilities,
        health=read_health(strategy),
        recommendation=recommend(strategy, probe.version),
    )
