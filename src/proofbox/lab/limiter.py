"""How many attempts one credential may have under way, shared by every process of this user.

The number grows slowly while things go well and is halved by a rate limit, as in TCP's congestion control. A usage
limit or a retry-after closes the gate until a known time. Nobody waits inside: `enter` says yes, or when to ask again,
so that waiting holds neither a worker nor a box.

The state is a small file per credential, changed under a lock. Who died while inside is noticed by its pid and start
time, and its place is given away.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from proofbox.core.atomic import write_document
from proofbox.core.clock import Clock, SystemClock
from proofbox.core.dirs import state_dir
from proofbox.core.documents import stored
from proofbox.core.locks import locked
from proofbox.evidence.identity import is_alive

SCHEMA = "proofbox.limiter/1"
FIRST = 4.0
LEAST = 1.0
ASK_AGAIN = 0.25
PAUSE_UNKNOWN = 60.0
"""Seconds a usage limit closes the gate for, where no reset time is known."""


class Inside(msgspec.Struct, frozen=True):
    """One place that is taken, and by which process."""

    name: str
    """The worker's, and a number."""
    process: dict[str, Any]
    """Which process that is: pid, host, boot and start. Dead, it loses the place."""


@stored(SCHEMA, at="STATE/limits/CREDENTIAL.json")
class State(msgspec.Struct, frozen=True, kw_only=True):
    """How many attempts may use one credential at once, shared by every process of the user."""

    schema_version: str = SCHEMA
    window: float = FIRST
    """How many may be inside, rounded down. Grows slowly, and is halved by a rate limit."""
    closed_until: float = 0.0
    """Seconds since the epoch."""
    why: str = ""
    """What the gate was last closed for: rate limit or usage limit; empty: it never was."""
    halved_at: float = 0.0
    """Seconds since the epoch; 0: never."""
    inside: tuple[Inside, ...] = ()
    """Who is in."""


class Limiter:
    """The gate of one credential. `most` is what the caller allows at all."""

    def __init__(
        self,
        credential: str,
        most: int,
        *,
        directory: Path | None = None,
        clock: Clock | None = None,
        alive: Callable[[dict[str, Any]], bool | None] = is_alive,
    ) -> None:
        """`credential` names one, such as the endpoint and the variable its key is in: never the key."""
        directory = directory or state_dir() / "limits"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = hashlib.sha256(credential.encode()).hexdigest()[:32]
        self._path = directory / f"{name}.json"
        self._lock = directory / f"{name}.lock"
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
            if len(state.inside) >= min(self._most, math.floor(state.window)):
                return ASK_AGAIN
            change.to(inside=(*state.inside, Inside(name, process)))
            return None

    def leave(self, name: str) -> None:
        with self._changing() as change:
            change.to(inside=tuple(each for each in change.state.inside if each.name != name))

    def went_well(self) -> None:
        """One more fits for every full window that went well."""
        with self._changing() as change:
            window = change.state.window
            change.to(window=min(float(self._most), window + 1 / window))

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
        until = resets_at if resets_at is not None else self._now() + PAUSE_UNKNOWN
        with self._changing() as change:
            self._close(change, until, "usage limit")
        return until

    def state(self) -> State:
        with self._changing() as change:
            return change.state

    def _close(self, change: _Change, until: float, why: str) -> None:
        if until > change.state.closed_until:
            change.to(closed_until=until, why=why)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_Change]:
        with locked(self._lock):
            try:
                state = msgspec.json.decode(self._path.read_bytes(), type=State)
            except (OSError, msgspec.DecodeError):  # a limit that is lost is found out again by the next refusal
                state = State()
            change = _Change(state)
            change.to(inside=tuple(each for each in state.inside if self._alive(each.process) is not False))
            yield change
            if change.state != state:
                write_document(self._path, msgspec.json.encode(change.state))


class _Change:
    def __init__(self, state: State) -> None:
        self.state = state

    def to(self, **fields: object) -> None:
        self.state = msgspec.structs.replace(self.state, **fields)
