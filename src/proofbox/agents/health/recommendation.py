"""Which native strategy is recommended on this machine, by three numeric criteria, and why or why not.

The reliability comes from the health counters. Overhead and cross-talk are measured by `scripts/bench runtimes`, which
stores its result in the state directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from proofbox.agents.health.counters import StrategyHealth, health_dir, is_strategy, read_health
from proofbox.core.documents import require_version, stored
from proofbox.core.files.atomic import write_document
from proofbox.core.files.plain import read_plain
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import AgentError, UsageError, VersionUnknown

if TYPE_CHECKING:
    from proofbox.agents.registry import Registry
    from proofbox.agents.settings import RuntimeSettings

MIN_RELIABILITY: Final = 0.99
"""The smallest share of the last attempts without an infrastructure failure."""
MIN_ATTEMPTS: Final = 200
"""Reliability is computed from this many of the most recent attempts."""
MAX_OVERHEAD: Final = 0.15
"""The largest share of the bare agent's time that a turn may take in addition."""
PARALLEL: Final = 20
"""The number of parallel attempts that must complete without cross-talk."""
MEASURE: Final = "scripts/bench runtimes, in a checkout of proofbox"
SCHEMA: Final = "proofbox.runtime_measurement/1"
_LARGEST: Final = 16 << 10
_OTHER_KINDS: Final = frozenset({"nop", "oracle", "process", "scripted"})
"""Strategies that do not drive an agent over its own protocol."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
_Text = Annotated[str, msgspec.Meta(max_length=100)]


@stored(SCHEMA, at="STATE/health/measured/STRATEGY.json")
class RuntimeMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """What a benchmark measured about one strategy on this machine."""

    schema_version: str = SCHEMA
    strategy: _Text
    """The strategy's id."""
    version: _Text
    """The version of the agent that was measured."""
    overhead: Annotated[float, msgspec.Meta(ge=-1, le=1e6)]
    """The additional time of a turn, as a share of the bare agent's: 0.1 is 10 %."""
    parallel: _Count
    """Attempts that ran at the same time."""
    completed: _Count
    """Attempts that passed their verification."""
    crosstalk: _Count
    """Those whose record or files contain anything of another attempt."""
    measured_at: _Text
    """When it was measured."""


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a native strategy is recommended here."""

    recommended: bool
    """Whether it meets every criterion."""
    reasons: tuple[str, ...]
    """The finding for each criterion; if some are not met, for those alone."""
    overhead: float | None = None
    """The additional time of a turn, as a share of the bare agent's; null: not measured."""
    measured_at: str = ""
    """When overhead and cross-talk were measured; empty: never."""


def is_native(strategy: str) -> bool:
    """Return whether a strategy drives an agent over the agent's own protocol."""
    return strategy.partition(".")[0] not in _OTHER_KINDS


def record_measurement(measured: RuntimeMeasurement, *, directory: Path | None = None) -> None:
    """Store what a benchmark measured, in place of its last result."""
    place = (directory or health_dir()) / "measured"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_document(place / f"{measured.strategy}.json", msgspec.json.encode(measured), mode=0o600)


def read_measurement(strategy: str, *, directory: Path | None = None) -> RuntimeMeasurement | None:
    """Return the last measurement of a strategy; None if it is missing or damaged."""
    if not is_strategy(strategy):
        return None
    path = (directory or health_dir()) / "measured" / f"{strategy}.json"
    try:
        data = read_plain(path, _LARGEST)
        require_version(data, SCHEMA, path)
        found = parse_json(data, RuntimeMeasurement)
    except (OSError, msgspec.DecodeError, VersionUnknown):
        return None
    return found if found.strategy == strategy else None


def judge(health: StrategyHealth, measured: RuntimeMeasurement | None, version: str = "") -> Recommendation:
    """Decide whether a native strategy is recommended. An unknown value does not pass.

    `version` is the installed agent's, or empty if unknown; a measurement of another version does not count.
    """
    met: list[str] = []
    unmet: list[str] = []

    def require(condition: bool, found: str, required: str) -> None:
        (met if condition else unmet).append(found if condition else f"{found}; required: {required}")

    if measured is None:
        unmet.append(f"not measured yet: run {MEASURE}")
    elif version and measured.version != version:
        unmet.append(f"measured with version {measured.version}, but {version} is installed: run {MEASURE}")
    if health.problem:
        unmet.append(health.problem)
    elif health.window >= MIN_ATTEMPTS:
        share = health.reliability or 0.0
        found = f"reliability {_percent(share)} over the last {health.window} attempts"
        require(share >= MIN_RELIABILITY, found, f"at least {_percent(MIN_RELIABILITY)}")
    elif measured is not None:
        unmet.append(f"reliability known over {health.window} of {MIN_ATTEMPTS} attempts: run {MEASURE}")
    if measured is not None:
        found, required = f"overhead {_percent(measured.overhead)}", f"at most {_percent(MAX_OVERHEAD)}"
        require(measured.overhead <= MAX_OVERHEAD, found, required)
        clean = min(measured.completed, measured.parallel) >= PARALLEL and not measured.crosstalk
        crossed = f"with cross-talk in {measured.crosstalk}" if measured.crosstalk else "without cross-talk"
        found = f"{measured.completed} attempts completed, {measured.parallel} at the same time, {crossed}"
        require(clean, found, f"{PARALLEL} at the same time without cross-talk")
    return Recommendation(
        recommended=not unmet,
        reasons=tuple(unmet or met),
        overhead=None if measured is None else measured.overhead,
        measured_at="" if measured is None else measured.measured_at,
    )


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def recommend(strategy: str, version: str = "", *, directory: Path | None = None) -> Recommendation | None:
    """Return whether a strategy is recommended here; None if it is not native. `version` is as in `judge`."""
    if not is_native(strategy):
        return None
    health, measured = read_health(strategy, directory=directory), read_measurement(strategy, directory=directory)
    return judge(health, measured, version)


def default_chain(settings: RuntimeSettings, registry: Registry | None = None) -> Sequence[str]:
    """Return the chain that is used if none is set: the recommended native strategy, if its key is set, then the
    scripted agent.

    Of several strategies, the one with the smallest overhead is used. The choice depends on what was measured on this
    machine and on which keys are set, never on load or chance.
    """
    import anyio  # needed only here, and not by commands that show a recommendation

    from proofbox.agents.registry import installed
    from proofbox.agents.strategies import DEFAULT_CHAIN

    registry = registry or installed()
    judged = {id: recommend(id) for id in registry.ids}
    ranked = sorted((each.overhead or 0.0, id) for id, each in judged.items() if each is not None and each.recommended)
    for _, id in ranked:
        try:
            runtime = registry.runtime(id)
            probe = anyio.run(runtime.probe, settings(runtime))
        except (AgentError, UsageError):  # reported if the strategy is named
            continue
        current = recommend(id, probe.version)
        if probe.available and probe.compatible and current is not None and current.recommended:
            return (id, DEFAULT_CHAIN)
    return (DEFAULT_CHAIN,)
