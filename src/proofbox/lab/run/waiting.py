"""Reports what a run waits for, once until it changes: a closed gate, the time of the next retry, or free resources.

Workers wait for the same conditions themselves (`worker.py`); the conductor reports them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from proofbox.core.clock import Clock, isoformat
from proofbox.lab.run import resources
from proofbox.lab.run.crews.contract import EventForwarder
from proofbox.lab.run.ledger import Attempt, Ledger
from proofbox.lab.run.limiter import MIN_PAUSE, Limiter


class Wait(msgspec.Struct, frozen=True):
    why: str
    """Empty if the next attempt is not due yet."""
    until: str | None = None
    """None if unknown."""
    begun: int = 0
    """How many attempts have started, so that a shortage after another start is reported again."""


class WaitReporter:
    def __init__(self, ledger: Ledger, gate: Limiter | None, run_dir: Path, tell: EventForwarder, clock: Clock) -> None:
        self._ledger = ledger
        self._gate = gate
        self._run_dir = run_dir
        self._emit = tell
        self._clock = clock
        self._reported: Wait | None = None

    def report(self, claimed: int, ended: int) -> None:
        """Report the current wait if it is new. `claimed` attempts are running, `ended` ones have ended."""
        wait = self._wait(claimed, ended)
        if wait is None or wait == self._reported:
            return
        planned = [each for each in self._ledger.attempts() if each.state == "planned"]
        if planned:
            self._reported = wait
            first = min(planned, key=lambda each: (each.not_before, each.number))
            about = {"attempt_id": first.id, "mission_id": first.mission}
            until = {} if wait.until is None else {"until": wait.until}
            self._emit({"event": "waiting", **about, **until, "message": wait.why or self._after_what(first)})

    def _wait(self, claimed: int, ended: int) -> Wait | None:
        """Return what keeps the next attempt from starting; None if nothing does for long."""
        due = self._ledger.next_time()
        if due is None:
            return None
        closed = None if self._gate is None else self._gate.closed()
        if closed is not None:  # possibly for days, and because of another run
            return Wait(str(closed), closed.until)
        if due > self._clock.now().timestamp() + MIN_PAUSE:
            return None if claimed else Wait("", _moment(due))
        short = resources.reason(self._run_dir)
        return Wait(short, begun=claimed + ended) if short else None

    def _after_what(self, again: Attempt) -> str:
        before = None if again.parent is None else self._ledger.attempt(again.parent).result
        failed = "" if before is None else f" after {before.infra}"
        return f"{again.id} is retried{failed} at {_moment(again.not_before)}"


def _moment(seconds: float) -> str:
    return isoformat(datetime.fromtimestamp(seconds, UTC))
