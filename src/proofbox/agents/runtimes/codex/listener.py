"""What a session hears of Codex and of the gateway, and what it makes of it: events, answers, the ends of turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
from proofbox.agents.gateway.failures import note
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
from proofbox.errors import AgentError, TurnInterrupted

TOLD_GARBAGE = 16
MOST_UNASKED = 100
"""Turns that Codex may begin by itself: each is kept until the session ends."""


class CodexListener:
    """`on_change` is called when something was heard that others may wait for."""

    def __init__(
        self, feed: Feed, approvals: Sequence[ApprovalRule], clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self.feed = feed
        self.decoder = CodexDecoder()
        self.ledger = UsageLedger()
        self.lineage = Lineage()
        self._requested = RequestedCalls()
        self.life = 0
        """Which start of the program this is."""
        self.threads: dict[str, int] = {}
        """The threads of the session, each with the life in which it was loaded last."""
        self.verdicts: dict[str, AgentError] = {}
        """Turns that are being ended early, and why."""
        self.garbage = 0
        self._failures = 0
        self._unasked = 0
        self._unattributed = 0
        self._approvals = approvals
        self._clock = clock
        self._on_change = on_change
        self._signs: dict[str, float] = {}
        self._failed: dict[str, Exchange] = {}
        self._retries_reported: dict[str, int] = {}
        """Of a turn, the number of its failed request that a retry was last reported for."""

    def begin(self, turn: str, thread: str) -> None:
        self.threads.setdefault(thread, self.life)
        self._sign(thread)
        self.feed.begin_turn(turn, thread)

    def silence(self, turn: Turn) -> float:
        """Seconds without a sign of life of a turn under way."""
        return self._clock.monotonic() - max(self._signs.get(turn.thread, 0.0), turn.began)

    async def notified(self, method: str, params: Any) -> None:
        self.lineage.learn(method, params, lambda turn: self.feed.turn(turn).thread if self.feed.knows(turn) else "")
        for event in self.decoder.decode(method, params):
            thread, turn = event.thread, event.turn
            self._sign(thread)
            if isinstance(event, TurnOver):
                await self._turn_over(event)
                continue
            if isinstance(event, TurnStarted) and turn and not self.feed.knows(turn):
                await self._begin_unasked(turn, thread)
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
            await self.feed.tell(event)
        self._on_change()

    async def asked(self, id: Id, method: str, params: Any) -> Any:
        """Answer a request of Codex's, by the rules."""
        del id
        said = params if isinstance(params, dict) else {}
        thread, turn, item = (fields.id(said, name) for name in ("threadId", "turnId", "itemId"))
        self._sign(thread)
        given = answer(method, params, self._approvals, self.decoder.paths(thread, item))
        await self.feed.tell(
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
        return given.give()

    async def told_garbage(self, garbage: Garbage, count: int) -> None:
        """All of it is counted, and the first of it told; after that, at every doubling."""
        del count  # of one life; ours is of all
        self.garbage += 1
        number = self.garbage
        if _is_told(number):
            await self._doubt(
                "GARBAGE_ON_STREAM",
                f"codex wrote something that is no message ({garbage.reason})",
                details={"number": number, "size": garbage.size, "beginning": garbage.beginning},
            )

    async def not_understood(self, method: str, error: Exception) -> None:
        """A message of a shape that nobody thought of. Told as garbage is."""
        self._failures += 1
        if _is_told(self._failures):
            await self._doubt(
                "MESSAGE_NOT_UNDERSTOOD",
                f"codex sent a {printable(method[:100])} that could not be dealt with ({type(error).__name__})",
                details={"number": self._failures},
            )

    async def saw(self, exchange: Exchange) -> None:
        """Of the gateway: one request to the model is over."""
        thread = exchange.thread if exchange.thread in self.threads else ""
        turn = exchange.turn if self.feed.knows(exchange.turn) else ""
        session = self.feed.session
        self._sign(thread)
        before = self._failed.get(turn)
        if before is not None and self._retries_reported.get(turn) != before.number:
            await self.feed.tell(
                self._retry(Retrying(session=session, thread=thread, turn=turn, code="", message=""), before)
            )
        if exchange.outcome == "completed":
            self._failed.pop(turn, None)
        elif turn:
            self._failed[turn] = exchange
        if turn:  # before its first response, the agent has run nothing that could have sent a request
            note(self.feed.turn(turn), exchange, first_is_ours=True)
        if exchange.outcome == "refused":
            await self._doubt("GATEWAY_REFUSED", "a request for something else than the model was refused")
        counted = self.ledger.passed(thread, exchange)
        if counted is not None:
            await self.feed.tell(msgspec.structs.replace(counted, turn=turn))
            if not thread:
                await self._unreported(counted)
        if exchange.windows:
            await self.feed.tell(
                RateWindows(session=session, thread=thread, turn=turn, windows=exchange.windows, source="gateway")
            )

    def call_requested(self, exchange: Exchange, call: RequestedCall) -> None:
        """Remember a call that the gateway saw the model request."""
        if exchange.thread in self.threads and self.feed.knows(exchange.turn):
            self._requested.add(exchange, call)

    async def _unreported(self, counted: Usage) -> None:
        """A model response of no thread that Codex has told of: a program in the box asked the gateway directly."""
        self._unattributed += 1
        if _is_told(self._unattributed):
            await self._doubt(
                "USAGE_UNREPORTED",
                "a model response passed through the gateway that belongs to no thread of codex",
                details={"number": self._unattributed, "seen": msgspec.to_builtins(counted.total)},
            )

    async def gateway_trouble(self, code: str, message: str) -> None:
        await self._doubt(code, message)

    async def end_all(self, status: TurnStatus, error: AgentError) -> None:
        """The program is gone: nothing more will be said of what is under way."""
        await self.abandon()
        busy = {turn.thread for turn in self.feed.turns_under_way()}
        for thread, difference in self.ledger.settle_idle(busy).items():
            await self._disagrees(difference, thread)
        for turn in self.feed.turns_under_way():
            if error.details.get("cause"):  # not the program's end, but that of its box
                turn.observed_failure = error
            verdict = self.verdicts.pop(turn.id, None)
            if verdict is None:
                await self.feed.end_turn(turn.id, status, error)
            else:
                await self.feed.end_turn(turn.id, _status_of(verdict), verdict)

    async def abandon(self, threads: Sequence[str] | None = None, turn: str | None = None) -> bool:
        """Report as abandoned what is still open of some threads or of one turn. Return whether anything was."""
        left = self.decoder.abandon(threads, turn)
        for event in left:
            await self.feed.tell(event)
        if turn is None:
            for call in self._requested.abandon(threads):
                await self.feed.tell(msgspec.structs.replace(call, late=self.feed.has_ended(call.turn)))
        return bool(left)

    async def doubt(self, thread: str, code: str, message: str, turn: str = "") -> None:
        await self._doubt(code, message, thread=thread, turn=turn)

    async def _turn_over(self, over: TurnOver) -> None:
        if not self.feed.knows(over.turn):
            return
        verdict = self.verdicts.pop(over.turn, None)
        status, error = over.status, None
        if verdict is not None and status != "completed":
            status, error = _status_of(verdict), verdict
        elif status == "interrupted":
            error = TurnInterrupted("codex ended the turn before its end", op="turn")
        elif status == "failed":
            error = classify(over.error or {}, self._failed.get(over.turn))
        self._failed.pop(over.turn, None)
        self._retries_reported.pop(over.turn, None)
        if status == "completed":
            self._requested.forget(over.thread, over.turn)
        difference = self.ledger.settle(over.thread, complete=status == "completed")
        if difference is not None:
            await self._disagrees(difference, over.thread, over.turn)
        await self.feed.end_turn(over.turn, status, error)

    def _retry(self, event: Retrying, failed: Exchange) -> Retrying:
        """Report the retry of a failed request, with the failure that the gateway saw."""
        self._retries_reported[event.turn] = failed.number
        seen = retried(failed)
        return msgspec.structs.replace(event, code=seen.code, message=event.message or seen.message)

    async def _disagrees(self, difference: dict[str, Any], thread: str, turn: str = "") -> None:
        message = "the tokens that codex reports are not those that passed through the gateway"
        await self._doubt("USAGE_DISAGREES", message, thread=thread, turn=turn, details=difference)

    async def _doubt(self, code: str, message: str, **values: Any) -> None:
        await self.feed.tell(Integrity(session=self.feed.session, code=code, message=message, **values))

    async def _begin_unasked(self, turn: str, thread: str) -> None:
        """One that we did not ask for, or no longer waited for."""
        self._unasked += 1
        if self._unasked <= MOST_UNASKED:
            self.begin(turn, thread)
        elif _is_told(self._unasked - MOST_UNASKED):
            message = "codex begins more turns by itself than are followed"
            await self._doubt("TOO_MANY_TURNS", message, details={"number": self._unasked})

    def _sign(self, thread: str) -> None:
        if thread in self.threads:
            self._signs[thread] = self._clock.monotonic()


def _is_told(number: int) -> bool:
    """Of what may come without end: the first ones, and after that each that doubles their number."""
    return number <= TOLD_GARBAGE or number & (number - 1) == 0


def _status_of(verdict: AgentError) -> TurnStatus:
    return "interrupted" if isinstance(verdict, TurnInterrupted) else "failed"
