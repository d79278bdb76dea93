"""Record an agent's session until the record is complete, for attempts.

When a turn ends, its commands may still run in the background, and its sub-agents may still work. A `Recording`
therefore listens until everything has been ended (`finish`). A call that began and whose end was never seen is recorded
as `abandoned`. If calls may be missing, `incomplete_reason` says why, and the absence of a call from the record proves
nothing.
"""

from __future__ import annotations

from proofbox.agents.contract import AgentSession
from proofbox.agents.events import Event, FileChange, Integrity, ItemStarted, Listener, ToolCall, Unrecognized

# Findings about tokens and model requests, and about calls that are recorded as abandoned.
UNRELATED_TO_CALLS = ("USAGE_", "GATEWAY_", "ITEM_NOT_ENDED", "COMMAND_NOT_ENDED")
"""Prefixes of findings that leave the record of calls complete. After any other finding, calls may be missing."""
MAX_OPEN = 10_000


class Recording:
    """Listens to a session, or to one thread of it and that thread's sub-agents, until `finish`."""

    def __init__(self, session: AgentSession, first: Listener, *others: Listener) -> None:
        self._session = session
        self._listeners = (first, *others)
        self._numbers: list[int] = []
        self._open: dict[tuple[str, str], str] = {}
        self._incomplete_reason = ""
        self._thread: str | None = None
        self.failure: Exception | None = None
        """The first exception that a listener raised. A listener that raises receives no further events."""

    def start(self, thread: str | None = None) -> None:
        """Start listening: to the whole session, or to one thread and its sub-agents."""
        self._thread = thread
        for number, listener in enumerate(self._listeners):
            # Watch with the first listener: if that one fails, the record is incomplete anyway.
            self._numbers.append(self._session.add_listener(self._guarded(listener, watch=number == 0)))

    async def finish(self, thread: str, *, close: bool) -> None:
        """End everything the thread started, then stop listening. With `close`, close the whole session.

        When this returns, `incomplete_reason` and `failure` are final. `thread` is empty if no thread was started.
        """
        try:
            if close:
                await self._session.close()
            elif thread:
                await self._session.end_thread(thread)
        finally:
            for number in self._numbers:
                self._session.remove_listener(number)
            self._numbers.clear()

    @property
    def incomplete_reason(self) -> str:
        """The reason why calls may be missing from the record; empty if it is complete."""
        if self.failure is not None:
            return f"a listener failed ({type(self.failure).__name__})"
        if not self._incomplete_reason and self._open:
            return f"calls without an end: {', '.join(list(self._open.values())[:3])[:200]}"
        return self._incomplete_reason

    def _watch(self, event: Event) -> None:
        match event:
            case ItemStarted() if event.command:
                self._open[event.thread, event.item] = event.command
                if len(self._open) > MAX_OPEN:
                    self._mark_incomplete(f"more than {MAX_OPEN} calls were open concurrently")
                    del self._open[next(iter(self._open))]
            case ToolCall() | FileChange():
                self._open.pop((event.thread, event.item), None)
            case Unrecognized(method="item/completed"):
                self._mark_incomplete("an item of an unknown kind, which might be a call")
            case Integrity() if not event.code.startswith(UNRELATED_TO_CALLS):
                self._mark_incomplete(f"{event.code}: {event.message}")
            case _:
                pass

    def _mark_incomplete(self, reason: str) -> None:
        self._incomplete_reason = self._incomplete_reason or reason  # the first reason is reported

    def _guarded(self, listener: Listener, *, watch: bool) -> Listener:
        async def receive(event: Event) -> None:
            own = self._own_event(event)
            if own is None:
                return
            if watch:
                self._watch(own)
            try:
                await listener(own)
            except Exception as error:
                self.failure = self.failure or error
                raise

        return receive

    def _own_event(self, event: Event) -> Event | None:
        """Return the event if it belongs to this thread, to its sub-agents or to no thread.

        A call in a thread with an unknown owner could be this thread's, so it becomes a finding.
        """
        if self._thread is None or not event.thread:
            return event
        owner = self._session.owner_of(event.thread)
        if owner == self._thread:
            return event
        if owner or not isinstance(event, ItemStarted | ToolCall | FileChange):
            return None
        return Integrity(
            session=event.session,
            seq=event.seq,
            at_ms=event.at_ms,
            code="CALL_UNATTRIBUTED",
            message="a call in the shared session can't be attributed to an attempt",
        )
