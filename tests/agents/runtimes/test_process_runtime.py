"""Tests of the `process` runtime: how the program gets the prompt, and how its output and exit code are interpreted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from drive import Driven, drive

from proofbox.agents.contract import TurnResult
from proofbox.agents.events import Delta, Integrity, ItemStarted, Message, ToolCall, Unrecognized
from proofbox.agents.runtimes.process.runtime import LINE_LIMIT, ProcessRuntime
from proofbox.errors import StrategyUnavailable

pytestmark = pytest.mark.needs("bubblewrap")


def ask(base: Path, asked: str = "the prompt", /, **settings: Any) -> tuple[TurnResult, Driven]:
    results = []

    async def work(driven: Driven) -> None:
        results.append(await driven.turn(asked))

    driven = drive(ProcessRuntime(), base, settings, work)
    return results[0], driven


def test_prompt_is_sent_on_stdin_and_stdout_is_the_answer(tmp_path: Path) -> None:
    prompt = "line one\nline two é \u202e" + "x" * 300_000
    result, driven = ask(tmp_path, prompt, command=["sh", "-c", "cat | wc -c; echo aside >&2"])
    assert (result.status, result.final_message) == ("completed", f"{len(prompt.encode())}\n")
    assert [delta.text for delta in driven.of(Delta) if delta.kind == "output"] == ["aside\n"]
    assert not driven.of(ToolCall)


def test_prompt_can_be_an_argument(tmp_path: Path) -> None:
    for command in (["echo", "you said"], ["echo", "you said", "{prompt}"]):
        result, _ = ask(tmp_path, "hello; exit 1", command=command, prompt="argument")
        assert result.final_message == "you said hello; exit 1\n"


@pytest.mark.parametrize(
    ("command", "code", "exit_code"),
    [
        (["sh", "-c", "echo fine; exit 7"], "RUNTIME_FAILED", 7),
        (["sh", "-c", "kill -9 $$"], "RUNTIME_CRASH", 137),
        (["no-such-program"], "RUNTIME_STARTUP", None),
    ],
)
def test_exit_status_decides_the_turn(tmp_path: Path, command: list[str], code: str, exit_code: int | None) -> None:
    result, _ = ask(tmp_path, command=command)
    assert result.status == "failed"
    assert result.error is not None
    assert (result.error.code, result.error.details.get("exit_code")) == (code, exit_code)


def test_program_that_does_not_read_its_prompt_does_not_block(tmp_path: Path) -> None:
    result, _ = ask(tmp_path, "x" * 3_000_000, command=["true"])
    assert result.status == "completed"


def test_reported_failure_fails_the_turn(tmp_path: Path) -> None:
    line = '{"type":"error","status":429,"message":"slow down"}'
    result, _ = ask(tmp_path, command=["echo", line], output="jsonl")
    assert result.error is not None
    assert (result.status, result.error.code) == ("failed", "RUNTIME_RATE_LIMIT")


def test_oversized_line_is_truncated(tmp_path: Path) -> None:
    flood = (
        f'head -c {LINE_LIMIT + 100_000} /dev/zero | tr \'\\0\' x; echo; echo \'{{"type":"message","text":"after"}}\''
    )
    result, driven = ask(tmp_path, command=["sh", "-c", flood], output="jsonl")
    assert (result.status, result.final_message) == ("completed", "after")
    assert [event.code for event in driven.of(Integrity)] == ["line_too_long"]
    [kept] = driven.of(Unrecognized)
    assert kept.truncated
    assert len(kept.payload) == 64 << 10


def test_last_line_without_a_newline_counts(tmp_path: Path) -> None:
    result, driven = ask(tmp_path, command=["printf", '{"type":"message","text":"no newline"}'], output="jsonl")
    assert result.final_message == "no newline"
    assert len(driven.of(Message)) == 1


STARTED = '{"type":"item.started","item":{"id":"i0","type":"command_execution","command":"make test"}}'
ENDED = '{"type":"turn.completed","usage":{}}'


@pytest.mark.parametrize(
    ("output", "printed", "codes", "calls"),
    [
        (
            "codex_exec",
            STARTED + '\n{"type":"item.compl',
            ["LINE_TORN", "ITEM_NOT_ENDED", "STREAM_NOT_ENDED"],
            [("make test", "abandoned")],
        ),
        ("codex_exec", "", ["STREAM_NOT_ENDED"], []),
        ("codex_exec", f"{STARTED}\n{ENDED}\n", ["ITEM_NOT_ENDED"], [("make test", "abandoned")]),
        ("codex_exec", ENDED, [], []),
        ("claude_stream", '{"type":"system"}\n', ["STREAM_NOT_ENDED"], []),
        ("jsonl", '{"type":"message","text":"a"}\n{"type":"mess', ["LINE_TORN"], []),
        ("jsonl", '{"type":"message","text":"a"}\n  ', [], []),
    ],
)
def test_incomplete_stream_is_a_finding(
    tmp_path: Path, output: str, printed: str, codes: list[str], calls: list[tuple[str, str]]
) -> None:
    result, driven = ask(tmp_path, command=["printf", "%s", printed], output=output)
    assert result.status == "completed"
    assert [each.code for each in driven.of(Integrity)] == codes
    assert [(each.command, each.status) for each in driven.of(ToolCall)] == calls


def stopped_after(base: Path, words: str, **settings: Any) -> tuple[TurnResult, Driven]:
    """Interrupt the turn as soon as the first output arrives."""
    results = []

    async def work(driven: Driven) -> None:
        printed = anyio.Event()

        async def hear(event: Any) -> None:
            if isinstance(event, Delta | ItemStarted):
                printed.set()

        driven.session.add_listener(hear)
        thread = await driven.session.start_thread()
        turn = await driven.session.start_turn(thread, "go")
        await printed.wait()
        await driven.session.interrupt_turn(thread, turn)
        results.append(await driven.session.wait_turn(turn))

    command = ["sh", "-c", 'printf %s "$0"; exec sleep 600', words]
    driven = drive(ProcessRuntime(), base, {"command": command, **settings}, work)
    return results[0], driven


def test_output_of_a_stopped_program_is_its_message(tmp_path: Path) -> None:
    result, driven = stopped_after(tmp_path, "started")
    assert (result.status, result.final_message) == ("interrupted", "started")
    assert [event.text for event in driven.of(Message)] == ["started"]
    assert type(driven.events[-1]).__name__ == "TurnEnded"


def test_stopped_program_has_no_finding_and_its_call_is_abandoned(tmp_path: Path) -> None:
    result, driven = stopped_after(tmp_path, f'{STARTED}\n{{"type":"item.compl', output="codex_exec")
    assert result.status == "interrupted"
    assert driven.of(Integrity) == []
    assert [(each.command, each.status) for each in driven.of(ToolCall)] == [("make test", "abandoned")]


def test_long_answer_keeps_its_beginning_and_end(tmp_path: Path) -> None:
    result, _ = ask(tmp_path, command=["sh", "-c", "echo first; seq 1 40000; echo the last words"])
    assert result.final_message.startswith("first\n1\n")
    assert result.final_message.endswith("\n40000\nthe last words\n")
    assert "bytes left out]" in result.final_message
    assert len(result.final_message) < 64 << 10


def test_slow_listener_applies_backpressure(tmp_path: Path) -> None:
    """Output is not buffered without limit while the listener is slow: the program's pipe fills up."""
    command = 'while :; do echo \'{"type":"reasoning","text":"and so on"}\'; done'

    async def work(driven: Driven) -> None:
        async def slow(event: Any) -> None:
            await anyio.sleep(0.01)

        driven.session.add_listener(slow)
        thread = await driven.session.start_thread()
        turn = await driven.session.start_turn(thread, "go")
        while len(driven.events) < 20:  # noqa: ASYNC110 (tests wait by polling)
            await anyio.sleep(0.01)
        await driven.session.interrupt_turn(thread, turn)
        assert len(driven.events) < 1000

    drive(ProcessRuntime(), tmp_path, {"command": ["sh", "-c", command], "output": "jsonl"}, work)


def test_runtime_is_unavailable_without_a_program(tmp_path: Path) -> None:
    runtime = ProcessRuntime()
    assert not anyio.run(runtime.probe, {}).available
    assert not anyio.run(runtime.probe, {"command": ["no-such-program"]}).available
    assert anyio.run(runtime.probe, {"command": ["no-such-program"], "on_host": False}).available
    assert anyio.run(runtime.probe, {"command": ["sh"]}).available
    with pytest.raises(StrategyUnavailable):
        drive(runtime, tmp_path, {}, Driven.turn)  # type: ignore[arg-type]


def test_unsandboxed_session_needs_a_request_and_is_recorded(tmp_path: Path) -> None:
    async def work(driven: Driven) -> None:
        assert driven.session.facts()["sandboxed"] is False
        assert (await driven.turn()).status == "completed"

    drive(ProcessRuntime(), tmp_path, {"command": ["true"]}, work, sandboxed=False, provider=None)
