"""Tests of the decoder with transcripts of real sessions: complete translation, and a code for each failure."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.agents.contract import ApprovalRule
from proofbox.agents.events import (
    Delta,
    Event,
    FileChange,
    Integrity,
    Message,
    RateWindows,
    Retrying,
    TokenUsage,
    ToolCall,
    TurnStarted,
    Unrecognized,
    Usage,
)
from proofbox.agents.gateway.traffic import Exchange
from proofbox.agents.jsonrpc.peer import RpcRefusal
from proofbox.agents.runtimes.codex.approvals import answer
from proofbox.agents.runtimes.codex.decoder import CodexDecoder, TurnOver
from proofbox.agents.runtimes.codex.failures import classify
from proofbox.agents.usage import UsageLedger

FIXTURES = Path(__file__).parents[1] / "fixtures" / "codex-0.166.0"
TRANSCRIPTS = sorted(FIXTURES.glob("*.jsonl"))
TOOLS = ("commandExecution", "fileChange", "mcpToolCall", "dynamicToolCall", "webSearch", "imageView")

FAILURES = {
    "codex_conn_abort_before_headers": ("RUNTIME_STREAM_DISCONNECT", True),
    "codex_conn_refused_bounded": ("RUNTIME_STREAM_DISCONNECT", True),
    "matrix_drop_always": ("RUNTIME_STREAM_DISCONNECT", True),
    "matrix_failed_context": ("RUNTIME_CONTEXT_EXCEEDED", False),
    "matrix_failed_overloaded": ("RUNTIME_OVERLOADED", True),
    "matrix_failed_quota": ("RUNTIME_USAGE_LIMIT", True),
    "matrix_failed_ratelimit_always": ("RUNTIME_RATE_LIMIT", True),
    "matrix_http400": ("RUNTIME_MODEL_ERROR", False),
    "matrix_http401": ("RUNTIME_AUTH", False),
    "matrix_http403": ("RUNTIME_AUTH", False),
    "matrix_http404": ("RUNTIME_MODEL_ERROR", False),
    "matrix_http429_always": ("RUNTIME_RATE_LIMIT", True),
    "matrix_http429_usage_limit": ("RUNTIME_USAGE_LIMIT", True),
    "matrix_http500_always": ("RUNTIME_MODEL_ERROR", True),
    "matrix_http503_overloaded": ("RUNTIME_OVERLOADED", True),
    "matrix_http503_slowdown": ("RUNTIME_RATE_LIMIT", True),
    "matrix_stall_idle_timeout": ("RUNTIME_STREAM_DISCONNECT", True),
    "more_env_key_401": ("RUNTIME_AUTH", False),
    "more_env_key_missing": ("RUNTIME_AUTH", False),
}

# Messages that were cut off by an interrupt before any was completed.
PARTIAL_TEXTS = {"matrix_interrupt_stream": ("w0 w1 w2 w3 w4 ",), "more_s_dbl0": ("w0 ",)}


def notifications(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    received = [line["msg"] for line in lines if line["dir"] == "<"]
    return [message for message in received if "method" in message and "id" not in message]


def replay(path: Path) -> list[Event | TurnOver]:
    decoder = CodexDecoder()
    return [event for m in notifications(path) for event in decoder.decode(m["method"], m.get("params"))]


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript_is_translated_completely(path: Path) -> None:
    recorded, events = notifications(path), replay(path)
    assert not [event for event in events if isinstance(event, Unrecognized | Integrity)]
    done = [m["params"]["item"] for m in recorded if m["method"] == "item/completed"]
    tools = [item["id"] for item in done if item["type"] in TOOLS]
    assert [event.item for event in events if isinstance(event, ToolCall | FileChange)] == tools
    assert [e.text for e in events if isinstance(e, Message)] == [
        *PARTIAL_TEXTS.get(path.stem, ()),
        *(i["text"] for i in done if i["type"] == "agentMessage"),
    ]
    assert len([e for e in events if isinstance(e, Delta)]) == len(
        [m for m in recorded if m["method"].endswith("elta")]
    )
    overs = [event for event in events if isinstance(event, TurnOver)]
    assert len(overs) == len([m for m in recorded if m["method"] == "turn/completed"])
    failed = [classify(over.error or {}) for over in overs if over.status == "failed"]
    expected = FAILURES.get(path.stem)
    assert [(error.code, error.retryable) for error in failed] == ([expected] if expected else [])


def test_every_expected_failure_was_captured() -> None:
    assert set(FAILURES) <= {path.stem for path in TRANSCRIPTS}


def test_command_is_reported_with_its_text_and_outcome() -> None:
    events = replay(FIXTURES / "codex_basic.jsonl")
    [call] = [event for event in events if isinstance(event, ToolCall)]
    assert call.command == "echo hello-from-tool > tool_proof.txt; cat tool_proof.txt; uname -s"
    assert (call.tool, call.status, call.exit_code, call.duration_ms) == ("command", "completed", 0, 0.0)
    assert (call.output, call.late, call.source) == ("hello-from-tool\nLinux\n", False, "runtime_reported")
    assert [e.total.input_tokens for e in events if isinstance(e, Usage)] == [1000, 2000]
    assert len([event for event in events if isinstance(event, TurnStarted)]) == 1


def test_item_that_ends_after_its_turn_is_late() -> None:
    events = replay(FIXTURES / "more_bg_terminals.jsonl")
    [over] = [number for number, event in enumerate(events) if isinstance(event, TurnOver)]
    [call] = [number for number, event in enumerate(events) if isinstance(event, ToolCall)]
    assert call > over
    late = events[call]
    assert isinstance(late, ToolCall)
    assert late.late


def test_item_that_never_ends_is_abandoned() -> None:
    path = FIXTURES / "matrix_kill.jsonl"
    decoder = CodexDecoder()
    for message in notifications(path):
        decoder.decode(message["method"], message["params"])
    [left] = decoder.abandon()
    assert isinstance(left, ToolCall)
    assert (left.status, left.exit_code, left.late) == ("abandoned", None, False)
    assert "sleep" in left.command
    assert not decoder.abandon()


def test_message_of_a_dropped_stream_is_reported_once() -> None:
    events = replay(FIXTURES / "matrix_drop_once.jsonl")
    assert len([event for event in events if isinstance(event, Message)]) == 1
    assert [event.code for event in events if isinstance(event, Retrying)] == ["RUNTIME_STREAM_DISCONNECT"]


def test_empty_rate_windows_are_ignored() -> None:
    events = replay(FIXTURES / "matrix_ratelimit_headers.jsonl")
    [reported_events] = [event for event in events if isinstance(event, RateWindows)]
    assert [(w.name, w.used_percent, w.window_minutes) for w in reported_events.windows] == [
        ("primary", 43.0, 300.0),
        ("secondary", 7.0, 10080.0),
    ]


def test_file_changes_have_paths() -> None:
    changes = [event for path in TRANSCRIPTS for event in replay(path) if isinstance(event, FileChange)]
    assert changes
    assert all(change.paths for change in changes)


def test_twenty_threads_are_kept_apart() -> None:
    events = replay(FIXTURES / "codex_threads20.jsonl")
    calls = {event.thread: event for event in events if isinstance(event, ToolCall)}
    assert len(calls) == len({call.item for call in calls.values()}) == 20
    overs = {event.thread: event.turn for event in events if isinstance(event, TurnOver)}
    assert {thread: call.turn for thread, call in calls.items()} == overs


def test_gateway_classifies_failures_that_codex_does_not() -> None:
    error = {"message": "stream disconnected before completion", "codexErrorInfo": "other"}
    for outcome, status, code, expected in (
        ("cut", 200, "", "RUNTIME_STREAM_DISCONNECT"),
        ("http_error", 401, "", "RUNTIME_AUTH"),
        ("failed", 200, "context_length_exceeded", "RUNTIME_CONTEXT_EXCEEDED"),
        ("http_error", 429, "usage_limit_reached", "RUNTIME_USAGE_LIMIT"),
    ):
        seen = Exchange(number=1, method="POST", path="/", outcome=outcome, status=status, error_code=code)  # type: ignore[arg-type]
        assert classify(error, seen).code == expected
    seen = Exchange(number=1, method="POST", path="/", outcome="http_error", status=429, retry_after=3.0, resets_at=9.0)
    limited = classify({"codexErrorInfo": "usageLimitExceeded", "message": "x"}, seen)
    assert (limited.details["resets_at"], limited.details["retry_after"]) == (9.0, 3.0)
    for odd in ({}, {"codexErrorInfo": 7}, {"codexErrorInfo": {"a": 1, "b": 2}}, {"codexErrorInfo": {"new": None}}):
        assert classify(odd).code == "RUNTIME_MODEL_ERROR"


# ---- hostile

MESSAGES = [message for path in TRANSCRIPTS for message in notifications(path)]
VALUES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})
)


@given(st.data())
def test_malformed_notifications_are_kept_and_do_not_raise(data: st.DataObject) -> None:
    decoder = CodexDecoder()
    for _ in range(3):
        message = copy.deepcopy(data.draw(st.sampled_from(MESSAGES)))
        node: Any = message["params"]
        while isinstance(node, dict) and node:
            name = data.draw(st.sampled_from(sorted(node)))
            if not isinstance(node[name], dict) or data.draw(st.booleans()):
                node[name] = data.draw(VALUES)
                break
            node = node[name]
        assert decoder.decode(message["method"], message["params"])
    decoder.abandon()


@given(st.text(max_size=30), st.recursive(VALUES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_unknown_notification_is_kept(method: str, params: Any) -> None:
    [kept] = CodexDecoder().decode("x/" + method, params)
    assert isinstance(kept, Unrecognized)
    assert kept.method == "x/" + method
    assert not kept.truncated
    json.loads(kept.payload)


def test_huge_values_are_truncated() -> None:
    item = {"type": "commandExecution", "id": "c", "command": "x" * 10**6, "aggregatedOutput": "y" * 10**7}
    [call] = CodexDecoder().decode("item/completed", {"threadId": "t", "turnId": "u", "item": item})
    assert isinstance(call, ToolCall)
    assert len(call.output) <= 1 << 20
    assert len(call.command) <= 64 << 10
    [kept] = CodexDecoder().decode("new", {"x": "y" * 10**6})
    assert isinstance(kept, Unrecognized)
    assert kept.truncated


# ---- approvals

RULES = (
    ApprovalRule(answer="decline", command="*rm -rf*", name="no removal"),
    ApprovalRule(answer="accept", command="/bin/bash -lc 'git *'", name="git"),
    ApprovalRule(answer="accept", command="src/*"),
)
COMMAND = "item/commandExecution/requestApproval"


@pytest.mark.parametrize(
    ("command", "given", "rule"),
    [
        ("/bin/bash -lc 'git status'", "accept", "git"),
        ("/bin/bash -lc 'git gc; rm -rf .'", "decline", "no removal"),
        ("/bin/bash -lc 'make'", "decline", "no rule"),
        ("", "decline", "no rule"),
        ("/bin/bash -lc 'git x", "decline", "no rule"),
    ],
)
def test_first_matching_rule_decides_a_command(command: str, given: str, rule: str) -> None:
    decided = answer(COMMAND, {"command": command}, RULES)
    assert (decided.answer, decided.rule, decided.result()) == (given, rule, {"decision": given})


def test_one_declined_path_declines_the_file_change() -> None:
    method = "item/fileChange/requestApproval"
    assert answer(method, {}, RULES, ["src/a", "src/b"]).answer == "accept"
    assert answer(method, {}, RULES, ["src/a", "/etc/passwd"]).answer == "decline"
    assert answer(method, {}, RULES, []).answer == "decline"
    assert answer("applyPatchApproval", {"fileChanges": {"src/a": 1}}, RULES).result() == {"decision": "approved"}
    assert answer("execCommandApproval", {"command": ["ls"]}, RULES).result() == {"decision": "denied"}


def test_requests_for_a_person_are_declined_and_unknown_ones_refused() -> None:
    assert answer("item/tool/requestUserInput", {"questions": [1]}, ()).result() == {"answers": {}}
    assert answer("mcpServer/elicitation/request", None, ()).result() == {"action": "decline"}
    assert answer("item/tool/call", {"tool": "t"}, ()).result()["success"] is False
    asked = {"permissions": {"network": {"enabled": True}}}
    assert answer("item/permissions/requestApproval", asked, ()).result() == {"permissions": {}, "scope": "turn"}
    yes = (ApprovalRule(answer="accept"),)
    assert answer("item/permissions/requestApproval", asked, yes).result()["permissions"] == asked["permissions"]
    unknown = answer("account/chatgptAuthTokens/refresh", {}, yes)
    assert unknown.answer == "refused"
    with pytest.raises(RpcRefusal):
        unknown.result()


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_patterns_match_like_a_reference_implementation(pattern: str, subject: str) -> None:
    def fits(p: str, s: str) -> bool:  # a simple reference implementation
        if not p:
            return not s
        if p[0] == "*":
            return any(fits(p[1:], s[at:]) for at in range(len(s) + 1))
        return bool(s) and s[0] == p[0] and fits(p[1:], s[1:])

    decided = answer(COMMAND, {"command": subject}, [ApprovalRule(answer="accept", command=pattern)])
    assert (decided.answer == "accept") == fits(pattern, subject)


# ---- comparing token counts


def used(input: int, output: int = 0) -> TokenUsage:
    return TokenUsage(input_tokens=input, output_tokens=output)


def passed(count: int, outcome: Literal["completed", "cut"] = "completed") -> Exchange:
    return Exchange(number=1, method="POST", path="/", outcome=outcome, usage=used(count))


def test_broken_off_response_may_be_reported_or_not() -> None:
    ledger = UsageLedger()
    for claimed, agrees in ((10, True), (13, True), (14, False), (9, False)):
        ledger.passed("t", passed(10))
        ledger.passed("t", passed(3, "cut"))
        ledger.restored("t", used(0))
        ledger.reported("t", used(claimed), used(claimed))
        assert (ledger.settle("t", complete=True) is None) is agrees


def test_usage_reports_are_compared_with_the_gateway() -> None:
    ledger = UsageLedger()
    ledger.passed("t", passed(10))
    ledger.reported("t", used(110), used(10))  # a resumed thread starts with its earlier total
    assert ledger.settle("t", complete=True) is None
    counted = ledger.passed("t", passed(5))
    assert counted is not None
    assert counted.total == used(15)
    ledger.reported("t", used(120), used(10))
    difference = ledger.settle("t", complete=True)
    assert difference is not None
    assert (difference["reported"]["input_tokens"], difference["seen"]["input_tokens"]) == (10, 5)
    ledger.passed("t", passed(7))
    assert ledger.settle("t", complete=False) is None  # an incomplete turn is not compared
    ledger.passed("t", passed(4))
    ledger.reported("t", used(131), used(4))
    assert ledger.settle("t", complete=True) is None
    ledger.passed("u", passed(1))  # tokens that codex does not report
    assert ledger.settle("u", complete=True) is not None
    assert ledger.settle("unknown", complete=True) is None
