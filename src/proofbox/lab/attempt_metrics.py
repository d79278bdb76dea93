"""What an attempt used and how it went, read from the documents of its bundle: for reports and health counters."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final

import msgspec

from proofbox.agents.events import TokenUsage
from proofbox.agents.health.counters import AttemptHealth, count_attempt
from proofbox.core.clock import Clock
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.core.spec_files.text_files import Unreadable, read_text
from proofbox.errors import ProofboxError
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.result import AttemptResult

_LARGEST: Final = 4 << 20


class _State(msgspec.Struct, frozen=True):
    state: str
    at_ms: float


class _Facts(msgspec.Struct, frozen=True):
    recoveries: tuple[Any, ...] = ()
    restarts: int = 0


class AttemptMetrics(msgspec.Struct, frozen=True):
    """The figures of an attempt. Members are absent or null if unknown."""

    tokens: dict[str, TokenUsage] = {}
    tool_calls: int | None = None
    tool_failures: dict[str, int] = {}
    retries: dict[str, int] = {}
    no_progress: dict[str, int] = {}
    integrity: tuple[dict[str, Any], ...] = ()
    turn_ms: float | None = None
    states: tuple[_State, ...] = ()
    facts: _Facts = _Facts()

    @property
    def usage(self) -> TokenUsage | None:
        """The tokens as counted by the gateway, else as reported by the agent; None if unknown."""
        return self.tokens.get("gateway") or self.tokens.get("runtime_reported")

    @property
    def spent(self) -> int | None:
        """Input and output tokens; None if unknown."""
        return None if self.usage is None else self.usage.input_tokens + self.usage.output_tokens

    @property
    def start_ms(self) -> float | None:
        """Milliseconds between the preparation and the agent's turn: the box, the program and its handshake."""
        times = {each.state: each.at_ms for each in self.states}
        if self.turn_ms is None or not {"running", "stopping"} <= times.keys():
            return None
        return max(0.0, times["stopping"] - times["running"] - self.turn_ms)


def read_metrics(bundle: Path) -> AttemptMetrics:
    """Return the figures of an attempt. Damaged documents count as unknown: validation reports them."""
    members: dict[str, Any] = {}
    for name in (artifacts.ATTEMPT, artifacts.RUNNER, artifacts.METRICS, artifacts.REPORT):
        with contextlib.suppress(Unreadable, msgspec.DecodeError):
            members |= parse_json(read_text(bundle / name, _LARGEST), dict[str, Any])
    try:
        return msgspec.convert(members, AttemptMetrics)
    except msgspec.ValidationError:
        return AttemptMetrics()


def count_health(bundle: Path, result: AttemptResult, *, strategy: str, is_retry: bool, clock: Clock) -> None:
    """Add an attempt to the health counters of its strategy.

    `strategy` is used if the result names none, because no agent started. Counters are a convenience: if they cannot be
    written, the attempt stands as it is.
    """
    found = read_metrics(bundle)
    health = AttemptHealth(
        infra=result.infra,
        is_retry=is_retry,
        model_retries=sum(found.retries.values()),
        restarts=len(found.facts.recoveries) + found.facts.restarts,
        start_ms=found.start_ms,
        turn_ms=found.turn_ms,
    )
    with contextlib.suppress(OSError, ProofboxError):
        count_attempt(result.strategy or strategy, health, clock=clock)
