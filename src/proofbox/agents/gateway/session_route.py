"""The model gateway of a hosted session: it runs as long as the session, and its traffic is reported as events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from proofbox.agents.events import Event, Integrity, RateWindows, TokenUsage
from proofbox.agents.feed import Turn
from proofbox.agents.gateway.endpoint import ModelEndpoint
from proofbox.agents.gateway.failures import HINTS, is_answer, kind_of_exchange, limits_of, note
from proofbox.agents.gateway.server import ModelGateway, open_model_route
from proofbox.agents.gateway.traffic import Exchange
from proofbox.agents.usage import UsageLedger
from proofbox.errors import AgentError, ModelFailed, RuntimeStartFailed
from proofbox.sandbox.contract import Door

if TYPE_CHECKING:
    from proofbox.agents.hosted_session import HostedSession


class ModelRoute:
    """Keeps the gateway open in a background task of the session, because different tasks open and close it."""

    def __init__(self, endpoint: ModelEndpoint, session: HostedSession) -> None:
        self._endpoint = endpoint
        self._session = session
        self._gateway = ModelGateway(self._endpoint, on_exchange=self._on_exchange, on_trouble=self._on_trouble)
        self._ready = anyio.Event()
        self._closing = anyio.Event()
        self._doors: tuple[Door, ...] = ()
        # Programs count cached and reasoning tokens differently, but agree on the totals of input and output.
        self._ledger = UsageLedger(("input_tokens", "output_tokens"))
        self._reported: set[str] = set()
        """The threads whose agent reports its usage."""
        self._failed: dict[str, Exchange] = {}
        """The last failed request of each turn."""
        self._mixed = False
        """Several turns ran concurrently, so responses could not be attributed to a turn."""
        self.base_url = ""
        self._failure = ""

    def facts(self) -> Mapping[str, Any]:
        return {
            "endpoint": self._endpoint.base_url,
            "key": "added by the gateway" if self._endpoint.has_key else "none",
            "requests": self._gateway.requests,
            "refused_requests": self._gateway.refused,
        }

    async def keep_open(self) -> None:
        options = self._session.options
        try:
            async with open_model_route(self._gateway, options, options.scratch / f"{self._session.id}-gateway") as way:
                self.base_url, self._doors = way
                self._ready.set()
                await self._closing.wait()
        except Exception as error:  # background tasks must not raise
            self._failure = f"{type(error).__name__}: {error}"
        finally:
            self._ready.set()

    async def doors(self) -> tuple[Door, ...]:
        await self._ready.wait()
        if not self.base_url:
            raise RuntimeStartFailed(f"the model gateway failed to start: {self._failure}", op="session")
        return self._doors

    def close(self) -> None:
        self._closing.set()

    async def _on_trouble(self, code: str, message: str) -> None:
        await self._session.feed.publish(Integrity(session=self._session.id, code=code, message=message))

    def reported(self, thread: str, total: TokenUsage, last: TokenUsage) -> None:
        """Record the usage that the program reports: the thread's total, and the increase since its last report."""
        self._reported.add(thread)
        self._ledger.reported(thread, total, last)

    def failure_of(self, turn: Turn) -> AgentError | None:
        """Return the model's failure that the turn did not recover from, as observed by the gateway."""
        failed = self._failed.get(turn.id)
        kind = kind_of_exchange(failed) if failed is not None else None
        if failed is None or kind is None:
            return None
        message = failed.error_message or f"the request to the model failed: {failed.outcome}, status {failed.status}"
        details = {"status": failed.status, **limits_of(failed)}
        retryable = failed.status >= 500 if kind is ModelFailed else None
        return kind(message, op="turn", fix_hints=HINTS.get(kind, ()), details=details, retryable=retryable)

    async def settle(self, turn: Turn, *, complete: bool) -> None:
        """At the end of a turn, compare the usage that the program reported, if any, with the gateway's figures."""
        difference = self._ledger.settle(turn.thread, complete=complete and turn.thread in self._reported)
        if difference is not None and not self._mixed:
            message = "the token usage that the program reports differs from the usage that the gateway recorded"
            await self._report_integrity("USAGE_DISAGREES", message, turn, difference)

    async def _on_exchange(self, exchange: Exchange) -> None:
        """Report an exchange.

        It is attributed to the thread that it names. Otherwise, it is attributed to a turn only if exactly one turn is
        in progress.
        """
        named = self._session.owner_of(exchange.thread)
        turns = [turn for turn in self._session.feed.turns_under_way() if not named or turn.thread == named]
        turn = turns[0] if len(turns) == 1 else None
        thread = turn.thread if turn is not None else named
        if turn is not None:
            note(turn, exchange, first_is_ours=bool(named))
            if is_answer(exchange):
                self._failed.pop(turn.id, None)
            elif kind_of_exchange(exchange) is not None:
                self._failed[turn.id] = exchange
        events: list[Event] = []
        if exchange.outcome == "refused":
            message = f"the gateway refused a request that is not a model request: {exchange.method}"
            events.append(Integrity(session="", code="GATEWAY_REFUSED", message=message))
        counted = self._ledger.passed(thread, exchange)
        if counted is not None:
            events.append(counted)
            if len(turns) > 1 and not self._mixed:
                self._mixed = True
                message = "several turns are in progress: model responses can't be attributed to one of them"
                events.append(Integrity(session="", code="USAGE_UNATTRIBUTED", message=message))
            elif not turns and not named and self._reported:
                message = "a model response passed through the gateway after the turn whose usage was reported"
                details = {"seen": msgspec.to_builtins(counted.total)}
                events.append(Integrity(session="", code="USAGE_UNREPORTED", message=message, details=details))
        if exchange.bodies is not None:
            events.append(exchange.bodies)
        if exchange.windows:
            events.append(RateWindows(session="", windows=exchange.windows, source="gateway"))
        for event in events:
            await self._session.feed.publish(
                msgspec.structs.replace(event, thread=thread, turn=turn.id if turn is not None else "")
            )

    async def _report_integrity(self, code: str, message: str, turn: Turn, details: Mapping[str, Any]) -> None:
        await self._session.publish_for(turn, Integrity(session="", code=code, message=message, details=details))
