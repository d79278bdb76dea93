"""The ACP runtime with a small agent: faults of the agent, its requests, approvals, and what it can't do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from acp_lab import FAKE, AcpLab, fake_settings, run
from hypothesis import given, settings
from hypothesis import strategies as st

from proofbox.agents.contract import ApprovalRule
from proofbox.agents.events import ApprovalDecision, FileChange, Integrity, Message, ToolCall, Unrecognized, Usage
from proofbox.agents.runtimes.acp import AcpRuntime
from proofbox.agents.runtimes.acp.decoder import AcpDecoder
from proofbox.agents.runtimes.acp.profiles import endpoint_of
from proofbox.agents.runtimes.acp.requests import answer_permission
from proofbox.agents.runtimes.acp.settings import AcpSettings
from proofbox.agents.runtimes.thread_program import ThreadProgram
from proofbox.errors import (
    AgentError,
    CapabilityUnsupported,
    ContextExceeded,
    Overloaded,
    RuntimeCrashed,
    RuntimeIncompatible,
    TurnInterrupted,
    UsageError,
)

NAMES = st.sampled_from(
    ["toolCallId", "title", "kind", "status", "rawInput", "rawOutput", "content", "locations", "metadata", "path"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES, inner | st.sampled_from(["edit", "execute", "completed", "text"]), max_size=4)
    ),
    max_leaves=10,
)
UPDATES = st.sampled_from(
    ["agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan", "new"]
)


@settings(max_examples=50)
@given(st.lists(st.tuples(UPDATES, st.dictionaries(NAMES, JSON)), max_size=4), JSON)
def test_no_update_raises(updates: list[tuple[str, dict[str, object]]], other: object) -> None:
    decoder = AcpDecoder()
    for kind, members in updates:
        decoder.decode({"sessionUpdate": kind, **members})
    decoder.decode(other)
    decoder.describe(other)
    decoder.abandon()


@settings(max_examples=50)
@given(JSON, JSON)
def test_no_permission_request_raises(call: object, options: object) -> None:
    described = AcpDecoder().describe({"toolCallId": "x", **call} if isinstance(call, dict) else call)
    given_answer = answer_permission(described, options, (), "/work", "accept")
    assert given_answer.answer == "decline"  # no option was offered that means yes


CAPTURES = Path(__file__).parents[1] / "captures"


@pytest.mark.parametrize(("agent", "exit_code"), [("acp-claude", None), ("acp-codex", 0), ("acp-gemini", None)])
def test_updates_of_other_agents_are_understood(agent: str, exit_code: int | None) -> None:
    decoder = AcpDecoder()
    events = []
    for line in (CAPTURES / f"{agent}.jsonl").read_text().splitlines():
        events += decoder.decode(json.loads(line))
    events += decoder.abandon()
    [call] = [event for event in events if isinstance(event, ToolCall)]
    assert (call.tool, call.status, call.exit_code) == ("command", "completed", exit_code)
    assert call.command == "echo hello-from-tool > tool_proof.txt; cat tool_proof.txt; uname -s"
    assert ("hello-from-tool" in call.output) == (agent != "acp-gemini")
    assert [event for event in events if isinstance(event, Message)]
    assert not [event for event in events if isinstance(event, Unrecognized | Integrity)]


@pytest.mark.parametrize(
    ("members", "status", "exit_code"),
    [
        ({"status": "completed", "rawOutput": {"metadata": {"exit": 3}}}, "failed", 3),
        ({"status": "completed", "rawOutput": {"metadata": {"exit": None}}}, "failed", None),
        ({"status": "completed", "_meta": {"terminal_exit": {"exit_code": 3}}}, "failed", 3),
        ({"status": "failed", "rawOutput": "Exit code 3\nout"}, "failed", 3),
        ({"status": "completed", "rawOutput": "Exit code 3\nout"}, "completed", None),
        ({"status": "completed", "rawOutput": {"exit_code": 0}}, "completed", 0),
        ({"status": "completed", "rawOutput": {"exit_code": True}}, "completed", None),
    ],
)
def test_exit_codes_are_read_where_agents_state_them(
    members: dict[str, Any], status: str, exit_code: int | None
) -> None:
    update = {"sessionUpdate": "tool_call_update", "toolCallId": "1", "kind": "execute", "title": "make", **members}
    [call] = [event for event in AcpDecoder().decode(update) if isinstance(event, ToolCall)]
    assert (call.command, call.status, call.exit_code) == ("make", status, exit_code)


@pytest.mark.parametrize(
    ("members", "exit_code"),
    [({"status": "completed"}, 0), ({"status": "failed"}, None), ({"status": "failed", "rawOutput": "Exit code 3"}, 3)],
)
@pytest.mark.parametrize("in_background", [False, True])
def test_a_completed_command_has_exit_code_0_if_the_agent_states_failures(
    members: dict[str, Any], exit_code: int | None, in_background: bool
) -> None:
    decoder = AcpDecoder()
    decoder.states_failures = True
    arguments = {"command": "make", "run_in_background": in_background}
    update = {"sessionUpdate": "tool_call_update", "toolCallId": "1", "rawInput": arguments, **members}
    [call] = [event for event in decoder.decode(update) if isinstance(event, ToolCall)]
    assert call.exit_code == (None if in_background and not exit_code else exit_code)


@pytest.mark.parametrize("url", [None, "https://api.anthropic.com/v1", "https://api.anthropic.com/"])
def test_the_version_of_an_api_is_left_to_agents_that_add_it(url: str | None) -> None:
    endpoint = endpoint_of(AcpSettings(agent="claude", base_url=url), {"ANTHROPIC_API_KEY": "k"})
    assert endpoint is not None
    assert endpoint.base_url == "https://api.anthropic.com"


pytestmark = pytest.mark.needs("bubblewrap")


def test_garbage_is_kept_and_does_not_end_the_turn(tmp_path: Path) -> None:
    async def work(lab: AcpLab) -> None:
        async with lab.session(fake="garbage") as seat:
            result = await seat.turn("go [[say the answer]]")
            assert (result.status, result.final_message) == ("completed", "the answer")
            assert len(seat.of(Integrity, code="GARBAGE_ON_STREAM")) == 6
            assert [event.method for event in seat.of(Unrecognized)] == ["holograph", "tool_call", "None"]
            assert len(seat.of(Integrity, code="MESSAGE_NOT_UNDERSTOOD")) == 1
            assert not seat.of(ToolCall)

    run(tmp_path, work)


def test_crash_reports_the_open_call_and_the_next_turn_resumes(tmp_path: Path) -> None:
    async def work(lab: AcpLab) -> None:
        async with lab.session(fake="crash") as seat:
            thread = await seat.session.start_thread()
            result = await seat.turn("go", thread)
            assert isinstance(result.error, RuntimeCrashed)
            assert "exit code 9: out of luck" in result.error.message
            assert result.observed_failure is None  # the agent's own program ended, not its box
            [call] = seat.of(ToolCall)
            assert (call.command, call.status, call.exit_code) == ("make", "abandoned", None)
            assert isinstance((await seat.turn("again", thread)).error, RuntimeCrashed)
            assert seat.session.facts()["restarts"] == 1

    run(tmp_path, work)


def test_requests_for_files_and_terminals_are_refused_by_name(tmp_path: Path) -> None:
    async def work(lab: AcpLab) -> None:
        async with lab.session(fake="asks") as seat:
            result = await seat.turn("go")
            assert json.loads(result.final_message) == [-32601] * 4
            refused = [(event.method, event.answer) for event in seat.of(ApprovalDecision)]
            names = ("fs/write_text_file", "fs/read_text_file", "terminal/create", "read_minds")
            assert refused == [(name, "refused") for name in names]

    run(tmp_path, work)


def test_approval_rules_decide_permission_requests(tmp_path: Path) -> None:
    async def work(lab: AcpLab) -> None:
        rules = (
            ApprovalRule(answer="decline", command="rm *", name="no deletion"),
            ApprovalRule(answer="accept", command="notes/*"),
            ApprovalRule(answer="accept", command="echo *"),
        )
        writes = [f'[[call Write {{"path": "{name}", "text": "x"}}]]' for name in ("notes/a", "b")]
        (lab.workspace / "notes").mkdir()
        async with lab.session(fake="", approvals=rules) as seat:
            await seat.turn(f"[[run rm -rf .]] [[run echo yes]] {' '.join(writes)} [[say done]]")
            decided = [(event.subject, event.answer) for event in seat.of(ApprovalDecision)]
            expected = [("rm -rf .", "decline"), ("echo yes", "accept"), ("notes/a", "accept"), ("b", "decline")]
            assert decided == expected
            assert [call.status for call in seat.of(ToolCall)] == ["declined", "completed"]
            assert [change.status for change in seat.of(FileChange)] == ["completed", "declined"]
            assert sorted(path.name for path in lab.workspace.rglob("*")) == ["a", "notes"]
        async with lab.session({"undecided": "decline"}, fake="") as seat:
            await seat.turn("[[run touch made]] [[say done]]")
            assert [(event.answer, event.rule) for event in seat.of(ApprovalDecision)] == [("decline", "undecided")]
            assert not (lab.workspace / "made").exists()

    run(tmp_path, work)


def test_versions_other_than_1_are_refused_by_name(tmp_path: Path) -> None:
    async def work(lab: AcpLab) -> None:
        async with lab.session(fake="version:2") as seat:
            with pytest.raises(RuntimeIncompatible, match="speaks version 2 of ACP; only version 1 is supported"):
                await seat.session.start_thread()

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("refusal", AgentError), ("max_tokens", ContextExceeded), ("cancelled", TurnInterrupted), ("bored", AgentError)],
)
def test_only_end_turn_completes_a_turn(reason: str, kind: type[AgentError], tmp_path: Path) -> None:
    async def work(lab: AcpLab) -> None:
        async with lab.session(fake=f"stop:{reason}") as seat:
            result = await seat.turn("go")
            assert result.status == "failed"
            assert isinstance(result.error, kind)

    run(tmp_path, work)


def test_failure_of_the_model_that_the_agent_conceals_fails_the_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ThreadProgram, "exit_seconds", 600)  # longer than the test may take

    async def work(lab: AcpLab) -> None:
        async with lab.session(fake="conceals") as seat:
            result = await seat.turn("[[http 503]] [[say never]]")
            assert isinstance(result.error, Overloaded)
            assert isinstance(result.observed_failure, Overloaded)
            assert (await seat.turn("[[http 503 times=1]] [[say fine]]")).status == "failed"
            assert (await seat.turn("[[run true]] [[say fine]]")).status == "completed"
        # The same after a response, by an agent that is known to do this, and not to exit by itself.
        codex = {"command": [], "agent": "codex", "binary": str(FAKE)}
        async with lab.session(codex, fake="conceals-and-stays") as seat:
            result = await seat.turn("[[run true]] [[http 503]] [[say never]]")
            assert isinstance(result.error, Overloaded)
            assert len(seat.of(ToolCall)) == 1
            assert (await seat.turn("[[run true]] [[say fine]]")).status == "completed"

    run(tmp_path, work)


def test_threads_without_a_home_can_be_forked_and_are_not_written(tmp_path: Path) -> None:
    async def work(lab: AcpLab) -> None:
        async with lab.session(fake="") as seat:
            thread = await seat.session.start_thread()
            first = await seat.turn("one [[say first]]", thread)
            await seat.turn("two [[say second]]", thread)
            fork = await seat.session.fork_thread(thread, first.turn)
            assert (await seat.turn("[[say third]]", fork)).final_message == "third"
            told = str(lab.model.seen[-1].body["messages"])
            assert ("one" in told, "two" in told) == (True, False)
            assert not list(lab.scratch.glob("*-home/threads"))
            with pytest.raises(UsageError, match="does not exist"):
                await seat.session.resume_thread("thread-other")

    run(tmp_path, work)


def test_agent_without_sessions_to_load_can_t_continue_after_an_interrupt(tmp_path: Path) -> None:
    async def work(lab: AcpLab) -> None:
        async with lab.session(fake="plain") as seat:
            thread = await seat.session.start_thread()
            first = await seat.turn("one [[say first]]", thread)
            with pytest.raises(CapabilityUnsupported):
                await seat.session.fork_thread(thread)
            assert (await seat.turn("two [[say second]]", thread)).status == "completed"
            with pytest.raises(CapabilityUnsupported, match="no copy"):
                await seat.session.fork_thread(thread, first.turn)
            turn = await seat.session.start_turn(thread, "[[run touch on; sleep 300]]")
            await seat.until((lab.workspace / "on").exists)
            await seat.session.interrupt_turn(thread, turn)
            assert isinstance((await seat.turn("go on", thread)).error, CapabilityUnsupported)

    run(tmp_path, work)


def test_agent_that_advertises_to_load_sessions_and_refuses_it(tmp_path: Path) -> None:
    async def work(lab: AcpLab) -> None:
        home = lab.workspace.parent / "home"
        async with lab.session(fake="refuses-load", home=home) as seat:
            thread = await seat.session.start_thread()
        async with lab.session(fake="refuses-load", home=home) as seat:
            with pytest.raises(CapabilityUnsupported, match="refused to load a session: no such session"):
                await seat.session.resume_thread(thread)

    run(tmp_path, work)


def test_history_that_the_agent_repeats_is_not_reported_again(tmp_path: Path) -> None:
    async def work(lab: AcpLab) -> None:
        home = lab.workspace.parent / "home"
        async with lab.session(fake="load-only", home=home) as seat:
            thread = await seat.session.start_thread()
            await seat.turn("[[run true]] [[say first]]", thread)
        async with lab.session(fake="load-only", home=home) as seat:
            await seat.session.resume_thread(thread)
            result = await seat.turn("[[say second]]", thread)
            assert [said.text for said in seat.of(Message)] == ["second"]
            assert not seat.of(ToolCall)
            assert {event.thread for event in seat.of(Usage)} == {result.thread}

    run(tmp_path, work)


def test_probe_names_what_is_missing() -> None:
    def probe(**settings: Any) -> str:
        return anyio.run(AcpRuntime().probe, settings).reason

    for unknown, known in (
        ({"agent": "goose"}, "known: opencode, gemini, codex, claude"),
        ({"env": {"A": 1}}, "see docs/agents.md"),
    ):
        with pytest.raises(UsageError) as refused:
            probe(**unknown)
        assert refused.value.fix_hints[0] == known
    assert probe(command=["no-such-agent"]) == "no-such-agent is not installed on this machine"
    assert probe(agent="gemini", binary="/nonexistent/gemini").startswith("binary '/nonexistent/gemini' is not")
    absent = probe(**{**fake_settings("https://model.example"), "api_key_env": "NO_SUCH_KEY"})
    assert absent == "the variable NO_SUCH_KEY is not set, so there is no key for the model"
