"""An agent can't cause a failure that excuses it, and failures of the key, the account or the network excuse it."""

from __future__ import annotations

from typing import Any

import pytest

from proofbox.agents.feed import Feed, Turn
from proofbox.agents.gateway.apis import is_model_request, model_of
from proofbox.agents.gateway.failures import note
from proofbox.agents.gateway.traffic import Exchange
from proofbox.core.clock import ManualClock
from proofbox.errors import AgentError, AuthFailed, ModelFailed, RateLimited, StreamDisconnected, UsageLimited

BEARER = ("authorization", "m", "", "")


def exchange(**values: Any) -> Exchange:
    asked = {"number": 1, "method": "POST", "path": "/responses", "variant": BEARER, "outcome": "http_error"}
    return Exchange(**{**asked, **values})


ANSWER = exchange(outcome="completed", status=200)
FAILED: dict[str, Any] = {"outcome": "failed", "status": 200}


SPENT = "You have reached your specified API usage limits"
ACCOUNT = {"path": "/messages", "error_type": "invalid_request_error"}


def observed(*exchanges: Exchange, first_is_ours: bool = False) -> type[AgentError] | None:
    turn = Turn("turn", "thread", 0.0)
    for each in exchanges:
        note(turn, each, first_is_ours=first_is_ours)
    return None if turn.observed_failure is None else type(turn.observed_failure)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "caused",
    [
        {"status": 401, "variant": ("x-api-key", "m", "", "")},
        {"status": 401, "variant": ("authorization", "unknown", "", "")},
        {"status": 401, "variant": ("authorization", "m", "b", "")},
        {"status": 401, "variant": None},
        {"status": 401, "path": "/other/responses"},
        {"status": 401, "method": "GET"},
        {"status": 403},
        {"status": 403, "error_type": "PERMISSION_DENIED"},
        {"status": 403, "path": "/files"},
        {"status": 429, "error_code": "usage_limit_reached", "variant": ("authorization", "unknown", "", "")},
        {"status": 429, "error_code": "rate_limit_exceeded", "error_message": "Request too large for m: Limit 1"},
        {"status": 404},
        {"status": 400},
        {"status": 413},
        {"status": 501},
        {"status": 500, "path": "/audio/speech"},
        {"status": 500, "variant": None},
        {**FAILED, "error_code": "invalid_prompt"},
        {**FAILED, "error_status": 400},
        {**FAILED, "error_status": 403},
        {"outcome": "cut", "status": 200, "path": "/audio/speech"},
        {"outcome": "cut", "status": 200, "path": "/models/m:streamGenerateContent?alt=sse&fields=usageMetadata"},
        {"outcome": "unreachable", "variant": None},
    ],
)
def test_failures_that_a_request_can_cause_do_not_excuse(caused: dict[str, Any]) -> None:
    assert observed(ANSWER, exchange(**caused)) is None
    assert observed(ANSWER, exchange(**caused), first_is_ours=True) is None


@pytest.mark.parametrize(
    "caused",
    [
        {"status": 403, "method": "GET"},
        {"status": 401, "path": "/files"},
        {"status": 403, "error_code": "model_not_found"},
        {"status": 404},
        {"status": 400, **ACCOUNT, "error_message": f"{SPENT} on 2026-12-01: Extra inputs are not permitted"},
        {"status": 400, **ACCOUNT, "error_message": SPENT.ljust(500, "x")},
        {"status": 400, "error_type": "invalid_request_error", "error_message": SPENT},
        {**FAILED, "error_code": "invalid_prompt"},
    ],
)
def test_they_do_not_excuse_before_the_first_response_either(caused: dict[str, Any]) -> None:
    assert observed(exchange(**caused)) is None


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ({"status": 401}, AuthFailed),
        ({"status": 403, "error_code": "invalid_api_key"}, AuthFailed),
        ({"status": 402}, UsageLimited),
        ({"status": 429, "variant": ("authorization", "other", "", "")}, RateLimited),
        ({"status": 500, "path": "/messages?beta=true"}, ModelFailed),
        ({**FAILED, "error_code": "server_error"}, ModelFailed),
        ({**FAILED, "error_status": 502}, ModelFailed),
        ({"outcome": "cut", "status": 200, "path": "/models/m:streamGenerateContent?alt=sse"}, StreamDisconnected),
        ({"outcome": "unreachable"}, StreamDisconnected),
    ],
)
def test_failures_of_the_endpoint_excuse(failure: dict[str, Any], kind: type[AgentError]) -> None:
    assert observed(ANSWER, exchange(**failure)) is kind
    assert observed(exchange(**failure)) is kind
    assert observed(exchange(**failure), ANSWER) is None


def test_first_failure_is_ours_only_in_the_first_turn_of_a_thread() -> None:
    feed = Feed("session", ManualClock())
    note(feed.begin_turn("a", "thread"), ANSWER)
    for thread, is_ours in (("thread", False), ("other", True)):
        turn = feed.begin_turn(f"b-{thread}", thread)
        note(turn, exchange(status=404), first_is_ours=True)
        assert (turn.answered, turn.observed_failure is not None) == (False, is_ours)


def test_only_plain_requests_to_a_model_are_recognized() -> None:
    for path in ("/v1/responses", "/v1/chat/completions?api-version=2025-01-01", "/v1/messages?beta=true"):
        assert is_model_request("POST", path)
    for path in ("/v1/models", "/v1/messages/count_tokens", "/m:countTokens", "/v1/messages?fields=a", "/x" * 300):
        assert not is_model_request("POST", path)
    assert not is_model_request("GET", "/v1/responses")
    assert [model_of(body) for body in (b'{"model":"m"}', b"{}", b"", b"[]", b'{"model":1}', b"\xff")] == [
        *("m", "", None, None, None, None)
    ]
