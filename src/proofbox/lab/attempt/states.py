"""The states of an attempt, forward only, and the reasons it may end for."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from proofbox.core.clock import Clock, isoformat
from proofbox.errors import InternalError

State = Literal["claimed", "preparing", "running", "stopping", "verifying", "committing", "ended"]
Reason = Literal[
    "completed",  # the agent gave the word back
    "turn_failed",  # its turn failed for a reason of its own
    "timed_out",
    "interrupted",
    "budget_exceeded",
    "reward_missing",  # the agent gave the word back, and the verifier's commands left no number
    "reward_malformed",  # what they left is none
    "setup_failed",  # the mission's own commands before the agent
    "infra_failed",  # the machinery: `infra` has the code
    "worker_lost",  # whoever ran it died
]
STATES: tuple[State, ...] = get_args(State)


class StateEntered(msgspec.Struct, frozen=True):
    state: State
    """They come in this order, and some may be left out: claimed, preparing, running, stopping, verifying,
    committing, ended."""
    at: str
    at_ms: float
    """Since the attempt was claimed."""


class States:
    """Where an attempt is, and when it came there."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now: State = "claimed"
        self._began = clock.monotonic()
        self.log: list[StateEntered] = []
        self._note()

    def enter(self, state: State) -> None:
        """Go forward. Steps may be left out, none is taken back."""
        if STATES.index(state) <= STATES.index(self.now):
            raise InternalError(f"an attempt that is {self.now} can't be {state} again", op="attempt")
        self.now = state
        self._note()

    def _note(self) -> None:
        at_ms = round((self._clock.monotonic() - self._began) * 1000, 3)
        self.log.append(StateEntered(self.now, isoformat(self._clock.now()), at_ms))
