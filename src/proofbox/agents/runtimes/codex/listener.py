"""Handle the messages of Codex and of the gateway: report events, answer requests, and end turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import msgspec

from proofbox.agents.contract import ApprovalRule
from proofbox.agents.events import (
    ApprovalDecision,
    FileChange,
    Integrity,
    ItemStarted,
    RateWindows,
    Retrying,
    ToolCall,
    TurnStarted,
    TurnStatus,
    Usage,
)
from proofbox.agents.feed import Feed, Turn
from proofbox.agents.gateway.failures import is_answer, note
from proofbox.agents.gateway.traffic import Exchange, RequestedCall
from proofbox.agents.jsonrpc.messages import Garbage, Id
from proofbox.agents.runtimes.codex import fields
from proofbox.agents.runtimes.codex.approvals import answer
from proofbox.agents.runtimes.codex.decoder import CodexDecoder, TurnOver, last_usage
from proofbox.agents.runtimes.codex.failures import classify, retried
from proofbox.agents.runtimes.codex.lineage import Lineage
from proofbox.agents.runtimes.codex.requested import RequestedCalls
from proofbox.agents.usage import UsageLedger
from proofbox.core.clock import Clock
from proofbox.core.text import printable
from proofbox.errors import AgentError, RuntimeProtocolError, TurnInterrupted

REPORTED_FIRST = 16
MAX_UNREQUESTED = 100
"""Maximum number of turns that Codex starts on its own; each is kept until the session ends."""
ANNOUNCE_SECONDS = 5.0
"""How long to wait until Codex announces the thread of a model response. On a busy machine, the response is first."""


class CodexListener:
    """The listener of one session. `on_change` is called after each change that a task may be waiting for."""

    def __init__(
        self, feed: Feed, approvals: Sequence[ApprovalRule], clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self.feed = feed
        self.decoder = CodexDecoder()
        self.ledger = UsageLedger()
        self.lineage = Lineage()
        self._requested = RequestedCalls()
        self.early_calls = RequestedCalls()
        """Calls in responses that came before Codex announced their turn."""
        self.generation = 0
        """The number of times the program was started."""
        self.threads: dict[str, int] = {}
        """The threads of the session, each with the value of `generation` when it was last loaded."""
        self.verdicts: dict[str, AgentError] = {}
        """The reasons of turns that are being ended early."""
        self.announced: dict[str, set[str]] = {}
        """The threads with a request for a turn under way, each with the turns that began there in the meantime."""
        self.garbage = 0
        self._failures = 0
        self._unrequested = 0
        self._unattributed = 0
        self._approvals = approvals
        self._clock = clock
        self._on_change = on_change
        self._last_activity: dict[str, float] = {}
        self._failed: dict[str, Exchange] = {}
        self._retries_reported: dict[str, int] = {}
        """For each turn, the number of the failed request whose retry was reported last."""
        self._unannounced: dict[str, anyio.Event] = {}
        """The threads that responses wait for."""

    def begin(self, turn: str, thread: str) -> None:
        self.threads.setdefault(thread, self.generation)
        if thread in self._unannounced:
            self._unannounced.pop(thread).set()
        self._note_activity(thread)
        self.feed.begin_turn(turn, thread)
        self.early_calls.move(thread, turn, self._requested)

    def begin_requested(self, turn: str, thread: str) -> None:
        """Begin the turn that Codex names in its answer to a request. Under load, it may announce the turn first.

        Raises RuntimeProtocolError if the turn is an older one.
        """
        if not self.feed.has_turn(turn):
            self.begin(turn, thread)
        elif turn in self.announced[thread]:
            self._unrequested -= 1
        else:
            raise RuntimeProtocolError(f"codex returned the id of another turn, {turn[:80]}", op="turn")

    def idle_seconds(self, turn: Turn) -> float:
        """Return the seconds since the last activity of a turn in progress."""
        return self._clock.monotonic() - max(self._last_activity.get(turn.thread, 0.0), turn.began)

    async def on_notification(self, method: str, params: Any) -> None:
        self.lineage.update(
            method, params, lambda turn: self.feed.turn(turn).thread if self.feed.has_turn(turn) else ""
        )
        for event in self.decoder.decode(method, params):
            thread, turn = event.thread, event.turn
            self._note_activity(thread)
            if isinstance(event, TurnOver):
                await self._end_turn(event)
                continue
            if isinstance(event, TurnStarted) and turn and not self.feed.has_turn(turn):
                if thread in self.announced:
                    self.announced[thread].add(turn)
                await self._begin_unrequested(turn, thread)
            elif isinstance(event, ItemStarted | ToolCall | FileChange):
                self._requested.reported(thread, turn, event.item)
            elif isinstance(event, Retrying) and turn in self._failed:
                event = self._retry(event, self._failed[turn])
            elif isinstance(event, Usage):
                active = self.feed.active_turn(thread)
                if active is not None and active.id == turn:
                    self.ledger.reported(thread, event.total, last_usage(params))
                else:
                    self.ledger.restored(thread, event.total)
            await self.feed.publish(event)
        self._on_change()

    async def on_request(self, id: Id, method: str, params: Any) -> Any:
        """Answer a request of Codex by the approval rules."""
        del id
        members = params if isinstance(params, dict) else {}
        thread, turn, item = (fields.id(members, name) for name in ("threadId", "turnId", "itemId"))
        self._note_activity(thread)
        given = answer(method, params, self._approvals, self.decoder.paths(thread, item))
        await self.feed.publish(
            ApprovalDecision(
                session=self.feed.session,
                thread=thread,
                turn=turn,
                item=item,
                method=method[:200],
                subject=given.subject,
                answer=given.answer,
                rule=given.rule,
            )
        )
        return given.result()

    async def on_garbage(self, garbage: Garbage) -> None:
        """Count all garbage. Report the first pieces, then one at each doubling."""
        self.garbage += 1
        number = self.garbage
        if _is_reported(number):
            await self._report_integrity(
                "GARBAGE_ON_STREAM",
                f"codex wrote a malformed message ({garbage.reason})",
                details={"number": number, "size": garbage.size, "beginning": garbage.beginning},
            )

    async def on_failure(self, method: str, error: Exception) -> None:
        """Report a message whose handler failed, in the same way as garbage."""
        self._failures += 1
        if _is_reported(self._failures):
            await self._report_integrity(
                "MESSAGE_NOT_UNDERSTOOD",
                f"codex sent {printable(method[:100])}, which could not be handled ({type(error).__name__})",
                details={"number": self._failures},
            )

    async def on_exchange(self, exchange: Exchange) -> None:
        """Handle a finished model request, reported by the gateway."""
        await self._wait_for_thread(exchange.thread)
        thread = exchange.thread if exchange.thread in self.threads else ""
        turn = exchange.turn if self.feed.has_turn(exchange.turn) else ""
        session = self.feed.session
        self._note_activity(thread)
        before = self._failed.get(turn)
        if before is not None and self._retries_reported.get(turn) != before.number:
            await self.feed.publish(
                self._retry(Retrying(session=session, thread=thread, turn=turn, code="", message=""), before)
            )
        if is_answer(exchange):
            self._failed.pop(turn, None)
        elif turn and exchange.outcome != "completed":
            self._failed[turn] = exchange
        if turn:  # before its first response, the agent has run nothing that could have sent a request
            note(self.feed.turn(turn), exchange, first_is_ours=True)
        if exchange.outcome == "refused":
            await self._report_integrity("GATEWAY_REFUSED", "the gateway refused a request that is not a model request")
        counted = self.ledger.passed(thread, exchange)
        if counted is not None:
            await self.feed.publish(msgspec.structs.replace(counted, turn=turn))
            if not thread:
                await self._report_unattributed(counted)
        if exchange.bodies is not None:
            await self.feed.publish(msgspec.structs.replace(exchange.bodies, session=session, thread=thread, turn=turn))
        if exchange.windows:
            await self.feed.publish(
                RateWindows(session=session, thread=thread, turn=turn, windows=exchange.windows, source="gateway")
            )

    def on_call(self, exchange: Exchange, call: RequestedCall) -> None:
        """Remember a call that the gateway saw the model request."""
        is_announced = exchange.thread in self.threads and self.feed.has_turn(exchange.turn)
        (self._requested if is_announced else self.early_calls).add(exchange, call)

    async def _wait_for_thread(self, thread: str) -> None:
        """Wait until Codex has announced the thread of a sub-agent, so that its first response is attributed to it."""
        if thread and thread not in self.threads:
            announced = self._unannounced.setdefault(thread, anyio.Event())
            with anyio.move_on_after(ANNOUNCE_SECONDS):
                await announced.wait()
            self._unannounced.pop(thread, None)

    async def _report_unattributed(self, counted: Usage) -> None:
        """Report a model response without a known thread: a program in the box called the gateway directly."""
        self._unattributed += 1
        if _is_reported(self._unattributed):
            await self._report_integrity(
                "USAGE_UNREPORTED",
                "a model response that passed through the gateway does not belong to any thread of codex",
                details={"number": self._unattributed, "seen": msgspec.to_builtins(counted.total)},
            )

    async def on_trouble(self, code: str, message: str) -> None:
        await self._report_integrity(code, message)

    async def end_all(self, status: TurnStatus, error: AgentError) -> None:
        """End all turns in progress, after the program has ended."""
        for announced in self._unannounced.values():
            announced.set()
        await self.abandon()
        busy = {turn.thread for turn in self.feed.turns_under_way()}
        for thread, difference in self.ledger.settle_idle(busy).items():
            await self._report_difference(difference, thread)
        for turn in self.feed.turns_under_way():
            if error.details.get("cause"):  # the box ended, not just the program
                turn.observed_failure = error
            verdict = self.verdicts.pop(turn.id, None)
            if verdict is None:
                await self.feed.end_turn(turn.id, status, error)
            else:
                await self.feed.end_turn(turn.id, _status_of(verdict), verdict)

    async def abandon(self, threads: Sequence[str] | None = None, turn: str | None = None) -> bool:
        """Report the open items of some threads or of one turn as abandoned. Return whether there were any."""
        left = self.decoder.abandon(threads, turn)
        for event in left:
            await self.feed.publish(event)
        if turn is None:
            for call in self._requested.abandon(threads):
                await self.feed.publish(msgspec.structs.replace(call, late=self.feed.has_ended(call.turn)))
        return bool(left)

    async def report_integrity(self, thread: str, code: str, message: str, turn: str = "") -> None:
        await self._report_integrity(code, message, thread=thread, turn=turn)

    async def _end_turn(self, over: TurnOver) -> None:
        if not self.feed.has_turn(over.turn):
            return
        verdict = self.verdicts.pop(over.turn, None)
        status, error = over.status, None
        if verdict is not None and status != "completed":
            status, error = _status_of(verdict), verdict
        elif status == "interrupted":
            error = TurnInterrupted("codex interrupted the turn", op="turn")
        elif status == "failed":
            error = classify(over.error or {}, self._failed.get(over.turn))
        self._failed.pop(over.turn, None)
        self._retries_reported.pop(over.turn, None)
        if status == "completed":
            self._requested.forget(over.thread, over.turn)
        difference = self.ledger.settle(over.thread, complete=status == "completed")
        if difference is not None:
            await self._report_difference(difference, over.thread, over.turn)
        await self.feed.end_turn(over.turn, status, error)

    def _retry(self, event: Retrying, failed: Exchange) -> Retrying:
        """Report the retry of a failed request, with the failure that the gateway saw."""
        self._retries_reported[event.turn] = failed.number
        seen = retried(failed)
        return msgspec.structs.replace(event, code=seen.code, message=event.message or seen.message)

    async def _report_difference(self, difference: dict[str, Any], thread: str, turn: str = "") -> None:
        message = "the token usage that codex reports differs from the usage that the gateway recorded"
        await self._report_integrity("USAGE_DISAGREES", message, thread=thread, turn=turn, details=difference)

    async def _report_integrity(self, code: str, message: str, **values: Any) -> None:
        await self.feed.publish(Integrity(session=self.feed.session, code=code, message=message, **values))

    async def _begin_unrequested(self, turn: str, thread: str) -> None:
        """Track a turn that we did not request, or whose request timed out."""
        self._unrequested += 1
        if self._unrequested <= MAX_UNREQUESTED:
            self.begin(turn, thread)
        elif _is_reported(self._unrequested - MAX_UNREQUESTED):
            message = f"codex started more than {MAX_UNREQUESTED} turns on its own; further ones are not tracked"
            await self._report_integrity("TOO_MANY_TURNS", message, details={"number": self._unrequested})

    def _note_activity(self, thread: str) -> None:
        if thread in self.threads:
            self._last_activity[thread] = self._clock.monotonic()


def _is_reported(number: int) -> bool:
    """Return whether to report the n-th occurrence: the first ones, then one at each doubling."""
    return number <= REPORTED_FIRST or number & (number - 1) == 0


def _status_of(verdict: AgentError) -> TurnStatus:
    return "interrupted" if isinstance(verdict, TurnInterrupted) else "failed"
