"""The states of an attempt, in order, and the reasons why an attempt can end."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from proofbox.core.clock import Clock, isoformat
from proofbox.errors import InternalError

State = Literal["claimed", "preparing", "running", "stopping", "verifying", "committing", "ended"]
Reason = Literal[
    "completed",  # the agent finished its turn
    "turn_failed",  # the turn failed for a reason that counts against the agent
    "timed_out",
    "stalled",  # no event of the agent for longer than the mission's watchdog allows
    "interrupted",
    "budget_exceeded",
    "reward_missing",  # the agent finished its turn, but the verifier's commands wrote no reward
    "reward_malformed",  # the verifier's commands wrote something that is not a valid reward
    "setup_failed",  # one of the mission's setup commands failed
    "infra_failed",  # infrastructure failure: `infra` has the code
    "worker_lost",  # the worker process died
]
STATES: tuple[State, ...] = get_args(State)


class StateEntered(msgspec.Struct, frozen=True, kw_only=True):
    state: State
    """One of claimed, preparing, running, stopping, verifying, committing and ended, in this order; states may be
    skipped."""
    at: str | UnsetType = UNSET
    """The time of day. Absent if it is that of the first state plus `at_ms`, to within a millisecond."""
    at_ms: float
    """Milliseconds since the attempt was claimed."""


class States:
    """The current state of an attempt, and when it entered each one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now: State = "claimed"
        self._began = clock.monotonic()
        self._began_at = clock.now()
        self.log: list[StateEntered] = []
        self._note()

    def enter(self, state: State) -> None:
        """Move forward to `state`. States may be skipped, but never revisited."""
        if STATES.index(state) <= STATES.index(self.now):
            raise InternalError(f"an attempt cannot go from {self.now} to {state}", op="attempt")
        self.now = state
        self._note()

    def _note(self) -> None:
        at_ms, at = round((self._clock.monotonic() - self._began) * 1000, 3), self._clock.now()
        follows = abs((at - self._began_at).total_seconds() * 1000 - at_ms) < 1  # the clock has not been set since
        stated = UNSET if follows and self.log else isoformat(at)
        self.log.append(StateEntered(state=self.now, at=stated, at_ms=at_ms))
