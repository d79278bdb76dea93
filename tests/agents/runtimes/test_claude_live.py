"""The real Claude Code in a box, with a fake model: calls, sub-agents, approvals, failures, and where the key is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from claude_lab import ClaudeLab, run

from proofbox.agents.contract import ApprovalRule
from proofbox.agents.events import (
    ApprovalDecision,
    Event,
    FileChange,
    Integrity,
    RateWindows,
    Retrying,
    ToolCall,
    TurnEnded,
    TurnStarted,
    Usage,
)
from proofbox.agents.fakemodel.script import ModelScript, ResponseRule
from proofbox.agents.runtimes import thread_program
from proofbox.errors import ProofboxError, TurnInterrupted, UsageError

pytestmark = pytest.mark.needs("bubblewrap", "claude")
KEY = "sk-ant-" + "k7Q" * 12


def test_parallel_calls_file_changes_and_usage(tmp_path: Path) -> None:
    async def work(lab: ClaudeLab) -> None:
        write = '[[call Write {"file_path": "PLACE/note.txt", "content": "hello"}]]'
        prompt = f"[[together 2]] [[run echo one]] [[run echo two; exit 7]] [[limits primary=40]] {write} [[say done]]"
        async with lab.session() as seat:
            place = seat.session._box.inside.guest_project  # type: ignore[attr-defined]
            result = await seat.turn(prompt.replace("PLACE", place))
            assert (result.status, result.final_message) == ("completed", "done")
            first, second = sorted(seat.of(ToolCall), key=lambda call: call.command)
            assert (first.command, first.exit_code, first.status) == ("echo one", 0, "completed")
            assert (second.command, second.exit_code, second.status) == ("echo two; exit 7", 7, "failed")
            assert ("one" in first.output, "two" in second.output, first.item != second.item) == (True, True, True)
            [change] = seat.of(FileChange)
            assert (change.paths, change.status) == ((f"{place}/note.txt",), "completed")
            assert (lab.workspace / "note.txt").read_text() == "hello"
            counts = {event.source: event.total for event in seat.of(Usage)}
            assert {(each.input_tokens, each.output_tokens) for each in counts.values()} == {(3000, 150)}
            assert set(counts) == {"gateway", "runtime_reported"}
            assert result.usage is not None
            assert (result.usage.input_tokens, result.usage.output_tokens) == (3000, 150)
            assert (len(seat.of(TurnStarted)), result.error, result.duration_ms > 0) == (1, None, True)
            assert [each.windows[0].used_percent for each in seat.of(RateWindows, source="gateway")] == [40.0]
            assert not seat.of(Integrity)

    run(tmp_path, work)


def test_background_command_is_recorded_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(lab: ClaudeLab) -> None:
        command = "until [ -e go ]; do sleep 0.1; done; exit 3"
        prompt = f'[[call Bash {{"command": "{command}", "description": "d", "run_in_background": true}}]] [[say on]]'
        async with lab.session() as seat:
            result = await seat.turn(prompt)
            assert (result.status, seat.of(ToolCall)) == ("completed", [])
            (lab.workspace / "go").touch()
            [call] = await seat.until(lambda: seat.of(ToolCall))
            assert (call.turn, call.command, call.exit_code, call.late) == (result.turn, command, 3, True)
        monkeypatch.setattr(thread_program, "EXIT_SECONDS", 0.1)  # it does not exit before the command
        async with lab.session() as seat:
            (lab.workspace / "go").unlink()
            await seat.turn(prompt)
        assert [(call.status, call.late) for call in seat.of(ToolCall)] == [("abandoned", True)]

    run(tmp_path, work)


def test_calls_and_tokens_of_a_sub_agent_belong_to_the_thread(tmp_path: Path) -> None:
    async def work(lab: ClaudeLab) -> None:
        task = '{"description": "d", "prompt": "the INNER part", "subagent_type": "general-purpose"}'
        rules = (
            ResponseRule("OUTER", f"[[call Task {task}]] [[say the outer part is done]]"),
            ResponseRule("INNER", "[[run echo within]] [[say the inner part is done]]"),
        )
        lab.model._script = ModelScript(rules)
        async with lab.session() as seat:
            result = await seat.turn("the OUTER part")
            assert result.status == "completed", result.error
            await seat.until(lambda: "command" in {call.tool for call in seat.of(ToolCall)})
            thread = result.thread
        assert {call.thread for call in seat.of(ToolCall)} == {thread}
        assert {"command"} < {call.tool for call in seat.of(ToolCall)}
        assert {event.thread for event in seat.of(Usage, source="gateway")} == {thread}
        assert not seat.of(Integrity)

    run(tmp_path, work)


def test_approval_rules_decide_every_call(tmp_path: Path) -> None:
    async def work(lab: ClaudeLab) -> None:
        rules = (
            ApprovalRule(answer="decline", command="*secret*", name="no secrets"),
            ApprovalRule(answer="accept", command="echo *"),
        )
        for mode in ("bypassPermissions", "default"):
            async with lab.session({"permission_mode": mode}, approvals=rules) as seat:
                prompt = "[[run echo fine]] [[run cat secret.txt]] [[run touch unlisted]] [[say done]]"
                assert (await seat.turn(prompt)).status == "completed"
                statuses = [(call.command, call.status) for call in seat.of(ToolCall)]
                assert statuses == [
                    ("echo fine", "completed"),
                    ("cat secret.txt", "declined"),
                    ("touch unlisted", "declined"),
                ]
                decided = [(each.subject, each.answer, each.rule) for each in seat.of(ApprovalDecision)]
                assert decided == [
                    ("echo fine", "accept", "rule 2"),
                    ("cat secret.txt", "decline", "no secrets"),
                    ("touch unlisted", "decline", "no rule"),
                ]
                assert not (lab.workspace / "unlisted").exists()

    run(tmp_path, work)


FAULTS = {
    "[[http 400 type=invalid_request_error]]": "RUNTIME_MODEL_ERROR",  # not the agent's before the first response
    "[[http 401 type=authentication_error]]": "RUNTIME_AUTH",
    "[[http 429 type=rate_limit_error retry_after=1]]": "RUNTIME_RATE_LIMIT",
    "[[http 429 type=rate_limit_error resets=60]]": "RUNTIME_USAGE_LIMIT",
    "[[http 529 type=overloaded_error]]": "RUNTIME_OVERLOADED",
    "[[drop before]]": "RUNTIME_STREAM_DISCONNECT",
}


def test_failures_of_the_model_have_their_codes_and_removed_listeners_hear_nothing(tmp_path: Path) -> None:
    async def work(lab: ClaudeLab) -> None:
        async with lab.session({"max_retries": 0}) as seat:
            heard: list[Event] = []

            async def hear(event: Event) -> None:
                heard.append(event)

            listener = seat.session.add_listener(hear)
            thread = await seat.session.start_thread()
            await seat.until(lambda: heard)
            for _ in range(2):
                seat.session.remove_listener(listener)
            before = len(heard)
            for fault, code in FAULTS.items():
                result = await seat.turn(f"{fault} [[say never]]", thread)
                assert result.error is not None, fault
                assert (result.status, result.error.code) == ("failed", code), fault
                assert result.observed_failure is not None, fault
                assert (await seat.turn("[[say again]]", thread)).final_message == "again"
            assert len(heard) == before

    run(tmp_path, work)


def test_retry_is_reported_and_a_closed_session_refuses_calls(tmp_path: Path) -> None:
    async def work(lab: ClaudeLab) -> None:
        async with lab.session() as seat:
            result = await seat.turn("[[http 500 times=1]] [[say recovered]]")
            assert (result.final_message, result.observed_failure) == ("recovered", None)
            assert [event.code for event in seat.of(Retrying)] == ["RUNTIME_MODEL_ERROR"]
        for refused in (seat.session.start_thread(), seat.session.start_turn(result.thread, "[[say more]]")):
            with pytest.raises(ProofboxError):
                await refused

    run(tmp_path, work)


def test_interrupt_and_close_kill_detached_children_and_the_thread_remembers(tmp_path: Path) -> None:
    async def work(lab: ClaudeLab) -> None:
        command = "(setsid sh -c 'while :; do touch alive; sleep 0.1; done' &) ; while :; do sleep 0.1; done"
        async with lab.session() as seat:
            thread = await seat.session.start_thread()
            turn = await seat.session.start_turn(thread, f"[[run {command}]] [[say never]]")
            await seat.until((lab.workspace / "alive").exists)
            with pytest.raises(UsageError, match="in progress"):
                await seat.session.start_turn(thread, "[[say second]]")
            await seat.session.interrupt_turn(thread, turn)
            result = await seat.session.wait_turn(turn)
            assert (result.status, result.final_message) == ("interrupted", "")
            assert isinstance(result.error, TurnInterrupted)
            await seat.session.interrupt_turn(thread, turn)  # no effect on a turn that has ended
            assert [call.turn for call in seat.of(ToolCall)] == [turn]
            (lab.workspace / "alive").unlink()
            assert (await seat.turn("[[run sleep 0.5]] [[say again]]", thread)).final_message == "again"
            assert not (lab.workspace / "alive").exists()
            told = str(lab.model.seen[-1].body["messages"])
            assert "interrupted by user" in told
            lasting = await seat.session.start_turn(thread, f"[[run {command}]] [[say never]]")
            await seat.until((lab.workspace / "alive").exists)
        result = await seat.session.wait_turn(lasting)  # closing the session has ended it
        assert (result.status, len(seat.of(TurnEnded, turn=lasting))) == ("interrupted", 1)

    run(tmp_path, work)


@pytest.mark.parametrize("authorization", ["x-api-key", "bearer"])
def test_key_is_nowhere_in_the_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, authorization: str) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)

    async def work(lab: ClaudeLab) -> None:
        home = tmp_path / "home"
        places = "/proc/[0-9]*/environ /proc/[0-9]*/cmdline $(find /run/claude/home /tmp /etc $HOME -type f)"
        search = f"env > seen; cat {places} >> seen 2> /dev/null"
        settings = {"api_key_env": "MODEL_KEY", "authorization": authorization}
        async with lab.session(settings, home=home) as seat:
            result = await seat.turn(f"[[run {search}; true]] [[say done]]")
            assert result.status == "completed"
            assert seat.session.facts()["key"] == "added by the gateway"
        seen = (lab.workspace / "seen").read_bytes()
        assert b"ANTHROPIC_BASE_URL" in seen
        assert KEY.encode() not in seen
        assert KEY not in "".join(map(repr, seat.events))
        for folder, _, names in os.walk(home):
            assert not any(KEY.encode() in (Path(folder) / name).read_bytes() for name in names)
        headers = [dict(each.headers) for each in lab.model.seen if each.method == "POST"]
        sent = {each.get("x-api-key") or each["authorization"].removeprefix("Bearer ") for each in headers}
        assert sent == {KEY}
        assert all(each["anthropic-version"] and each["anthropic-beta"] for each in headers)

    run(tmp_path, work)
