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
from proofbox.lab.run.plan import Plan, credential_of

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


def credential(strategies: str, used: str | None = None, **tables: Any) -> str | None:
    made = Plan(
        run_id="r",
        suite_name="s",
        suite_source="",
        base="/",
        chain=strategies,
        chain_origin="flag",
        strategy=used,
        concurrency=1,
        runtimes=tables,
    )
    return credential_of(made)


def test_default_endpoints_are_limited_like_those_that_settings_name() -> None:
    anthropic = {"base_url": "https://api.anthropic.com/", "api_key_env": "ANTHROPIC_API_KEY"}
    assert (
        credential("claude_code")
        == credential("claude_code", claude_code=anthropic)
        == "https://api.anthropic.com ANTHROPIC_API_KEY"
    )
    assert credential("acp") == credential("claude_code")  # OpenCode's address ends in /v1
    assert credential("codex_app_server") == "https://api.openai.com OPENAI_API_KEY"
    assert credential("acp", acp={"command": ["agent"]}) is None
    assert credential("process", process={"command": ["agent"], "base_url": "https://model"}) == "https://model "
    assert credential("codex_app_server,scripted", "scripted") is None
    assert credential("claude_code,codex_app_server", "codex_app_server") == credential("codex_app_server")
    assert credential("claude_code", claude_code={"unknown": 1}) is None  # its attempts report this
