"""Limits the concurrent attempts that use one credential, across all processes of this user.

The window grows slowly while attempts succeed and is halved by a rate limit, as in TCP congestion control. A usage
limit or a retry-after closes the gate until a given time, but never for longer than `MAX_PAUSE`, because the time comes
from a model. If a model repeatedly names no future reset, it is retried less and less often (`growing`). Callers never
block: `enter` admits them or says when to ask again, so waiting occupies neither a worker nor a box.

The state is a small file per credential, changed under a lock. A process that died is recognized by its pid and start
time, and its slots are released.
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
from proofbox.core.documents import require_version, stored
from proofbox.core.files.atomic import write_document
from proofbox.core.files.locks import locked
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.evidence.bundle.identity import is_alive

SCHEMA = "proofbox.limiter/1"
FIRST_WINDOW = 4.0
MIN_WINDOW = 1.0
POLL_SECONDS = 0.25
PAUSE_UNKNOWN = 60.0
"""Seconds that a usage limit closes the gate if no reset time is known."""
MIN_PAUSE = 1.0
"""Seconds to wait for a reset that is past or was not named: clocks differ, and the next attempt may succeed."""
MAX_BACKOFF = 900.0
"""The maximum of that growing pause: short enough to notice that the limit is over."""
MAX_PAUSE = 8 * 86400.0
"""The maximum number of seconds that a gate is closed: the longest limits are weekly, plus a day for a wrong clock."""


def backoff(before: int) -> float:
    """Return the pause after the usage limit that follows `before` others, all without a future reset."""
    return min(MAX_BACKOFF, MIN_PAUSE * 2.0 ** min(before, 32))


class TakenSlot(msgspec.Struct, frozen=True):
    """A slot in use, and the process that uses it."""

    name: str
    """The run, the worker, and a number."""
    process: dict[str, Any]
    """The process: pid, host, boot and start time. If it is dead, the slot is released."""


@stored(SCHEMA, at="STATE/limits/CREDENTIAL.json")
class LimiterState(msgspec.Struct, frozen=True, kw_only=True):
    """How many attempts may use one credential concurrently, across all processes of the user."""

    schema_version: str = SCHEMA
    credential: str = ""
    """The endpoint, and the name of the variable that holds its key."""
    window: float = FIRST_WINDOW
    """The maximum number of slots, rounded down. Grows slowly, and is halved by a rate limit."""
    closed_until: float = 0.0
    """Seconds since the epoch."""
    why: str = ""
    """Why the gate was last closed: rate limit or usage limit, and whether the time was capped; empty if never."""
    halved_at: float = 0.0
    """Seconds since the epoch; 0: never."""
    past: int = 0
    """How many usage limits in a row named no future reset. Each makes the next pause longer."""
    inside: tuple[TakenSlot, ...] = ()
    """The slots in use."""


class PausedCredential(msgspec.Struct, frozen=True):
    """A credential that may not be used for a while."""

    credential: str
    """The endpoint, and the name of the variable that holds its key."""
    until: str
    """When it may be used again."""
    why: str
    """Why it is closed: rate limit or usage limit."""
    file: str
    """The state file. Deleting it opens the gate."""

    def __str__(self) -> str:
        return f"{self.why}: {self.credential or 'a credential'} is not used until {self.until}"


def closed_gates(now: datetime, directory: Path | None = None) -> tuple[PausedCredential, ...]:
    """Return every credential of this user that is closed now."""
    found = (_closed(path, now.timestamp()) for path in sorted((directory or limits_dir()).glob("*.json")))
    return tuple(each for each in found if each is not None)


def limits_dir() -> Path:
    return state_dir() / "limits"


def _closed(path: Path, now: float) -> PausedCredential | None:
    state = _read(path)
    if state.closed_until <= now:
        return None
    until = datetime.fromtimestamp(min(state.closed_until, now + MAX_PAUSE), UTC)
    return PausedCredential(state.credential, isoformat(until), state.why, str(path))


def _read(path: Path) -> LimiterState:
    try:
        data = path.read_bytes()
        require_version(data, SCHEMA, path)
        return parse_json(data, LimiterState)
    except (OSError, msgspec.DecodeError):  # a lost limit is learned again from the next refusal
        return LimiterState()


class Limiter:
    """The gate of one credential for one caller: a run with at most `max_concurrent` concurrent attempts."""

    def __init__(
        self,
        credential: str,
        max_concurrent: int,
        *,
        caller: str = "",
        directory: Path | None = None,
        clock: Clock | None = None,
        alive: Callable[[dict[str, Any]], bool | None] = is_alive,
    ) -> None:
        """`credential` identifies it by the endpoint and the variable that holds the key, never by the key."""
        directory = directory or limits_dir()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = hashlib.sha256(credential.encode()).hexdigest()[:32]
        self._path = directory / f"{name}.json"
        self._lock = directory / f"{name}.lock"
        self._credential = credential
        self._caller = caller
        self._max_concurrent = max(1, max_concurrent)
        self._clock: Clock = clock or SystemClock()
        self._alive = alive

    def enter(self, name: str, process: dict[str, Any]) -> float | None:
        """Take a slot, to be released with `leave`, and return None; or return the seconds after which to ask again."""
        now = self._now()
        with self._changing() as change:
            state = change.state
            if state.closed_until > now:
                return state.closed_until - now
            # The window applies to all callers together, the caller's own maximum only to itself.
            own = sum(each.name.startswith(f"{self._caller}/") for each in state.inside)
            if own >= self._max_concurrent or len(state.inside) >= math.floor(state.window):
                return POLL_SECONDS
            change.to(inside=(*state.inside, TakenSlot(self._named(name), process)))
            return None

    def release(self, name: str) -> None:
        with self._changing() as change:
            change.to(inside=tuple(each for each in change.state.inside if each.name != self._named(name)))

    def succeeded(self) -> None:
        """Grow the window by one per full window of successes, up to the caller's own maximum."""
        with self._changing() as change:
            window = change.state.window
            change.to(window=max(window, min(float(self._max_concurrent), window + 1 / window)), past=0)

    def rate_limited(self, began: float, retry_after: float | None = None) -> None:
        """Halve the window, once for all attempts that were running then: `began` is when this attempt started."""
        now = self._now()
        with self._changing() as change:
            state = change.state
            if began >= state.halved_at:
                change.to(window=max(MIN_WINDOW, state.window / 2), halved_at=now)
            if retry_after is not None:
                self._close(change, now + retry_after, "rate limit")

    def usage_limited(self, resets_at: float | None) -> float:
        """Close the gate until the reset; return the time in seconds since the epoch."""
        now = self._now()
        with self._changing() as change:
            state = change.state
            if resets_at is None:
                return self._close(change, now + PAUSE_UNKNOWN, "usage limit")
            if resets_at > now + MIN_PAUSE:
                change.to(past=0)
                return self._close(change, resets_at, "usage limit")
            if state.closed_until > now:  # another running attempt has reported it: count it once
                return state.closed_until
            change.to(past=state.past + 1)
            return self._close(change, now + backoff(state.past), "usage limit (no future reset time was given)")

    def closed(self) -> PausedCredential | None:
        """Return until when and why the gate is closed, or None. Takes no lock, so it is only for display."""
        return _closed(self._path, self._now())

    def state(self) -> LimiterState:
        with self._changing() as change:
            return change.state

    def _close(self, change: _Change, until: float, why: str) -> float:
        latest = self._now() + MAX_PAUSE
        if until > latest:
            until, why = latest, f"{why} (cut to {MAX_PAUSE / 86400:.0f} days: a later time was given)"
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
            # A later time means that the clock was set back, or that the file was changed by something else.
            change.to(closed_until=min(state.closed_until, self._now() + MAX_PAUSE))
            change.to(inside=tuple(each for each in state.inside if self._alive(each.process) is not False))
            yield change
            if change.state != state:
                write_document(self._path, msgspec.json.encode(change.state))


class _Change:
    def __init__(self, state: LimiterState) -> None:
        self.state = state

    def to(self, **fields: object) -> None:
        self.state = msgspec.structs.replace(self.state, **fields)
