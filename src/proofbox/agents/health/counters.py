"""Health counters of each strategy across all runs of this user: one small file per strategy in the state directory.

Every attempt adds to them once its result is recorded. A file is replaced atomically under a lock, so any number of
processes can write, and a process that is killed leaves the counters as they were before or after its update. Counters
help to operate runs; they are not evidence, and nothing in a bundle depends on them. A process that is killed between
recording results and counting them loses those counts: for a worker of a run, those of the last second.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec

from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.dirs import state_dir
from proofbox.core.documents import require_version, stored
from proofbox.core.files.atomic import sweep_temporaries, write_document
from proofbox.core.files.locks import locked
from proofbox.core.files.plain import read_plain
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import (
    AuthFailed,
    ModelFailed,
    Overloaded,
    RateLimited,
    SetupFailed,
    StrategyUnavailable,
    UsageLimited,
    VersionUnknown,
)

SCHEMA: Final = "proofbox.strategy_health/1"
WINDOW: Final = 200
"""The number of last attempts that reliability and latency are computed from."""
MAX_CODES: Final = 40
"""Maximum number of different codes that are counted; further ones are counted as `OTHER`."""
MAX_STRATEGIES: Final = 64
"""Maximum number of strategies; the least recently used one is removed. Users can name any number of strategies."""
MAX_COUNT: Final = 2**53 - 1
"""Counters stop here: the largest integer that every JSON reader represents exactly."""
MAX_BYTES: Final = 64 << 10
OTHER: Final = "OTHER"
UNRELATED: Final = frozenset(
    each.code
    for each in (AuthFailed, RateLimited, UsageLimited, Overloaded, ModelFailed, SetupFailed, StrategyUnavailable)
)
"""Failures of the account, of the model's provider or of a mission's setup, and attempts without what the strategy
needs, such as its key or its program. They say nothing about the strategy."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
_Code = Annotated[str, msgspec.Meta(pattern=r"^[A-Z][A-Z0-9_]{0,63}$")]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Strategy = Annotated[str, msgspec.Meta(max_length=100)]


class AttemptHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt adds to the counters of its strategy."""

    infra: str | None = None
    """The code of the infrastructure failure; None if there was no failure."""
    is_retry: bool = False
    """Whether it replaced an attempt that was lost to infrastructure."""
    model_retries: int = 0
    """Model requests that the agent retried."""
    restarts: int = 0
    """How often the agent's program was restarted after a crash."""
    start_ms: float | None = None
    """Milliseconds until the agent's turn began; None if it did not."""
    turn_ms: float | None = None
    """Milliseconds of the agent's turn; None if it did not end."""


class RecentAttempt(msgspec.Struct, frozen=True, array_like=True):
    """One of the last attempts."""

    code: Annotated[str, msgspec.Meta(pattern=r"^([A-Z][A-Z0-9_]{0,63})?$")]
    """The code of the infrastructure failure; empty if there was no failure."""
    start_ms: _Milliseconds | None = None
    """Milliseconds until the agent's turn began; null if it did not."""
    turn_ms: _Milliseconds | None = None
    """Milliseconds of the agent's turn; null if it did not end."""


@stored(SCHEMA, at="STATE/health/STRATEGY.json")
class StrategyCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one strategy over all attempts of this user."""

    schema_version: str = SCHEMA
    strategy: _Strategy
    """The strategy's id."""
    attempts: _Count = 0
    """Attempts that ended."""
    infra: Annotated[dict[_Code, _Count], msgspec.Meta(max_length=MAX_CODES + 1)] = {}
    """Attempts lost to infrastructure, by code; `OTHER` for all codes beyond the first 40."""
    restarts: _Count = 0
    """Restarts of the agent's program after a crash."""
    model_retries: _Count = 0
    """Model requests that the agent retried."""
    attempt_retries: _Count = 0
    """Attempts that replaced one lost to infrastructure."""
    recent: Annotated[tuple[RecentAttempt, ...], msgspec.Meta(max_length=WINDOW)] = ()
    """The last 200 attempts, oldest first, without failures of the account, the model's provider or the mission's
    setup.
    """
    updated_at: Annotated[str, msgspec.Meta(max_length=40)] = ""
    """When the last attempt was counted."""


class Latency(msgspec.Struct, frozen=True):
    """A duration over the last attempts, in milliseconds."""

    median: float
    """The median."""
    p95: float
    """The 95th percentile, by nearest rank."""


class StrategyHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The health of one strategy on this machine, across runs."""

    strategy: str
    """The strategy's id."""
    attempts: int
    """Attempts that ended."""
    infra: dict[str, int]
    """Attempts lost to infrastructure, by code."""
    restarts: int
    """Restarts of the agent's program after a crash."""
    model_retries: int
    """Model requests that the agent retried."""
    attempt_retries: int
    """Attempts that replaced one lost to infrastructure."""
    window: int
    """The number of last attempts that the members below are computed from, at most 200. Failures of the account, the
    model's provider or the mission's setup are not among them.
    """
    reliability: float | None
    """The share of them without an infrastructure failure; null: there is no attempt yet."""
    start_ms: Latency | None
    """Time until the agent's turn began; null: not measured."""
    turn_ms: Latency | None
    """Time of the agent's turn; null: not measured."""
    updated_at: str
    """When the last attempt was counted; empty: never."""
    problem: str = ""
    """Why the counters cannot be read; empty: they can."""


