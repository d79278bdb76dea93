"""Tests of the scripted agent: valid scripts, real tool calls, faults and false claims."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest
from drive import Driven, drive

from proofbox.agents.contract import ApprovalRule, SessionOptions
from proofbox.agents.events import ApprovalDecision, Event, Message, ToolCall, TurnEnded, Unrecognized
from proofbox.agents.runtimes.scripted.runtime import ScriptedRuntime
from proofbox.agents.runtimes.scripted.script import FAULTS, read_script
from proofbox.errors import RuntimeCrashed, SandboxLost, UsageError

pytestmark = pytest.mark.needs("bubblewrap")


def play(base: Path, *steps: dict[str, Any], **options: Any) -> tuple[Any, Driven]:
    results = []

    async def work(driven: Driven) -> None:
        results.append(await driven.turn("the prompt"))

    driven = drive(ScriptedRuntime(), base, {"script": {"step": list(steps)}}, work, **options)
    return results[0], driven


def test_tool_calls_are_real(tmp_path: Path) -> None:
    result, driven = play(
        tmp_path,
        {"tool": "write_file", "args": {"path": "answer.txt", "content": "42\n"}},
        {"tool": "run_command", "args": {"command": "cat answer.txt; id -un; exit 3"}},
        {"tool": "read_file", "args": {"path": "../outside"}},
        {"tool": "no_such_tool"},
        {"tool": "run_command", "args": {"command": ["no-such-program"]}},
        {"say": "done, and I was asked @{prompt}"},
    )
    assert result.status == "completed"
    assert result.final_message == "done, and I was asked the prompt"
    assert (tmp_path / "workspace/answer.txt").read_text() == "42\n"
    calls = driven.of(ToolCall)
    assert [call.tool for call in calls] == ["write_file", "command", "read_file", "no_such_tool", "command"]
    assert [call.status for call in calls] == ["completed", "failed", "failed", "failed", "failed"]
    assert calls[1].exit_code == 3
    assert calls[1].output.startswith("42\nbox")
    assert "WORKSPACE_TOOL_PATH_REFUSED" in calls[2].output
    assert "WORKSPACE_TOOL_UNKNOWN" in calls[3].output
    assert {call.source for call in calls} == {"observed"}
    assert driven.session.facts()["sandboxed"] is True


@pytest.mark.parametrize(
    ("rules", "done"),
    [
        ((("decline", "rm *"),), ["declined", "declined", "completed", "completed"]),
        ((("decline", "rm *"), ("accept", "*")), ["declined", "declined", "completed", "completed"]),
        ((("accept", "ls*"),), ["declined", "declined", "completed", "declined"]),
        ((("accept", "write_file *"),), ["declined", "declined", "declined", "completed"]),
        ((), ["completed", "failed", "completed", "completed"]),
    ],
)
def test_declined_call_does_not_run_and_is_recorded(
    tmp_path: Path, rules: tuple[tuple[str, str], ...], done: list[str]
) -> None:
    approvals = tuple(ApprovalRule(answer=answer, command=command) for answer, command in rules)
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/keep").touch()
    result, driven = play(
        tmp_path,
        {"tool": "run_command", "args": {"command": "rm keep"}},
        {"tool": "run_command", "args": {"command": ["rm", "keep"]}},
        {"tool": "run_command", "args": {"command": "ls"}},
        {"tool": "write_file", "args": {"path": "new", "content": "1"}},
        approvals=approvals,
    )
    assert result.status == "completed"
    calls = driven.of(ToolCall)
    assert [call.status for call in calls] == done
    assert (tmp_path / "workspace/keep").exists() == (done[0] == "declined")
    assert (tmp_path / "workspace/new").exists() == (done[3] == "completed")
    declined = [each.item for each in driven.of(ApprovalDecision) if each.answer == "decline"]
    assert declined == [call.item for call in calls if call.status == "declined"]


def test_claimed_call_is_marked_as_runtime_reported(tmp_path: Path) -> None:
    _, driven = play(tmp_path, {"claim": {"command": "pytest", "output": "all passed"}}, {"say": "I ran the tests"})
    [call] = driven.of(ToolCall)
    assert (call.source, call.exit_code) == ("runtime_reported", 0)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_ends_the_turn_with_its_code(tmp_path: Path, fault: str) -> None:
    result, _ = play(tmp_path, {"say": "before"}, {"fault": fault, "retry_after": 7}, {"say": "after"})
    assert (result.status, result.error.code) == ("failed", FAULTS[fault].code)
    assert result.error.details["retry_after"] == 7
    assert result.final_message == "before"


def test_another_session_resumes_after_a_crash(tmp_path: Path) -> None:
    script = {"turn": [{"step": [{"fault": "crash"}]}, {"step": [{"say": "@{history}"}]}]}
    threads = []

    async def crash(driven: Driven) -> None:
        threads.append(await driven.session.start_thread())
        await driven.turn("first", threads[0])
        with pytest.raises(RuntimeCrashed):
            await driven.session.start_turn(threads[0], "second")

    async def go_on(driven: Driven) -> None:
        await driven.session.resume_thread(threads[0])
        assert (await driven.turn("second", threads[0])).final_message == "first\nsecond"

    drive(ScriptedRuntime(), tmp_path, {"script": script}, crash, home=tmp_path / "home")
    drive(ScriptedRuntime(), tmp_path, {"script": script}, go_on, home=tmp_path / "home")


def test_delays_use_the_injected_sleep(tmp_path: Path) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def work(driven: Driven) -> None:
        assert (await driven.turn()).status == "completed"

    drive(ScriptedRuntime(sleep=sleep), tmp_path, {"script": {"step": [{"delay": 3600}]}}, work)
    assert slept == [3600]


def test_commands_get_the_environment(tmp_path: Path) -> None:
    _, driven = play(
        tmp_path, {"tool": "run_command", "args": {"command": "echo $GREETING"}}, env={"GREETING": "hallo"}
    )
    assert driven.of(ToolCall)[0].output.startswith("hallo")


def test_hostile_text_is_reported_unchanged(tmp_path: Path) -> None:
    text = "\x1b]0;title\x07 \u202e \ud83d\ude00"
    _, driven = play(tmp_path, {"garbage": "\x00"}, {"say": "\x1b]0;title\x07"})
    assert driven.of(Unrecognized)[0].payload == "\x00"
    assert driven.of(Message)[0].text.startswith(text[:3])


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ({"step": [{}]}, "step 1"),
        ({"step": [{"say": "a", "delay": 1}]}, "say, delay"),
        ({"step": [{"sy": "a"}]}, "sy"),
        ({"step": [{"fault": "flood"}]}, "flood"),
        ({"step": [{"say": "a", "args": {}}, {"say": "a", "args": {"x": 1}}]}, "step 2"),
        ({"step": [{"delay": -1}]}, "delay"),
        ({"step": [{"say": "a"}], "turn": [{"step": []}]}, "steps and turns"),
        ({"steps": []}, "steps"),
        ("/no/such/file.toml", "can't read"),
    ],
)
def test_invalid_script_is_refused(script: Any, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        read_script(script)


def test_script_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('[[step]]\ntool = "write_file"\nargs = { path = "a", content = "@{turn}" }\n')
    assert read_script(str(tmp_path / "s.toml")).step[0].args == {"path": "a", "content": "@{turn}"}
    (tmp_path / "s.toml").write_text("[[step")
    with pytest.raises(UsageError, match="invalid TOML"):
        read_script(str(tmp_path / "s.toml"))


def test_interrupt_while_the_box_starts(tmp_path: Path) -> None:
    """A box that starts too late is ended as well; the leftover check at the end of the run would find it."""

    async def work(driven: Driven) -> None:
        for _ in range(3):
            thread = await driven.session.start_thread()
            turn = await driven.session.start_turn(thread, "go")
            await anyio.lowlevel.checkpoint()
            await driven.session.interrupt_turn(thread, turn)
            assert (await driven.session.wait_turn(turn)).status == "interrupted"

    steps = [{"tool": "run_command", "args": {"command": "sleep 300"}}]
    drive(ScriptedRuntime(), tmp_path, {"script": {"step": steps}}, work)


def test_turn_is_not_completed_when_the_event_loop_ends(tmp_path: Path) -> None:
    """The session is not closed; its tasks are cancelled with the event loop."""
    ends: list[TurnEnded] = []

    async def run() -> None:
        options = SessionOptions(
            workspace=tmp_path, scratch=tmp_path, settings={"script": {"step": [{"delay": 60}, {"say": "done"}]}}
        )
        session = await ScriptedRuntime().start_session(options)

        async def hear(event: Event) -> None:
            if isinstance(event, TurnEnded):
                ends.append(event)

        session.add_listener(hear)
        await session.start_turn(await session.start_thread(), "go")
        await anyio.lowlevel.checkpoint()

    anyio.run(run)
    assert [end.status for end in ends] == ["interrupted"]


def test_call_that_ends_after_the_interrupt_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()

    class LateTools:
        def call(self, tool: str, args: dict[str, Any]) -> None:
            ends.wait(60)
            raise SandboxLost("the box has ended", op="exec")

    async def tools_of(thread: str) -> LateTools:
        return LateTools()

    async def work(driven: Driven) -> None:
        monkeypatch.setattr(driven.session, "_tools_of", tools_of)
        thread = await driven.session.start_thread()
        turn = await driven.session.start_turn(thread, "go")
        await anyio.wait_all_tasks_blocked()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driven.session.interrupt_turn, thread, turn)
            await anyio.wait_all_tasks_blocked()
            ends.set()
        assert (await driven.session.wait_turn(turn)).status == "interrupted"

    steps = [{"tool": "run_command", "args": {"command": "sleep 300"}}]
    driven = drive(ScriptedRuntime(), tmp_path, {"script": {"step": steps}}, work)
    assert [call.status for call in driven.of(ToolCall)] == ["abandoned"]
