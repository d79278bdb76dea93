"""Faults of Claude Code, played by a fake program: garbage, crashes, and results that it was not asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from claude_lab import ClaudeLab, run
from hypothesis import given, settings
from hypothesis import strategies as st

from proofbox.agents.events import Integrity, Notice, ToolCall, Unrecognized
from proofbox.agents.runtimes.claude.decoder import ClaudeDecoder
from proofbox.agents.runtimes.claude.permissions import answer
from proofbox.errors import RuntimeCrashed, RuntimeIncompatible

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "subtype", "message", "content", "id", "input", "event", "delta", "tool_use_id"]),
            inner | st.sampled_from(["tool_use", "tool_result", "text", "content_block_delta"]),
            max_size=4,
        )
    ),
    max_leaves=10,
)
TYPES = st.sampled_from(["assistant", "user", "system", "stream_event", "rate_limit_event", "keep_alive", "new"])


@settings(max_examples=50)
@given(TYPES, st.dictionaries(st.sampled_from(["message", "event", "subtype", "rate_limit_info"]), JSON))
def test_no_message_raises(kind: str, members: dict[str, object]) -> None:
    decoder = ClaudeDecoder()
    decoder.decode({"type": kind, **members})
    decoder.abandon()


@settings(max_examples=50)
@given(JSON)
def test_no_request_raises(value: object) -> None:
    for kind in ("can_use_tool", "hook_callback", "brand_new"):
        request = {"subtype": kind, "callback_id": "approve", "input": value, "tool_name": value, "tool_use_id": value}
        assert answer(request, (), "/work").answer != "accept"


pytestmark = pytest.mark.needs("bubblewrap")


def test_garbage_is_kept_and_does_not_end_the_turn(tmp_path: Path) -> None:
    async def work(lab: ClaudeLab) -> None:
        async with lab.session(fake="garbage") as seat:
            result = await seat.turn("go")
            assert (result.status, result.final_message) == ("completed", "the answer")
            assert len(seat.of(Integrity, code="GARBAGE_ON_STREAM")) == 6
            assert [event.method for event in seat.of(Unrecognized)] == ["holograph", "assistant", "user"]
            assert len(seat.of(Integrity, code="MESSAGE_NOT_UNDERSTOOD")) == 1
            assert not seat.of(ToolCall)

    run(tmp_path, work)


def test_result_of_other_work_does_not_end_the_turn(tmp_path: Path) -> None:
    async def work(lab: ClaudeLab) -> None:
        async with lab.session(fake="late") as seat:
            result = await seat.turn("go")
            assert result.final_message == "the answer"

    run(tmp_path, work)


@pytest.mark.parametrize(("mode", "found"), [("count", 1), ("count, command", 1), ("count, sub-agent", 0)])
def test_counts_are_compared_unless_a_sub_agent_still_works(tmp_path: Path, mode: str, found: int) -> None:
    async def work(lab: ClaudeLab) -> None:
        async with lab.session(fake=mode) as seat:
            assert (await seat.turn("go")).status == "completed"
            assert len(seat.of(Integrity, code="USAGE_DISAGREES")) == found

    run(tmp_path, work)


def test_crash_fails_the_turn_and_the_thread_goes_on(tmp_path: Path) -> None:
    async def work(lab: ClaudeLab) -> None:
        async with lab.session(fake="crash") as seat:
            thread = await seat.session.start_thread()
            for _ in range(2):
                result = await seat.turn("go", thread)
                assert isinstance(result.error, RuntimeCrashed)
                assert result.error.details["exit_code"] == 9
                assert "out of luck" in result.error.message
                assert result.observed_failure is None
                assert [call.status for call in seat.of(ToolCall, turn=result.turn)] == ["abandoned"]

    run(tmp_path, work)


def test_process_that_waits_for_a_child_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proofbox.agents.runtimes.thread_program.EXIT_SECONDS", 0.3)

    async def work(lab: ClaudeLab) -> None:
        async with lab.session(fake="no-exit") as seat:
            assert (await seat.turn("go")).status == "completed"
        assert [notice.kind for notice in seat.of(Notice)] == ["killed_at_end"]

    run(tmp_path, work)


def test_old_version_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text("#!/bin/sh\necho '1.0.5 (Claude Code)'\n")
    program.chmod(0o755)

    async def work(lab: ClaudeLab) -> None:
        with pytest.raises(RuntimeIncompatible, match=r"1\.0\.5"):
            async with lab.session({"binary": str(program)}):
                pass

    run(tmp_path, work)
