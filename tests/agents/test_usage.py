"""Tests of token counting by the gateway: all formats, streamed or not, complete or broken off, summed over threads."""

# ruff: noqa: S610 (no Django here)

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx2
import pytest
from codex_lab import Lab, run

from proofbox.agents.events import MAX_TOKENS, Event, Integrity, TokenUsage, ToolCall, Usage
from proofbox.agents.feed import Feed
from proofbox.agents.gateway.endpoint import ModelEndpoint
from proofbox.agents.gateway.http import HttpRequest, Responder, connection_handler
from proofbox.agents.gateway.server import ModelGateway
from proofbox.agents.gateway.traffic import Exchange, RequestedCall
from proofbox.agents.runtimes.claude.decoder import usage_of
from proofbox.agents.runtimes.codex.listener import CodexListener
from proofbox.agents.usage import TokenCount, added
from proofbox.core.clock import SystemClock
from proofbox.errors import TurnInterrupted

RESPONSES_USAGE = {
    "input_tokens": 70,
    "input_tokens_details": {"cached_tokens": 20},
    "output_tokens": 30,
    "output_tokens_details": {"reasoning_tokens": 10},
    "total_tokens": 100,
}
CHAT_USAGE = {
    "prompt_tokens": 70,
    "prompt_tokens_details": {"cached_tokens": 20},
    "completion_tokens": 30,
    "completion_tokens_details": {"reasoning_tokens": 10},
    "total_tokens": 100,
}
ANTHROPIC_INPUT = {"input_tokens": 40, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 20}
EXPECTED = TokenUsage(input_tokens=70, output_tokens=30, cached_input_tokens=20, reasoning_tokens=10)
WITHOUT_REASONING = TokenUsage(input_tokens=70, output_tokens=30, cached_input_tokens=20)


def sse(*events: dict[str, Any] | str) -> list[bytes]:
    data = [each if isinstance(each, str) else json.dumps(each) for each in events]
    return [f"data: {each}\n\n".encode() for each in data]


def completed(**more: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"status": "completed", "usage": RESPONSES_USAGE, **more}}


def chunk(finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"delta": {}, "finish_reason": finish}], **more}


MESSAGE_START = {"type": "message_start", "message": {"usage": {**ANTHROPIC_INPUT, "output_tokens": 1}}}
MESSAGE_DELTA = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 30}}
CHAT_TAIL = {"object": "chat.completion.chunk", "choices": [], "usage": CHAT_USAGE}

STREAMS: dict[str, list[bytes]] = {
    "responses": sse({"type": "response.created", "response": {"usage": None}}, completed()),
    "responses cut short by the model": sse(
        {"type": "response.incomplete", "response": {"status": "incomplete", "usage": RESPONSES_USAGE}}
    ),
    "a completed event of a megabyte": sse(completed(output="x" * (1 << 20))),
    "chat": sse(chunk(), chunk("stop"), CHAT_TAIL, "[DONE]"),
    "chat with a count in every chunk": sse(
        chunk(usage={**CHAT_USAGE, "completion_tokens": 1}), chunk("stop", usage=CHAT_USAGE), "[DONE]"
    ),
    "chat without an end mark": sse(chunk(), chunk("stop"), CHAT_TAIL),
    "messages": sse(
        MESSAGE_START,
        {**MESSAGE_DELTA, "usage": {"output_tokens": 30, "output_tokens_details": {"thinking_tokens": 10}}},
        {"type": "message_stop"},
    ),
}
BODIES: dict[str, dict[str, Any]] = {
    "responses": {"object": "response", "status": "completed", "usage": RESPONSES_USAGE},
    "a long response": {"status": "completed", "output": "x" * (2 << 20), "usage": RESPONSES_USAGE},
    "chat": {"object": "chat.completion", "choices": [{"finish_reason": "stop"}], "usage": CHAT_USAGE},
    "messages": {
        "type": "message",
        "usage": {**ANTHROPIC_INPUT, "output_tokens": 30, "output_tokens_details": {"thinking_tokens": 10}},
    },
}


