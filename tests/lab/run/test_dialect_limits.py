"""Limits that an endpoint states close the same gate in every dialect, deterministically under an injected clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from proofbox.agents.fakemodel.server import FakeModel
from proofbox.agents.feed import Turn
from proofbox.agents.gateway.endpoint import ModelEndpoint
from proofbox.agents.gateway.failures import note
from proofbox.agents.gateway.server import ModelGateway
from proofbox.core.clock import ManualClock
from proofbox.errors import ProofboxError, RateLimited, UsageLimited
from proofbox.evidence.bundle.identity import process_identity
from proofbox.lab.run.failures import retry_after
from proofbox.lab.run.limiter import Limiter

DIALECTS: dict[str, Any] = {
    "/responses": lambda text: {"input": [{"role": "user", "content": text}]},
    "/messages": lambda text: {"messages": [{"role": "user", "content": text}], "stream": True},
    "/models/gemini-3:streamGenerateContent?alt=sse": lambda text: {
        "contents": [{"role": "user", "parts": [{"text": text}]}]
    },
}


def failure_of(path: str, prompt: str, clock: ManualClock) -> ProofboxError:
    """Return the failure that the gateway observes when an endpoint answers a prompt."""
    turn = Turn("turn", "thread", 0.0)

    async def main() -> None:
        async with FakeModel(clock=clock).listening() as url:
            gateway = ModelGateway(ModelEndpoint(url), clock=clock)
            async with gateway.listening_on_loopback() as base, httpx2.AsyncClient(timeout=60) as client:
                answer = await client.post(base + path, json=DIALECTS[path](prompt))
                assert answer.status_code == 429, answer.text
            [exchange] = gateway.exchanges
            note(turn, exchange)

    anyio.run(main)
    assert turn.observed_failure is not None
    return turn.observed_failure


@pytest.mark.parametrize("path", DIALECTS)
def test_stated_limits_close_the_gate_for_the_same_time(tmp_path: Path, path: str) -> None:
    clock = ManualClock()
    limiter = Limiter("https://model KEY", 4, directory=tmp_path, clock=clock)
    short = failure_of(path, "[[http 429 retry_after=30]]", clock)
    assert type(short) is RateLimited
    limiter.rate_limited(clock.now().timestamp(), retry_after(short, clock))
    assert limiter.enter("a", process_identity()) == 30
    clock.advance(30)
    long = failure_of(path, "[[http 429 type=usage_limit_reached resets=3600]]", clock)
    assert type(long) is UsageLimited
    limiter.usage_limited(clock.now().timestamp() + (retry_after(long, clock) or 0))
    assert limiter.enter("a", process_identity()) == pytest.approx(3600, abs=1)  # endpoints state whole seconds
    clock.advance(3600)
    assert limiter.enter("a", process_identity()) is None
