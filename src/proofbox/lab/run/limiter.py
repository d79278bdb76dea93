"""How many attempts one credential may have under way, shared by every process of this user.

The number grows slowly while things go well and is halved by a rate limit, as in TCP's congestion control. A usage
limit or a retry-after closes the gate until a known time, but never for longer than `LONGEST`: the time is a model's
word. A model that names no time to come, again and again, is asked ever less often (`growing`). Nobody waits inside:
`enter` says yes, or when to ask again, so that waiting holds neither a worker nor a box.

The state is a small file per credential, changed under a lock. Who died while inside is noticed by its pid and start
time, and its place is given away.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.dirs import state_dir
from proofbox.core.documents import stored
from proofbox.core.files.atomic import write_document
from proofbox.core.files.locks import locked
from proofbox.evidence.bundle.identity import is_alive

SCHEMA = "proofbox.limiter/1"
FIRST = 4.0
LEAST = 1.0
ASK_AGAIN = 0.25
PAUSE_UNKNOWN = 60.0
"""Seconds a usage limit closes the gate for, where no reset time is known."""
SOON = 1.0
"""Seconds to wait for a reset that is past already, or was not named: clocks differ, and the next try may go well."""
LONGEST_PAST = 900.0
"""Seconds that this grows to at most: often enough to notice that the limit is over."""
LONGEST = 8 * 86400.0
"""Seconds that a gate is closed for at most. Limits are by the week at the longest, and a day covers a wrong clock."""


def growing(before: int) -> float:
    """The pause after a usage limit without a reset to come, where the `before` limits before it had none either."""
    return min(LONGEST_PAST, SOON * 2.0 ** min(before, 32))


class TakenSlot(msgspec.Struct, frozen=True):
    """One place that is taken, and by which process."""

    name: str
    """The run's, the worker's, and a number."""
    process: dict[str, Any]
    """Which process that is: pid, host, boot and start. Dead, it loses the place."""


@stored(SCHEMA, at="STATE/limits/CREDENTIAL.json")
class LimiterState(msgspec.Struct, frozen=True, kw_only=True):
    """How many attempts may use one credential at once, shared by every process of the user."""

    schema_version: str = SCHEMA
    credential: str = ""
    """The endpoint, and the name of the variable that holds its key."""
    window: float = FIRST
    """How many may be inside, rounded down. Grows slowly, and is halved by a rate limit."""
    closed_until: float = 0.0
    """Seconds since the epoch."""
    why: str = ""
    """What the gate was last closed for: rate limit or usage limit, and that it was cut short; empty: it never was."""
    halved_at: float = 0.0
    """Seconds since the epoch; 0: never."""
    past: int = 0
    """How many usage limits in a row named no reset to come. Each makes the next pause longer."""
    inside: tuple[TakenSlot, ...] = ()
    """Who is in."""


class ClosedGate(msgspec.Struct, frozen=True):
    """A credential that nothing may use for a while."""

    credential: str
    """The endpoint, and the name of the variable that holds its key."""
    until: str
    """When it may be used again."""
    why: str
    """What closed it: rate limit or usage limit."""
    file: str
    """What says so. Without it, the gate is open."""

    def __str__(self) -> str:
        return f"{self.why}: nothing uses {self.credential or 'a credential'} until {self.until}"


def closed_gates(now: datetime, directory: Path | None = None) -> tuple[ClosedGate, ...]:
    """Every credential of this user that is closed now."""
    found = (_closed(path, now.timestamp()) for path in sorted((directory or limits_dir()).glob("*.json")))
    return tuple(each for each in found if each is not None)


def limits_dir() -> Path:
    return state_dir() / "limits"


def _closed(path: Path, now: float) -> ClosedGate | None:
    state = _read(path)
    if state.closed_until <= now:
        return None
    until = datetime.fromtimestamp(min(state.closed_until, now + LONGEST), UTC)
    return ClosedGate(state.credential, isoformat(until), state.why, str(path))


def _read(path: Path) -> LimiterState:
    try:
        return msgspec.json.decode(path.read_bytes(), type=LimiterState)
    except (OSError, msgspec.DecodeError):  # a limit that is lost is found out again by the next refusal
        return LimiterState()


class Limiter:
    """The gate of one credential, for one caller: a run, of which `most` attempts are under way at once."""

    def __init__(
        self,
        credential: str,
        most: int,
        *,
        caller: str = "",
        directory: Path | None = None,
        clock: Clock | None = None,
        alive: Callable[[dict[str, Any]], bool | None] = is_alive,
    ) -> None:
        """`credential` names one, such as the endpoint and the variable its key is in: never the key."""
        directory = directory or limits_dir()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = hashlib.sha256(credential.encode()).hexdigest()[:32]
        self._path = directory / f"{name}.json"
        self._lock = directory / f"{name}.lock"
        self._credential = credential
        self._caller = caller
        self._most = max(1, most)
        self._clock: Clock = clock or SystemClock()
        self._alive = alive

    def enter(self, name: str, process: dict[str, Any]) -> float | None:
        """None: you are in, and leave by `leave`. Else: in how many seconds to ask again."""
        now = self._now()
        with self._changing() as change:
            state = change.state
            if state.closed_until > now:
                return state.closed_until - now
            # The window is for all callers together, and what one allows itself is for that one alone.
            own = sum(each.name.startswith(f"{self._caller}/") for each in state.inside)
            if own >= self._most or len(state.inside) >= math.floor(state.window):
                return ASK_AGAIN
            change.to(inside=(*state.inside, TakenSlot(self._named(name), process)))
            return None

    def leave(self, name: str) -> None:
        with self._changing() as change:
            change.to(inside=tuple(each for each in change.state.inside if each.name != self._named(name)))

    def went_well(self) -> None:
        """One more fits for every full window that went well. More than a caller has under way it can't find out."""
        with self._changing() as change:
            window = change.state.window
            change.to(window=max(window, min(float(self._most), window + 1 / window)), past=0)

    def rate_limited(self, began: float, retry_after: float | None = None) -> None:
        """Halve, once for all that were under way when it was halved: `began` is when this attempt started."""
        now = self._now()
        with self._changing() as change:
            state = change.state
            if began >= state.halved_at:
                change.to(window=max(LEAST, state.window / 2), halved_at=now)
            if retry_after is not None:
                self._close(change, now + retry_after, "rate limit")

    def usage_limited(self, resets_at: float | None) -> float:
        """Closed until the reset; the time, in seconds since the epoch."""
        now = self._now()
        with self._changing() as change:
            state = change.state
            if resets_at is None:
                return self._close(change, now + PAUSE_UNKNOWN, "usage limit")
            if resets_at > now + SOON:
                change.to(past=0)
                return self._close(change, resets_at, "usage limit")
            if state.closed_until > now:  # another that was under way has said so already: once for all of them
                return state.closed_until
            change.to(past=state.past + 1)
            return self._close(change, now + growing(state.past), "usage limit (no reset to come was named)")

    def closed(self) -> ClosedGate | None:
        """Until when and why, if it is. Takes no lock: for who only tells of it."""
        return _closed(self._path, self._now())

    def state(self) -> LimiterState:
        with self._changing() as change:
            return change.state

    def _close(self, change: _Change, until: float, why: str) -> float:
        latest = self._now() + LONGEST
        if until > latest:
            until, why = latest, f"{why} (cut to {LONGEST / 86400:.0f} days: a later time was named)"
        if until > change.state.closed_until:
            change.to(closed_until=until, why=why, credential=self._credential)
        return until

    def _named(self, name: str) -> str:
        return f"{self._caller}/{name}"

    def _now(self) -> float:
        return self._clock.now().timestamp()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_Change]:
        with locked(self._lock):
            state = _read(self._path)
            change = _Change(state)
            # Later than any gate is closed by now: the clock was set back, or the file is not ours.
            change.to(closed_until=min(state.closed_until, self._now() + LONGEST))
            change.to(inside=tuple(each for each in state.inside if self._alive(each.process) is not False))
            yield change
            if change.state != state:
                write_document(self._path, msgspec.json.encode(change.state))


class _Change:
    def __init__(self, state: LimiterState) -> None:
        self.state = state

    def to(self, **fields: object) -> None:
        self.state = msgspec.structs.replace(self.state, **fields)
