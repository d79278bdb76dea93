"""The fake model plays the same scenarios in every API, and the gateway sees the same outcomes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import pytest

from proofbox.agents.events import Event, TokenUsage
from proofbox.agents.fakemodel import FakeModel
from proofbox.agents.feed import Turn
from proofbox.agents.gateway.endpoint import ModelEndpoint
from proofbox.agents.gateway.failures import kind_of_exchange, note
from proofbox.agents.gateway.server import ModelGateway
from proofbox.agents.gateway.session_route import ModelRoute
from proofbox.agents.gateway.traffic import Exchange, Outcome
from proofbox.errors import (
    AgentError,
    AuthFailed,
    ContextExceeded,
    ModelFailed,
    Overloaded,
    RateLimited,
    StreamDisconnected,
    UsageLimited,
)


class Client:
    """A client of one API that keeps a conversation. Subclasses know the format."""

    path = ""

    def __init__(self, http: httpx2.AsyncClient, gateway: ModelGateway) -> None:
        self.http = http
        self._gateway = gateway
        self.history: list[dict[str, Any]] = []

    async def prompt(self, text: str) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        """Begin a conversation. Return the calls that the model requests, and its text."""
        self.history = [self.user(text)]
        return await self.ask()

    async def ask(self) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        """Send the conversation, and add the response and a result for each requested call to it."""
        answer = await self.http.post(self.path, json=self.body())
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith('data: {"')]
        events = [json.loads(line) for line in lines] if answer.status_code == 200 else []
        calls, text = self.read(events)
        self.add(calls, text)
        return calls, text

    @property
    def last(self) -> Exchange:
        return self._gateway.exchanges[-1]

    def user(self, text: str) -> dict[str, Any]:
        return {"role": "user", "content": text}

    def body(self) -> dict[str, Any]:
        raise NotImplementedError

    def read(self, events: list[dict[str, Any]]) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        raise NotImplementedError

    def add(self, calls: list[tuple[str, dict[str, Any]]], text: str) -> None:
        raise NotImplementedError


class Responses(Client):
    path = "/responses"

    def body(self) -> dict[str, Any]:
        return {"input": self.history, "stream": True}

    def read(self, events: list[dict[str, Any]]) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        calls = [(each["name"], json.loads(each["arguments"])) for each in items if each["type"] == "function_call"]
        texts = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        return calls, "".join(texts)

    def add(self, calls: list[tuple[str, dict[str, Any]]], text: str) -> None:
        self.history += [{"role": "assistant", "content": text}] if text else []
        self.history += [{"type": "function_call_output", "call_id": "c", "output": "x"} for _ in calls]


class Messages(Client):
    path = "/messages"

    def body(self) -> dict[str, Any]:
        return {"messages": self.history, "stream": True}

    def read(self, events: list[dict[str, Any]]) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        names = [each["content_block"]["name"] for each in events if "name" in each.get("content_block", ())]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        inputs = [json.loads(each["partial_json"]) for each in deltas if "partial_json" in each]
        return list(zip(names, inputs, strict=True)), "".join(each.get("text", "") for each in deltas)

    def add(self, calls: list[tuple[str, dict[str, Any]]], text: str) -> None:
        results = [{"type": "tool_result", "tool_use_id": "t", "content": "x"} for _ in calls]
        self.history += [{"role": "assistant", "content": text}] if text else []
        self.history += [{"role": "user", "content": results}] if results else []


class Gemini(Client):
    path = "/models/gemini-3:streamGenerateContent?alt=sse"

    def user(self, text: str) -> dict[str, Any]:
        return {"role": "user", "parts": [{"text": text}]}

    def body(self) -> dict[str, Any]:
        return {"contents": self.history}

    def read(self, events: list[dict[str, Any]]) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        candidates = [each for event in events for each in event.get("candidates", ())]
        parts = [part for each in candidates for part in each["content"]["parts"] if not part.get("thought")]
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        return [(call["name"], call["args"]) for call in calls], "".join(part.get("text", "") for part in parts)

    def add(self, calls: list[tuple[str, dict[str, Any]]], text: str) -> None:
        results = [{"functionResponse": {"name": name, "response": {"output": "x"}}} for name, _ in calls]
        self.history += [{"role": "model", "parts": [{"text": text}]}] if text else []
        self.history += [{"role": "user", "parts": results}] if results else []


APIS: tuple[type[Client], ...] = (Responses, Messages, Gemini)
each_api = pytest.mark.parametrize("api", APIS)


def run(api: type[Client], work: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with FakeModel().listening() as url:
            gateway = ModelGateway(ModelEndpoint(url))
            async with gateway.listening_on_loopback() as base, httpx2.AsyncClient(base_url=base, timeout=60) as http:
                await work(api(http, gateway))

    anyio.run(main)


@each_api
def test_turn_with_parallel_calls_background_commands_and_sub_agents(api: type[Client]) -> None:
    background = {"command": "make", "run_in_background": True}
    task = {"description": "d", "prompt": "the inner part"}
    prompt = (
        "[[think hm]] [[together 2]] [[run make a]] [[run make b]]"
        f" [[call Bash {json.dumps(background)}]] [[call Task {json.dumps(task)}]] [[say all done]]"
    )

    async def work(client: Client) -> None:
        parallel, _ = await client.prompt(prompt)
        assert [arguments.get("command") or arguments["cmd"] for _, arguments in parallel] == ["make a", "make b"]
        assert await client.ask() == ([("Bash", background)], "")
        assert await client.ask() == ([("Task", task)], "")
        assert await client.ask() == ([], "all done")
        client.history.append(client.user("[[say once more]]"))
        assert await client.ask() == ([], "once more")

    run(api, work)


@each_api
def test_usage_and_cache_hits_are_stated(api: type[Client]) -> None:
    async def work(client: Client) -> None:
        await client.prompt("[[usage input=70 output=9 cached=30 reasoning=0]] [[say x]]")
        assert client.last.usage == TokenUsage(input_tokens=70, output_tokens=9, cached_input_tokens=30)

    run(api, work)


@pytest.mark.parametrize(
    ("path", "member"), [("/messages/count_tokens", "input_tokens"), ("/m:countTokens", "totalTokens")]
)
def test_request_that_counts_tokens_uses_none(path: str, member: str) -> None:
    async def work(client: Client) -> None:
        answer = await client.http.post(path, json={})
        assert answer.json()[member] > 0
        assert (client.last.outcome, client.last.usage, client.last.unmeasured) == ("completed", None, "")

    run(Messages, work)


def test_only_an_answer_of_the_model_ends_its_failure() -> None:
    turn = Turn("turn", "thread", 0.0)

    async def publish(event: Event) -> None:
        del event

    feed = SimpleNamespace(turns_under_way=lambda: [turn], publish=publish)
    route = ModelRoute(ModelEndpoint("https://model"), SimpleNamespace(owner_of=lambda thread: thread, feed=feed))  # type: ignore[arg-type]

    async def see(path: str, outcome: Outcome, method: str = "POST", status: int = 200) -> bool:
        """Return whether the failure of the model is still known."""
        await route._on_exchange(Exchange(number=1, method=method, path=path, outcome=outcome, status=status))
        known = turn.observed_failure is not None
        assert known == (route.failure_of(turn) is not None) == (not turn.answered)
        return known

    async def work() -> None:
        assert await see("/messages", "http_error", status=529)
        assert await see("/messages/count_tokens", "completed")
        assert await see("/models", "completed", "GET")
        assert not await see("/messages", "completed")

    anyio.run(work)


FAULTS: dict[str, tuple[str, type[AgentError]]] = {
    "[[http 400]]": ("http_error", ModelFailed),
    "[[http 401]]": ("http_error", AuthFailed),
    "[[http 403]]": ("http_error", AuthFailed),
    "[[http 429 retry_after=7]]": ("http_error", RateLimited),
    "[[http 429 type=usage_limit_reached resets=60]]": ("http_error", UsageLimited),
    "[[http 500]]": ("http_error", ModelFailed),
    "[[http 503]]": ("http_error", Overloaded),
    "[[fail something_else]]": ("failed", ModelFailed),
    "[[fail context_length_exceeded]]": ("failed", ContextExceeded),
    "[[http 400 type=context_length_exceeded]]": ("http_error", ContextExceeded),
    "[[http 413]]": ("http_error", ContextExceeded),
    "[[http 402 type=insufficient_quota]]": ("http_error", UsageLimited),
    "[[drop before]]": ("unreachable", StreamDisconnected),
    "[[drop mid]] [[say several words]]": ("cut", StreamDisconnected),
    "[[idle 0.01 after=1]] [[say several words]]": ("cut", StreamDisconnected),
    "[[garbage]]": ("cut", StreamDisconnected),
}


@each_api
def test_faults_have_the_same_outcome_in_every_api(api: type[Client]) -> None:
    async def work(client: Client) -> None:
        for fault, outcome in FAULTS.items():
            try:
                await client.prompt(fault)
            except httpx2.TransportError:
                assert outcome[1] is StreamDisconnected, fault
            assert (client.last.outcome, kind_of_exchange(client.last)) == outcome, fault
            if "retry_after" in fault:
                assert client.last.retry_after == 7

    run(api, work)


@pytest.mark.parametrize(
    ("api", "fault", "observed"),
    [
        (Messages, "credit_too_low", UsageLimited),
        (Messages, "spend_limit", UsageLimited),
        (Messages, "context_length_exceeded", None),
        (Responses, "billing_hard_limit_reached", UsageLimited),
        (Responses, "billing_not_active", UsageLimited),
        (Responses, "invalid_request_error", None),
        (Gemini, "invalid_api_key", AuthFailed),
        (Gemini, "unsupported_location", AuthFailed),
        (Gemini, "FAILED_PRECONDITION", None),
        (Gemini, "INVALID_ARGUMENT", None),
    ],
)
def test_failures_of_key_and_account_with_status_400_are_the_endpoints(
    api: type[Client], fault: str, observed: type[AgentError] | None
) -> None:
    async def work(client: Client) -> None:
        await client.prompt(f"[[http 400 type={fault}]]")
        assert client.last.status == 400
        turn = Turn("turn", "thread", 0.0)
        note(turn, client.last)
        assert (type(turn.observed_failure) if turn.observed_failure is not None else None) is observed

    run(api, work)


@each_api
def test_fault_that_occurs_once_is_followed_by_the_response(api: type[Client]) -> None:
    async def work(client: Client) -> None:
        for fault in ("[[http 503 times=1]]", "[[fail overloaded_error times=1]]", "[[garbage times=1]]"):
            await client.prompt(f"{fault} [[say recovered]]")
            assert client.last.outcome != "completed"
            assert await client.prompt(f"{fault} [[say recovered]]") == ([], "recovered")

    run(api, work)


@pytest.mark.parametrize("api", [Messages, Gemini])
def test_patches_are_refused_where_no_agent_has_a_tool_for_them(api: type[Client]) -> None:
    async def work(client: Client) -> None:
        await client.prompt("[[patch *** Begin Patch]]")
        assert client.last.status == 400
        assert "[[patch]] is not supported" in client.last.error_message

    run(api, work)
