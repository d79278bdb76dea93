"""The way from a `process` agent to its model: a gateway for the session's life, and what passes told as events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from proofbox.agents.codex.launch import way_to_model
from proofbox.agents.events import Event, Integrity, RateWindows, TokenUsage, Usage
from proofbox.agents.gateway import Endpoint, ModelGateway
from proofbox.agents.traffic import Exchange
from proofbox.errors import RuntimeStartFailed
from proofbox.sandbox.contract import Door

if TYPE_CHECKING:
    from proofbox.agents.hosted import HostedSession


class WayToModel:
    """Held open by a task of the session's background, since whoever opens it is not who closes it."""

    def __init__(self, base_url: str, api_key_env: str | None, session: HostedSession) -> None:
        self._endpoint = Endpoint.of(base_url, api_key_env)
        self._session = session
        self._gateway = ModelGateway(self._endpoint, on_exchange=self._saw, on_trouble=self._trouble)
        self._ready = anyio.Event()
        self._over = anyio.Event()
        self._doors: tuple[Door, ...] = ()
        self._used: dict[str, TokenUsage] = {}
        self.base_url = ""
        self._failure = ""

    def facts(self) -> Mapping[str, Any]:
        return {
            "endpoint": self._endpoint.base_url,
            "key": "added by the gateway" if self._endpoint.has_key else "none",
            "requests": len(self._gateway.exchanges),
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

    async def _saw(self, exchange: Exchange) -> None:
        """Which turn it was for is known where there is but one."""
        turns = self._session.feed.turns_under_way()
        thread, turn = (turns[0].thread, turns[0].id) if len(turns) == 1 else ("", "")
        events: list[Event] = []
        if exchange.outcome == "refused":
            message = f"a request for something else than the model was refused: {exchange.method}"
            events.append(Integrity(session="", code="GATEWAY_REFUSED", message=message))
        if exchange.usage is not None:
            total = self._used[turn] = _sum(self._used.get(turn), exchange.usage)
            events.append(Usage(session="", total=total, source="gateway"))
        if exchange.windows:
            events.append(RateWindows(session="", windows=exchange.windows, source="gateway"))
        for event in events:
            await self._session.feed.tell(msgspec.structs.replace(event, thread=thread, turn=turn))


def _sum(before: TokenUsage | None, more: TokenUsage) -> TokenUsage:
    if before is None:
        return more
    return TokenUsage(**{name: getattr(before, name) + getattr(more, name) for name in TokenUsage.__struct_fields__})