def health_dir() -> Path:
    return state_dir() / "health"


def is_strategy(name: str) -> bool:
    """Return whether a name can be a strategy's, and so the name of a file."""
    from proofbox.agents.registry import STRATEGY  # looks for installed packages, which help does not need

    return len(name) <= 100 and STRATEGY.fullmatch(name) is not None


def count_attempt(
    strategy: str, *attempts: AttemptHealth, clock: Clock | None = None, directory: Path | None = None
) -> None:
    """Add an attempt, or several in their order, to the counters of their strategy.

    A damaged file is kept as `STRATEGY.json.damaged`, and counting starts again. Raises `OSError` if the state
    directory cannot be written, and `VersionUnknown` if another version of proofbox has written the file.
    """
    if not is_strategy(strategy):
        return  # an attempt whose agent never started has no strategy
    place = directory or health_dir()
    place.mkdir(mode=0o700, exist_ok=True)
    now = isoformat((clock or SystemClock()).now())
    with locked(place / ".lock"):
        path = place / f"{strategy}.json"
        try:
            old = _read(path, strategy)
        except FileNotFoundError:
            _make_room(place)
            old = StrategyCounters(strategy=strategy)
        except (OSError, msgspec.DecodeError):
            _set_aside(path)
            old = StrategyCounters(strategy=strategy)
        for attempt in attempts:
            old = _added(old, attempt, now)
        # Without a sync: a power cut may lose the last counts, and a file that it damages is replaced.
        write_document(path, msgspec.json.encode(old), mode=0o600, sync=False)


def read_health(strategy: str, *, directory: Path | None = None) -> StrategyHealth:
    """Return the health of a strategy. Damaged counters are reported as such, not as zeros."""
    problem = ""
    counters = StrategyCounters(strategy=strategy)
    if is_strategy(strategy):
        path = (directory or health_dir()) / f"{strategy}.json"
        try:
            counters = _read(path, strategy)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError, VersionUnknown) as error:
            problem = f"{path} cannot be read: {error}"
    return _described(counters, problem)


def _read(path: Path, strategy: str) -> StrategyCounters:
    data = read_plain(path, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise msgspec.DecodeError(f"it is larger than {MAX_BYTES} bytes")
    require_version(data, SCHEMA, path)
    found = parse_json(data, StrategyCounters)
    if found.strategy != strategy:
        raise msgspec.DecodeError("it states another strategy")
    return found


def _added(old: StrategyCounters, attempt: AttemptHealth, now: str) -> StrategyCounters:
    infra = dict(old.infra)
    code = attempt.infra or ""
    if code:
        known = code in infra or len(infra) < MAX_CODES
        name = code if known else OTHER
        infra[name] = min(infra.get(name, 0) + 1, MAX_COUNT)
    recent = old.recent
    if code not in UNRELATED:
        recent = (*recent, RecentAttempt(code, _bounded(attempt.start_ms), _bounded(attempt.turn_ms)))[-WINDOW:]
    return msgspec.structs.replace(
        old,
        attempts=_sum(old.attempts, 1),
        infra=infra,
        restarts=_sum(old.restarts, attempt.restarts),
        model_retries=_sum(old.model_retries, attempt.model_retries),
        attempt_retries=_sum(old.attempt_retries, attempt.is_retry),
        recent=recent,
        updated_at=now,
    )


def _sum(old: int, more: int) -> int:
    return min(old + max(0, more), MAX_COUNT)


def _bounded(value: float | None) -> float | None:
    """Round to a tenth of a millisecond. What an agent reports may be negative or not finite."""
    return round(value, 1) if value is not None and 0 <= value <= 1e12 else None


def _described(counters: StrategyCounters, problem: str) -> StrategyHealth:
    recent = counters.recent
    return StrategyHealth(
        strategy=counters.strategy,
        attempts=counters.attempts,
        infra=dict(sorted(counters.infra.items())),
        restarts=counters.restarts,
        model_retries=counters.model_retries,
        attempt_retries=counters.attempt_retries,
        window=len(recent),
        reliability=sum(not each.code for each in recent) / len(recent) if recent else None,
        start_ms=_latency([each.start_ms for each in recent if each.start_ms is not None]),
        turn_ms=_latency([each.turn_ms for each in recent if each.turn_ms is not None]),
        updated_at=counters.updated_at,
        problem=problem,
    )


def _latency(values: list[float]) -> Latency | None:
    from statistics import median  # a slow import, for few commands

    ordered = sorted(values)
    return Latency(round(median(ordered), 1), ordered[-(-len(ordered) * 95 // 100) - 1]) if ordered else None


def _set_aside(path: Path) -> None:
    os.replace(path, path.with_name(f"{path.name}.damaged"))


def _make_room(place: Path) -> None:
    """Remove temporary files of killed writers, and counters beyond the maximum number of strategies."""
    sweep_temporaries(place)
    found = sorted(_files(place), key=lambda each: each[0])
    for _, path in found[: max(0, len(found) - MAX_STRATEGIES + 1)]:
        path.unlink(missing_ok=True)


def _files(place: Path) -> Iterator[tuple[float, Path]]:
    for path in place.glob("*.json"):
        if is_strategy(path.name.removesuffix(".json")):
            yield path.lstat().st_mtime, path
