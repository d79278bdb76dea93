"""The gateway reports the bodies of requests and responses, if they are recorded: bounded, and without the key."""

from __future__ import annotations

import gzip
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import httpx2
import pytest

from proofbox.agents.events import ModelExchange
from proofbox.agents.fakemodel.server import FakeModel
from proofbox.agents.gateway import bodies
from proofbox.agents.gateway.endpoint import ModelEndpoint, Recorded
from proofbox.agents.gateway.server import ModelGateway
from proofbox.agents.gateway.traffic import Exchange

KEY = "sk-proj-Zq81kfjs93Hs8dkf93jf02"
HEADERS = {"content-type": "application/json"}


def reported(
    tmp_path: Path, work: Callable[[httpx2.AsyncClient], Awaitable[None]], record: Recorded = "bodies"
) -> list[ModelExchange | None]:
    found: list[ModelExchange | None] = []

    async def keep(exchange: Exchange) -> None:
        found.append(exchange.bodies)

    async def main() -> None:
        directory = tmp_path / "gateway"
        directory.mkdir(mode=0o700)
        async with FakeModel().listening() as url:
            gateway = ModelGateway(ModelEndpoint(url, KEY, record), on_exchange=keep)
            async with gateway.listening_at(directory) as path:
                transport = httpx2.AsyncHTTPTransport(uds=str(path))
                async with httpx2.AsyncClient(transport=transport, base_url="http://inside", timeout=60) as client:
                    await work(client)
            assert [each.bodies for each in gateway.exchanges] == [None] * len(found)  # memory is bounded

    anyio.run(main)
    return found


def body(prompt: str) -> bytes:
    return json.dumps({"instructions": "be kind", "input": [{"role": "user", "content": prompt}]}).encode()


def test_bodies_of_a_stream_and_of_an_error_are_reported(tmp_path: Path) -> None:
    answers: list[bytes] = []

    async def work(client: httpx2.AsyncClient) -> None:
        for prompt in ("[[say hello]]", "[[http 400]]"):
            answer = await client.post("/model/responses", content=body(prompt), headers=HEADERS)
            answers.append(answer.content)

    first, second = reported(tmp_path, work)
    assert first is not None
    assert second is not None
    assert (first.request.data, first.request.size) == (body("[[say hello]]"), len(body("[[say hello]]")))
    assert (first.status, first.outcome) == (200, "completed")
    assert b"hello" in first.response.data
    assert answers[0].startswith(first.response.data)
    assert first.response.size == len(first.response.data)
    assert (second.status, second.outcome, second.response.data) == (400, "http_error", answers[1])
    assert (first.number, second.number) == (1, 2)


def test_nothing_is_kept_unless_bodies_are_recorded(tmp_path: Path) -> None:
    async def work(client: httpx2.AsyncClient) -> None:
        await client.post("/model/responses", content=body("[[say hello]]"), headers=HEADERS)

    assert reported(tmp_path, work, "usage") == [None]


def test_the_key_is_redacted(tmp_path: Path) -> None:
    async def work(client: httpx2.AsyncClient) -> None:
        await client.post("/model/responses", content=body(f"[[say the key is {KEY}]]"), headers=HEADERS)

    [found] = reported(tmp_path, work)
    assert found is not None
    assert KEY.encode() not in found.request.data + found.response.data
    assert b"the key is [redacted]" in found.request.data


def test_large_and_encoded_bodies_are_omitted_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_BODY", 100)

    async def work(client: httpx2.AsyncClient) -> None:
        await client.post("/model/responses", content=body("x" * 100), headers=HEADERS)
        packed = {**HEADERS, "content-encoding": "gzip"}
        await client.post("/model/responses", content=gzip.compress(body("x")), headers=packed)

    large, encoded = reported(tmp_path, work)
    assert large is not None
    assert encoded is not None
    assert (large.request.data, large.request.size) == (b"", len(body("x" * 100)))
    assert "the limit is 100" in large.request.omitted
    assert "the limit is 100" in large.response.omitted
    assert (encoded.request.data, encoded.request.omitted) == (b"", "it is encoded: gzip")