class Passing:
    """A gateway to an endpoint of the test, and its reports."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.reported: list[Exchange] = []

    @property
    def last(self) -> Exchange:
        return self.reported[-1]


def passing(
    tmp_path: Path,
    endpoint: Callable[[HttpRequest, Responder], Awaitable[None]],
    work: Callable[[Passing], Awaitable[None]],
    *,
    slow: bool = False,
) -> None:
    async def main() -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        directory = tmp_path / "gateway"
        directory.mkdir(mode=0o700)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, connection_handler(endpoint))

            async def report(exchange: Exchange) -> None:
                if slow:
                    await anyio.sleep(0.05)
                found.reported.append(exchange)

            gateway = ModelGateway(ModelEndpoint(f"http://127.0.0.1:{port}/v1"), on_exchange=report)
            async with gateway.listening_at(directory) as path:
                transport = httpx2.AsyncHTTPTransport(uds=str(path))
                async with httpx2.AsyncClient(transport=transport, base_url="http://inside", timeout=60) as client:
                    found = Passing(client)
                    await work(found)
            tasks.cancel_scope.cancel()

    async def in_time() -> None:
        with anyio.fail_after(60):
            await main()

    anyio.run(in_time)


async def stream(responder: Responder, pieces: list[bytes], *, cut: bool = False) -> None:
    await responder.start(200, {"content-type": "text/event-stream"})
    for piece in pieces:
        await responder.write(piece)
    await (responder.abort() if cut else responder.finish())


@pytest.mark.parametrize("name", STREAMS)
def test_usage_of_a_stream_is_counted(tmp_path: Path, name: str) -> None:
    async def endpoint(request: HttpRequest, responder: Responder) -> None:
        await stream(responder, STREAMS[name])

    async def work(gateway: Passing) -> None:
        answer = await gateway.client.post("/model/any", json={})
        assert answer.content == b"".join(STREAMS[name])
        assert (gateway.last.outcome, gateway.last.usage, gateway.last.unmeasured) == ("completed", EXPECTED, "")

    passing(tmp_path, endpoint, work)


@pytest.mark.parametrize("name", BODIES)
def test_usage_of_a_body_is_counted_for_the_request_that_made_it(tmp_path: Path, name: str) -> None:
    async def endpoint(request: HttpRequest, responder: Responder) -> None:
        await responder.send(200, json.dumps(BODIES[name]).encode(), {"content-type": "application/json"})

    async def work(gateway: Passing) -> None:
        await gateway.client.post("/model/any", json={})
        assert (gateway.last.outcome, gateway.last.usage, gateway.last.unmeasured) == ("completed", EXPECTED, "")
        await gateway.client.get("/model/any/id")  # a stored response, which can be fetched repeatedly
        assert (gateway.last.usage, gateway.last.unmeasured) == (None, "")

    passing(tmp_path, endpoint, work)


@pytest.mark.parametrize(
    ("pieces", "cut", "usage", "unmeasured"),
    [
        (sse(chunk(), chunk("stop"), "[DONE]"), False, None, "no_usage"),
        (sse({"type": "response.completed", "response": {"usage": None}}), False, None, "no_usage"),
        (sse({"type": "response.completed", "response": {"usage": {"total": 5}}}), False, None, "no_usage"),
        (sse({"type": "response.created", "response": {}}), True, None, "broken_off"),
        (sse({"type": "response.created", "response": {}}), False, None, "broken_off"),
        (sse(MESSAGE_START), True, TokenUsage(input_tokens=70, output_tokens=1, cached_input_tokens=20), "broken_off"),
        (sse(MESSAGE_START, MESSAGE_DELTA), True, WITHOUT_REASONING, "broken_off"),
        (sse({"type": "response.failed", "response": {"error": {"code": "slow_down"}}}), False, None, ""),
    ],
)
def test_usage_that_is_not_stated_is_unknown_and_not_zero(
    tmp_path: Path, pieces: list[bytes], cut: bool, usage: TokenUsage | None, unmeasured: str
) -> None:
    async def endpoint(request: HttpRequest, responder: Responder) -> None:
        await stream(responder, pieces, cut=cut)

    async def work(gateway: Passing) -> None:
        try:
            await gateway.client.post("/model/any", json={})
        except httpx2.TransportError:
            assert cut
        assert (gateway.last.usage, gateway.last.unmeasured) == (usage, unmeasured)

    passing(tmp_path, endpoint, work)


def test_token_counting_requests_use_no_tokens(tmp_path: Path) -> None:
    async def endpoint(request: HttpRequest, responder: Responder) -> None:
        await responder.send(200, b'{"input_tokens": 12}', {"content-type": "application/json"})

    async def work(gateway: Passing) -> None:
        await gateway.client.post("/model/messages/count_tokens?beta=true", json={})
        assert (gateway.last.outcome, gateway.last.usage, gateway.last.unmeasured) == ("completed", None, "")

    passing(tmp_path, endpoint, work)


@pytest.mark.parametrize("kind", ["stream", "body", "error"])
def test_a_response_is_counted_before_its_end_arrives(tmp_path: Path, kind: str) -> None:
    """The last response must be counted even if the program exits right after it."""

    async def endpoint(request: HttpRequest, responder: Responder) -> None:
        if kind == "stream":
            await stream(responder, STREAMS["responses"])
        else:
            status = 200 if kind == "body" else 401
            await responder.send(status, json.dumps(BODIES["chat"]).encode(), {"content-type": "application/json"})

    async def work(gateway: Passing) -> None:
        async with gateway.client.stream("POST", "/model/any", json={}) as answer:
            if kind == "stream":
                async for line in answer.aiter_lines():
                    if "response.completed" in line:
                        break
            else:
                await answer.aread()
            assert [each.outcome for each in gateway.reported] == ["http_error" if kind == "error" else "completed"]

    passing(tmp_path, endpoint, work, slow=True)


# ---- sums


def usage(total: int, thread: str = "", source: str = "gateway", **more: int) -> Usage:
    used = TokenUsage(input_tokens=total)
    return Usage(session="", thread=thread, total=used, source=source, **more)  # type: ignore[arg-type]


def test_the_latest_total_of_each_thread_is_summed() -> None:
    count = TokenCount()
    for event in (usage(10, "a"), usage(5, "b"), usage(30, "a"), usage(7), usage(12, "a", "runtime_reported")):
        count.add(event)
    assert {source: each.input_tokens for source, each in count.by_source().items()} == {
        "gateway": 42,
        "runtime_reported": 12,
    }
    assert (count.source, count.spent()) == ("gateway", 42)


def test_agent_reports_are_summed_without_a_gateway() -> None:
    count = TokenCount()
    assert (count.total(), count.spent()) == (None, 0)
    for event in (usage(10, "a", "runtime_reported"), usage(5, "b", "runtime_reported")):
        count.add(event)
    assert (count.source, count.spent()) == ("runtime_reported", 15)


def test_a_count_without_any_stated_usage_is_unknown() -> None:
    count = TokenCount()
    count.add(usage(0, without_usage=2, broken_off=1))
    assert (count.total(), count.by_source()) == (None, {})
    assert (count.without_usage, count.broken_off) == (2, 1)
    count.add(usage(9, "a", "runtime_reported"))
    assert count.spent() == 9  # the agent's report, because there is no other count


def test_shared_session_does_not_count_unattributed_tokens() -> None:
    count = TokenCount(shared=True)
    count.add(usage(10, "mine"))
    count.add(usage(1000))
    assert count.spent() == 10


# ---- codex


@pytest.mark.needs("bubblewrap")
def test_a_sub_agents_tokens_are_counted_and_agree(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session(fake="sub-agent") as seat:
            assert (await seat.turn("x")).status == "completed"
            assert not seat.of(Integrity)
            count = TokenCount()
            for event in seat.of(Usage):
                count.add(event)
            sums = {source: (each.input_tokens, each.output_tokens) for source, each in count.by_source().items()}
            assert sums == {"gateway": (20, 10), "runtime_reported": (20, 10)}

    run(tmp_path, work)


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(
    ("mode", "code", "seen"),
    [("direct", "USAGE_UNREPORTED", 10), ("spoof", "USAGE_DISAGREES", 20), ("late-spoof", "USAGE_DISAGREES", 10)],
)
def test_unreported_requests_are_counted_and_reported_as_a_finding(
    tmp_path: Path, mode: str, code: str, seen: int
) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session(fake=mode) as seat:
            assert (await seat.turn("x")).status == "completed"
            await seat.until(lambda: seat.session.facts()["requests"] == 2)
            await seat.until(lambda: len(seat.of(Usage, source="gateway")) == 2)
        [found] = seat.of(Integrity)
        assert (found.code, found.details["seen"]["input_tokens"]) == (code, seen)
        count = TokenCount()
        for event in seat.of(Usage):
            count.add(event)
        assert count.spent() == 30

    run(tmp_path, work)


RESPONSE = Exchange(
    number=1,
    method="POST",
    path="/responses",
    thread="sub",
    turn="t",
    outcome="completed",
    usage=TokenUsage(input_tokens=10),
)


def sub_agent_response(work: Callable[[CodexListener], Awaitable[None]]) -> list[Event]:
    """Pass the response of a sub-agent that Codex has not announced to a listener, and return the events."""
    events: list[Event] = []

    async def main() -> None:
        async def keep(event: Event) -> None:
            events.append(event)

        feed = Feed("session", SystemClock())
        feed.add_listener(keep)
        listener = CodexListener(feed, (), SystemClock(), lambda: None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.on_exchange, RESPONSE)
            await anyio.wait_all_tasks_blocked()
            assert events == []
            await work(listener)

    anyio.run(main)
    return events


def test_a_response_before_the_announcement_of_its_sub_agent_is_attributed_to_it() -> None:
    async def announce(listener: CodexListener) -> None:
        await listener.on_notification("turn/started", {"threadId": "sub", "turn": {"id": "t"}})

    events = sub_agent_response(announce)
    assert [(each.thread, each.turn) for each in events if isinstance(each, Usage)] == [("sub", "t")]
    assert not [each for each in events if isinstance(each, Integrity)]


def test_call_before_the_announcement_of_its_sub_agent_is_recorded() -> None:
    async def announce(listener: CodexListener) -> None:
        listener.on_call(RESPONSE, RequestedCall("c1", "exec_command", '{"cmd": "ls"}'))
        await listener.on_notification("turn/started", {"threadId": "sub", "turn": {"id": "t"}})
        await listener.abandon(["sub"])

    [call] = [each for each in sub_agent_response(announce) if isinstance(each, ToolCall)]
    assert (call.thread, call.turn, call.command, call.status) == ("sub", "t", "ls", "abandoned")


def test_a_response_of_a_thread_that_is_never_announced_is_a_finding() -> None:
    async def end(listener: CodexListener) -> None:
        await listener.end_all("failed", TurnInterrupted("the program has ended", op="turn"))

    events = sub_agent_response(end)
    assert [each.code for each in events if isinstance(each, Integrity)] == ["USAGE_UNREPORTED"]


def test_counts_that_a_program_invents_are_limited() -> None:
    models = {id: {"inputTokens": 2**53 - 1, "cacheReadInputTokens": 2**64, "outputTokens": -1} for id in "ab"}
    most = TokenUsage(input_tokens=MAX_TOKENS, cached_input_tokens=MAX_TOKENS)
    assert usage_of({"modelUsage": models}) == most
    assert added(most, most) == most
    assert added(TokenUsage(), TokenUsage(input_tokens=7), -1).input_tokens == -7, "differences may be negative"
