"""The way from a `process` agent to its model: a gateway for the session's life, and what passes told as events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from proofbox.agents.events import Event, Integrity, RateWindows, TokenUsage
from proofbox.agents.feed import Turn
from proofbox.agents.gateway.failures import note
from proofbox.agents.gateway.server import ModelEndpoint, ModelGateway
from proofbox.agents.gateway.traffic import Exchange
from proofbox.agents.runtimes.codex.launch import way_to_model
from proofbox.agents.usage import UsageLedger
from proofbox.errors import RuntimeStartFailed
from proofbox.sandbox.contract import Door

if TYPE_CHECKING:
    from proofbox.agents.hosted_session import HostedSession


class ModelRoute:
    """Held open by a task of the session's background, since whoever opens it is not who closes it."""

    def __init__(self, base_url: str, api_key_env: str | None, session: HostedSession) -> None:
        self._endpoint = ModelEndpoint.of(base_url, api_key_env)
        self._session = session
        self._gateway = ModelGateway(self._endpoint, on_exchange=self._saw, on_trouble=self._trouble)
        self._ready = anyio.Event()
        self._over = anyio.Event()
        self._doors: tuple[Door, ...] = ()
        # Programs differ in what they say of caches and reasoning, and agree on what is all of the input and output.
        self._ledger = UsageLedger(("input_tokens", "output_tokens"))
        self._reported: dict[str, TokenUsage] = {}
        self._mixed = False
        """Several turns were under way at once, so that responses could not be told apart."""
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
            async with way_to_model(self._gateway, options, options.scratch / f"{self._session.id}-gateway") as way:
                self.base_url, self._doors = way
                self._ready.set()
                await self._over.wait()
        except Exception as error:  # the background has nobody to raise to
            self._failure = f"{type(error).__name__}: {error}"
        finally:
            self._ready.set()

    async def doors(self) -> tuple[Door, ...]:
        await self._ready.wait()
        if not self.base_url:
            raise RuntimeStartFailed(f"the gateway to the model did not come up: {self._failure}", op="session")
        return self._doors

    def close(self) -> None:
        self._over.set()

    async def _trouble(self, code: str, message: str) -> None:
        await self._session.feed.tell(Integrity(session=self._session.id, code=code, message=message))

    def reported(self, turn: Turn, total: TokenUsage, last: TokenUsage) -> None:
        """What the program reports: its thread's total, and what this turn has added to it."""
        self._reported[turn.id] = total
        self._ledger.reported(turn.thread, total, last)

    async def settle(self, turn: Turn, *, complete: bool) -> None:
        """At a turn's end: compare what the program reports, if it does, with what passed."""
        difference = self._ledger.settle(turn.thread, complete=complete and turn.id in self._reported)
        if difference is not None and not self._mixed:
            message = "the tokens that the program reports are not those that passed through the gateway"
            await self._doubt("USAGE_DISAGREES", message, turn, difference)

    async def _saw(self, exchange: Exchange) -> None:
        """The turn that it was for is known if there is only one."""
        turns = self._session.feed.turns_under_way()
        turn = turns[0] if len(turns) == 1 else None
        thread = turn.thread if turn is not None else ""
        if turn is not None:
            note(turn, exchange)
        events: list[Event] = []
        if exchange.outcome == "refused":
            message = f"a request for something else than the model was refused: {exchange.method}"
            events.append(Integrity(session="", code="GATEWAY_REFUSED", message=message))
        counted = self._ledger.passed(thread, exchange)
        if counted is not None:
            events.append(counted)
            if len(turns) > 1 and not self._mixed:
                self._mixed = True
                message = "several turns are under way: model responses can't be attributed to one of them"
                events.append(Integrity(session="", code="USAGE_UNATTRIBUTED", message=message))
            elif not turns and self._reported:
                message = "a model response passed through the gateway after the turn whose usage was reported"
                details = {"seen": msgspec.to_builtins(counted.total)}
                events.append(Integrity(session="", code="USAGE_UNREPORTED", message=message, details=details))
        if exchange.windows:
            events.append(RateWindows(session="", windows=exchange.windows, source="gateway"))
        for event in events:
            await self._session.feed.tell(
                msgspec.structs.replace(event, thread=thread, turn=turn.id if turn is not None else "")
            )

    async def _doubt(self, code: str, message: str, turn: Turn, details: Mapping[str, Any]) -> None:
        await self._session.tell_of(turn, Integrity(session="", code=code, message=message, details=details))
