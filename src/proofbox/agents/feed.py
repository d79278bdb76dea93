"""The event feed of a session: number the events, pass them to listeners, and let callers wait for turns."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import msgspec

from proofbox.agents.contract import TurnResult
from proofbox.agents.events import Event, Listener, Message, Source, TokenUsage, TurnEnded, TurnStatus, Usage
from proofbox.core.clock import Clock
from proofbox.errors import AgentError, InternalError, ListenerFailed, ProofboxError, UsageError

LISTEN_SECONDS = 300.0
"""Timeout for one listener to handle one event. It is long because a listener may snapshot a large workspace; the call
is shielded from cancellation, so nothing else can end it."""


class Turn:
    """A turn in progress or ended. Collects from the events what `wait_turn` returns."""

    def __init__(self, id: str, thread: str, began: float) -> None:
        self.id = id
        self.thread = thread
        self.began = began
        self.ended = anyio.Event()
        self.final_message = ""
        self.usage: TokenUsage | None = None
        self.usage_source: Source = "runtime_reported"
        self.answered = False
        """The model has completed a response."""
        self.accepted: set[tuple[str, ...]] = set()
        """The kinds of requests that were answered, in this turn and in earlier ones of its thread."""
        self.is_stopping = False
        """The session is ending the turn early."""
        self.observed_failure: ProofboxError | None = None
        """See `TurnResult.observed_failure`."""
        self.result: TurnResult | None = None


class Feed:
    """Numbers events, passes them to the listeners in order, and remembers how each turn ended.

    If a listener raises, its record is incomplete. The listener is removed, and every turn in progress ends as failed,
    even if the agent reports success. No event is delivered twice.
    """

    def __init__(self, session: str, clock: Clock) -> None:
        self.session = session
        self._clock = clock
        self._began = clock.monotonic()
        self._seq = 0
        self._listeners: dict[int, Listener] = {}
        self._next = 0
        self._delivery_lock = anyio.Lock(fast_acquire=True)
        self._turns: dict[str, Turn] = {}
        self.failure: ListenerFailed | None = None

    def add_listener(self, listener: Listener) -> int:
        self._next += 1
        self._listeners[self._next] = listener
        return self._next

    def remove_listener(self, number: int) -> None:
        self._listeners.pop(number, None)

    def begin_turn(self, id: str, thread: str) -> Turn:
        turn = Turn(id, thread, self._clock.monotonic())
        for earlier in self.turns_of(thread)[-1:]:
            turn.accepted = earlier.accepted
        self._turns[id] = turn
        return turn

    def active_turn(self, thread: str) -> Turn | None:
        return next((turn for turn in self._turns.values() if turn.thread == thread and turn.result is None), None)

    def turns_of(self, thread: str) -> list[Turn]:
        return [turn for turn in self._turns.values() if turn.thread == thread]

    def turns_under_way(self) -> list[Turn]:
        return [turn for turn in self._turns.values() if turn.result is None]

    def turn(self, id: str, thread: str | None = None) -> Turn:
        """Return the turn. Raises `UsageError` if it was not started in this session, or not in that thread."""
        found = self._turns.get(id)
        if found is None or thread not in (None, found.thread):
            where = "this session" if found is None else f"the thread {str(thread)[:80]!r}"
            raise UsageError(
                f"{where} has no turn {id[:80]!r}",
                op="turn",
                fix_hints=["pass the id of a turn that was started there"],
            )
        return found

    def has_turn(self, id: str) -> bool:
        return id in self._turns

    def has_ended(self, id: str) -> bool:
        return id in self._turns and self._turns[id].result is not None

    async def wait_turn(self, id: str) -> TurnResult:
        turn = self.turn(id)
        await turn.ended.wait()
        if turn.result is None:
            raise InternalError(f"turn {id} ended without a result", op="turn")
        return turn.result

    async def publish(self, event: Event) -> None:
        """Number the event and deliver it to every listener before the next event.

        Once the event has a number, every listener receives it, even if the caller is cancelled in the meantime.
        """
        async with self._delivery_lock:
            self._seq += 1
            at_ms = (self._clock.monotonic() - self._began) * 1000
            event = msgspec.structs.replace(event, session=self.session, seq=self._seq, at_ms=round(at_ms, 3))
            turn = self._turns.get(event.turn)
            if turn is not None and isinstance(event, Message):
                turn.final_message = event.text
            elif turn is not None and isinstance(event, Usage) and event.source in (turn.usage_source, "gateway"):
                turn.usage, turn.usage_source = event.total, event.source  # the gateway's figures take precedence
            for number, listener in list(self._listeners.items()):
                try:
                    with anyio.fail_after(LISTEN_SECONDS, shield=True):
                        await listener(event)
                except Exception as error:
                    self._remove_failed_listener(number, event, error)
                except BaseException as error:  # the program is exiting, for example by KeyboardInterrupt
                    self._remove_failed_listener(number, event, error)
                    raise
        await anyio.lowlevel.checkpoint_if_cancelled()

    def _remove_failed_listener(self, number: int, event: Event, error: BaseException) -> None:
        self._listeners.pop(number, None)
        self.failure = ListenerFailed(
            f"a listener failed at event {event.seq} ({type(error).__name__}): the record is incomplete",
            op="listen",
            details={"seq": event.seq},
        )

    async def end_turn(self, id: str, status: TurnStatus, error: AgentError | None = None) -> None:
        """Report the end of a turn. Only the first call for a turn has an effect."""
        turn = self.turn(id)
        if turn.result is not None:
            return
        duration_ms = round((self._clock.monotonic() - turn.began) * 1000, 3)
        if self.failure is not None:
            status, error = "failed", self.failure
        turn.result = TurnResult(
            turn=id,
            thread=turn.thread,
            status=status,
            error=error,
            observed_failure=turn.observed_failure,
            final_message=turn.final_message,
            usage=turn.usage,
            duration_ms=duration_ms,
        )
        try:
            with anyio.CancelScope(shield=True):  # even while waiting for the lock: the event must be recorded
                await self.publish(
                    TurnEnded(
                        session=self.session,
                        thread=turn.thread,
                        turn=id,
                        status=status,
                        code=error.code if error else "",
                        message=error.message if error else "",
                        duration_ms=duration_ms,
                    )
                )
        finally:  # otherwise `wait_turn` would wait forever
            if self.failure is not None and error is not self.failure:
                turn.result = msgspec.structs.replace(turn.result, status="failed", error=self.failure)
            turn.ended.set()
