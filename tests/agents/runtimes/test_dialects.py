"""Tests of the JSON dialects of other programs: translation, and no line is lost or fatal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.agents.events import Event, FileChange, Integrity, Message, Retrying, ToolCall, Unrecognized, Usage
from proofbox.agents.runtimes.process.dialects import ClaudeStream, CodexExec, Dialect, OwnDialect

CAPTURES = Path(__file__).parents[1] / "captures"


def translated(dialect: Dialect, *lines: object) -> list[Event]:
    return [event for line in lines for event in dialect.translate(json.dumps(line).encode())]


def claude(name: str) -> tuple[ClaudeStream, list[Event]]:
    dialect = ClaudeStream()
    recorded = [json.loads(line) for line in (CAPTURES / f"claude_sdk_{name}.jsonl").read_text().splitlines()]
    return dialect, translated(dialect, *(line["msg"] for line in recorded if line["dir"] == "<"))


def test_a_tool_turn_of_claude() -> None:
    dialect, events = claude("tool")
    [call] = [event for event in events if isinstance(event, ToolCall)]
    assert (call.tool, call.status) == ("command", "completed")
    assert call.command.startswith("echo hello-from-tool")
    assert call.output == "hello-from-tool\nLinux"
    assert [event.text for event in events if isinstance(event, Message)][-1].startswith("Final answer")
    [usage] = [event for event in events if isinstance(event, Usage)]
    assert (usage.total.input_tokens, usage.total.output_tokens, usage.total.cached_input_tokens) == (2800, 100, 800)
    assert dialect.failure is None


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("401", "RUNTIME_AUTH"),
        ("429_always", "RUNTIME_RATE_LIMIT"),
        ("529", "RUNTIME_OVERLOADED"),
        ("500", "RUNTIME_MODEL_ERROR"),
    ],
)
def test_claude_is_error_overrides_its_success_subtype(name: str, code: str) -> None:
    dialect, events = claude(name)
    assert dialect.failure is not None
    assert dialect.failure.code == code
    assert any(isinstance(event, Retrying) for event in events)


def test_codex_exec() -> None:
    command = {"id": "i0", "type": "command_execution", "command": "ls", "aggregated_output": "a\n"}
    dialect = CodexExec()
    events = translated(
        dialect,
        {"type": "thread.started", "thread_id": "t"},
        {"type": "item.started", "item": {**command, "status": "in_progress", "exit_code": None}},
        {"type": "item.completed", "item": {**command, "status": "failed", "exit_code": 2}},
        {"type": "item.completed", "item": {**command, "status": "failed", "exit_code": 2}},
        {"type": "item.completed", "item": {"id": "i1", "type": "file_change", "changes": [{"path": "x"}]}},
        {"type": "item.completed", "item": {"id": "i2", "type": "agent_message", "text": "done"}},
        {"type": "item.completed", "item": {"id": "i3", "type": "web_search", "query": "?"}},
        {"type": "turn.completed", "usage": {"input_tokens": 5, "cached_input_tokens": 1, "output_tokens": 2}},
    )
    [call] = [event for event in events if isinstance(event, ToolCall)]
    assert (call.command, call.exit_code, call.status, call.output) == ("ls", 2, "failed", "a\n")
    assert [event.paths for event in events if isinstance(event, FileChange)] == [("x",)]
    assert [event.method for event in events if isinstance(event, Unrecognized)] == ["item.completed"]
    assert dialect.failure is None
    translated(dialect, {"type": "turn.failed", "error": {"message": "no"}})
    assert dialect.failure is not None


def test_claude_call_without_a_result_is_abandoned() -> None:
    dialect = ClaudeStream()
    call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "make"}}
    translated(dialect, {"type": "assistant", "message": {"content": [call]}})
    finding, abandoned, unended = dialect.end(stopped=False)
    assert isinstance(finding, Integrity)
    assert finding.code == "ITEM_NOT_ENDED"
    assert isinstance(abandoned, ToolCall)
    assert (abandoned.command, abandoned.status) == ("make", "abandoned")
    assert isinstance(unended, Integrity)
    assert unended.code == "STREAM_NOT_ENDED"
    assert claude("tool")[0].end(stopped=False) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(
    [
        *(
            "type",
            "id",
            "item",
            "text",
            "message",
            "content",
            "usage",
            "error",
            "status",
            "exit_code",
            "command",
            "paths",
        ),
        *("changes", "input_tokens", "tool_use_id", "is_error", "result", "name", "input", "api_error_status"),
    ]
)
kinds = st.sampled_from(
    [
        *(
            "message",
            "tool_call",
            "file_change",
            "usage",
            "error",
            "reasoning",
            "assistant",
            "user",
            "result",
            "system",
        ),
        *("item.completed", "item.started", "turn.completed", "turn.failed", "agent_message", "command_execution"),
        *("tool_use", "tool_result", "text"),
    ]
)
like_ours = st.recursive(
    json_values | kinds,
    lambda inner: st.dictionaries(names, inner, max_size=5) | st.lists(inner, max_size=3),
    max_leaves=15,
)


@pytest.mark.parametrize("kind", [OwnDialect, CodexExec, ClaudeStream])
@given(data=st.data())
def test_no_line_is_fatal_or_lost(kind: type[Dialect], data: st.DataObject) -> None:
    dialect = kind()
    lines = data.draw(st.lists(st.binary(max_size=40) | like_ours.map(lambda v: json.dumps(v).encode()), max_size=6))
    for line in lines:
        for event in dialect.translate(line):
            assert isinstance(event, Event)
    for event in dialect.end(stopped=False):
        assert isinstance(event, Event)


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"1", b'{"type":1}', b"\xff\xfe", b'{"a":"\\ud800"}', b"[" * 100_000]
)
def test_garbage_is_kept(line: bytes) -> None:
    [event] = OwnDialect().translate(line)
    assert isinstance(event, Unrecognized)
    assert event.truncated == (len(line) > 64 << 10)
