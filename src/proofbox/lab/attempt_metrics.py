"""What an attempt used and how it went, read from the documents of its bundle: for reports and health counters."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from proofbox.agents.events import TokenUsage
from proofbox.agents.health.counters import AttemptHealth, count_attempt
from proofbox.core.clock import Clock
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.core.spec_files.text_files import Unreadable, decode, read_text
from proofbox.errors import BundleError, ProofboxError
from proofbox.evidence.bundle.reader import Bundle
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.result import AttemptResult
from proofbox.lab.attempt.trace import CALLS

_LARGEST: Final = 4 << 20
_T = TypeVar("_T", bound=msgspec.Struct)


class AttemptMetrics(msgspec.Struct, frozen=True):
    """The figures of an attempt for reports. Unknown members are empty or null."""

    tokens: dict[str, TokenUsage] = {}
    tool_calls: int | None = None
    tool_failures: dict[str, int] = {}
    retries: dict[str, int] = {}
    no_progress: dict[str, int] = {}
    integrity: tuple[dict[str, Any], ...] = ()
    turn_ms: float | None = None
    call_ms: float | None = None
    """Milliseconds of all tool calls."""
    last_call_failed: bool | None = None
    """Whether the last tool call failed; null without any call."""
    cleanup: str | None = None
    """The code of a failed cleanup."""

    @property
    def usage(self) -> TokenUsage | None:
        """The tokens as counted by the gateway, else as reported by the agent; None if unknown."""
        return self.tokens.get("gateway") or self.tokens.get("runtime_reported")

    @property
    def spent(self) -> int | None:
        """Input and output tokens; None if unknown."""
        return None if self.usage is None else self.usage.input_tokens + self.usage.output_tokens

    @property
    def idle(self) -> float | None:
        """The share of the turn in which no tool call was running; None if unknown."""
        if not self.turn_ms or self.call_ms is None:
            return None
        return max(0.0, 1 - self.call_ms / self.turn_ms)


class _Call(msgspec.Struct, frozen=True):
    status: str
    exit_code: int | None = None
    duration_ms: float | None = None


class _Cleanup(msgspec.Struct, frozen=True):
    code: str | None = None


class _State(msgspec.Struct, frozen=True):
    state: str
    at_ms: float


class _RuntimeFacts(msgspec.Struct, frozen=True):
    recoveries: tuple[Any, ...] = ()
    restarts: int = 0


class _HealthFacts(msgspec.Struct, frozen=True):
    """What the health counters need of an attempt."""

    retries: dict[str, int] = {}
    turn_ms: float | None = None
    states: tuple[_State, ...] = ()
    facts: _RuntimeFacts = _RuntimeFacts()

    @property
    def start_ms(self) -> float | None:
        """Milliseconds between the preparation and the agent's turn: the box, the program and its handshake."""
        times = {each.state: each.at_ms for each in self.states}
        if self.turn_ms is None or not {"running", "stopping"} <= times.keys():
            return None
        return max(0.0, times["stopping"] - times["running"] - self.turn_ms)


def read_metrics(bundle: Bundle | Path) -> AttemptMetrics:
    """Return the figures of an attempt: of a verified bundle, or of an unverified one by its path.

    Damaged documents count as unknown: validation reports them.
    """
    found = _read(bundle, (artifacts.REPORT,), AttemptMetrics)
    found = msgspec.structs.replace(found, cleanup=_read(bundle, (artifacts.CLEANUP,), _Cleanup).code)
    try:
        lines = _text(bundle, CALLS).split("\n")
        calls = [parse_json(line, _Call) for line in lines if line]
    except (Unreadable, msgspec.DecodeError):
        return found
    failed = bool(calls) and (calls[-1].status != "completed" or calls[-1].exit_code not in (None, 0))
    return msgspec.structs.replace(
        found, call_ms=sum(each.duration_ms or 0.0 for each in calls), last_call_failed=failed if calls else None
    )


class _Node(msgspec.Struct, frozen=True):
    name: str | None = None


def node_of(bundle: Path) -> str | None:
    """Return the name of the node that ran an attempt; None if it ran on the conductor's machine, or is unknown."""
    return _read(bundle, (artifacts.NODE,), _Node).name


def node_in(bundle: Bundle) -> str | None:
    """Return the name of the node that a verified bundle states; None if it states no node, or a malformed one."""
    if artifacts.NODE not in bundle.artifacts:
        return None
    with contextlib.suppress(BundleError, msgspec.ValidationError):
        return msgspec.convert(bundle.read_json(artifacts.NODE, limit=_LARGEST), _Node).name
    return None


def health_of(bundle: Path, result: AttemptResult, *, is_retry: bool) -> AttemptHealth:
    """Return what an attempt adds to the health counters of its strategy."""
    found = _read(bundle, (artifacts.ATTEMPT, artifacts.RUNNER, artifacts.REPORT), _HealthFacts)
    return AttemptHealth(
        infra=result.infra,
        is_retry=is_retry,
        model_retries=sum(found.retries.values()),
        restarts=len(found.facts.recoveries) + found.facts.restarts,
        start_ms=found.start_ms,
        turn_ms=found.turn_ms,
    )


def count_health(strategy: str, *attempts: AttemptHealth, clock: Clock) -> None:
    """Add attempts to the health counters of their strategy.

    Counters are a convenience: if they cannot be written, the attempts stand as they are.
    """
    with contextlib.suppress(OSError, ProofboxError):
        count_attempt(strategy, *attempts, clock=clock)


def _text(bundle: Bundle | Path, name: str) -> str:
    if isinstance(bundle, Path):
        return read_text(bundle / name, _LARGEST)
    try:
        return decode(bundle.read_bytes(name, limit=_LARGEST), _LARGEST)
    except BundleError as error:
        raise Unreadable(error.message) from None


def _read(bundle: Bundle | Path, names: tuple[str, ...], kind: type[_T]) -> _T:
    """Return the members of some documents as one struct."""
    members: dict[str, Any] = {}
    for name in names:
        with contextlib.suppress(Unreadable, msgspec.DecodeError):
            members |= parse_json(_text(bundle, name), dict[str, Any])
    try:
        return msgspec.convert(members, kind)
    except msgspec.ValidationError:
        return kind()
