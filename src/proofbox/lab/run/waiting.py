"""What a run waits for, told once until it changes: a gate, the time of the next try, room on the machine.

Workers wait for the same by themselves (`worker.py`); who conducts the run tells of it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from proofbox.core.clock import Clock, isoformat
from proofbox.lab.run import pressure
from proofbox.lab.run.crew import EventForwarder
from proofbox.lab.run.ledger import Attempt, Ledger
from proofbox.lab.run.limiter import SOON, Limiter


class Wait(msgspec.Struct, frozen=True):
    why: str
    """Empty: the time of the next attempt has not come."""
    until: str | None = None
    """None: nobody knows."""
    begun: int = 0
    """How many attempts were begun: when there is no room again after another was, it is told again."""


class Waiting:
    def __init__(self, ledger: Ledger, gate: Limiter | None, run_dir: Path, tell: EventForwarder, clock: Clock) -> None:
        self._ledger = ledger
        self._gate = gate
        self._run_dir = run_dir
        self._tell = tell
        self._clock = clock
        self._told: Wait | None = None

    def tell(self, claimed: int, ended: int) -> None:
        """Tell of it, where it is new. So many attempts are under way, and so many have ended."""
        wait = self._wait(claimed, ended)
        if wait is None or wait == self._told:
            return
        planned = [each for each in self._ledger.attempts() if each.state == "planned"]
        if planned:
            self._told = wait
            first = min(planned, key=lambda each: (each.not_before, each.number))
            about = {"attempt_id": first.id, "mission_id": first.mission}
            until = {} if wait.until is None else {"until": wait.until}
            self._tell({"event": "waiting", **about, **until, "message": wait.why or self._after_what(first)})

    def _wait(self, claimed: int, ended: int) -> Wait | None:
        """What keeps the next attempt from being started; None: nothing does for long."""
        due = self._ledger.next_time()
        if due is None:
            return None
        closed = None if self._gate is None else self._gate.closed()
        if closed is not None:  # maybe for days, and by another run
            return Wait(str(closed), closed.until)
        if due > self._clock.now().timestamp() + SOON:
            return None if claimed else Wait("", _moment(due))
        short = pressure.reason(self._run_dir)
        return Wait(short, begun=claimed + ended) if short else None

    def _after_what(self, again: Attempt) -> str:
        before = None if again.parent is None else self._ledger.attempt(again.parent).result
        failed = "" if before is None else f" after {before.infra}"
        return f"{again.id} is tried again{failed} at {_moment(again.not_before)}"


def _moment(seconds: float) -> str:
    return isoformat(datetime.fromtimestamp(seconds, UTC))
