"""Every built-in runtime passes the conformance suite (one test per check), and the suite detects faulty runtimes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
import pytest
from acp_lab import acp_with, claude_settings, codex_settings, fake_settings, gemini_settings
from capabilities import OrdinaryUser

from proofbox.agents import hosted_session
from proofbox.agents.conformance import CHECKS, RuntimeReport, context, run_conformance
from proofbox.agents.contract import RuntimeProbe
from proofbox.agents.events import Event, ToolCall
from proofbox.agents.feed import Turn
from proofbox.agents.registry import Registry
from proofbox.agents.runtimes.scripted import runtime
from proofbox.agents.runtimes.scripted.runtime import ScriptedSession
from proofbox.errors import AgentError, StrategyUnavailable, StrategyUnsupported, UsageError

NAMES = [check.name for check in CHECKS]
SOAK = os.environ.get("PROOFBOX_SOAK", "") not in ("", "0")
"""Most agents that speak ACP take seconds to start, so `scripts/soak` runs most of their checks."""
CODEX_LIVE = "agents/runtimes/test_codex_live.py"
CLAUDE_LIVE = "agents/runtimes/test_claude_live.py"
CLAUDE_ATTEMPTS = "lab/attempt/test_claude_attempts.py"
SHOWN_BY_CODEX = {
    "turns.failed-turn-is-reported-as-failed": (CODEX_LIVE, "test_each_model_fault_ends_with_its_code_in_time"),
    "turns.failing-listener-fails-the-turn": (CODEX_LIVE, "test_failed_listener_ends_the_turn"),
    "control.interrupt-kills-the-command-and-ends-the-turn": (
        CODEX_LIVE,
        "test_interrupt_ends_the_turn_and_its_command",
    ),
    "control.steering-reaches-the-agent": (CODEX_LIVE, "test_steering_reaches_the_running_turn"),
    "control.stalled-turn-is-ended": (CODEX_LIVE, "test_turn_without_activity_is_stopped"),
    "control.parallel-sessions-do-not-mix": (CODEX_LIVE, "test_concurrent_programs_keep_separate_records"),
    "control.threads-of-a-session-do-not-mix": (CODEX_LIVE, "test_concurrent_threads_keep_separate_records"),
    "threads.resumed-thread-keeps-its-history": (CODEX_LIVE, "test_threads_outlive_their_session_and_fork_at_a_turn"),
    "cleanup.close-ends-the-turn-in-progress": (CODEX_LIVE, "test_close_during_a_turn"),
}
SHOWN_BY_CLAUDE = {
    "turns.a-turn-runs-its-command": (CLAUDE_LIVE, "test_parallel_calls_file_changes_and_usage"),
    "turns.tool-calls-are-counted-once": (CLAUDE_LIVE, "test_parallel_calls_file_changes_and_usage"),
    "turns.token-usage-is-reported": (CLAUDE_LIVE, "test_parallel_calls_file_changes_and_usage"),
    "turns.removed-listener-receives-no-events": (
        CLAUDE_LIVE,
        "test_failures_of_the_model_have_their_codes_and_removed_listeners_hear_nothing",
    ),
    "turns.second-turn-in-a-thread-is-refused": (
        CLAUDE_LIVE,
        "test_interrupt_and_close_kill_detached_children_and_the_thread_remembers",
    ),
    "control.interrupt-kills-the-command-and-ends-the-turn": (
        CLAUDE_LIVE,
        "test_interrupt_and_close_kill_detached_children_and_the_thread_remembers",
    ),
    "cleanup.close-ends-the-turn-in-progress": (
        CLAUDE_LIVE,
        "test_interrupt_and_close_kill_detached_children_and_the_thread_remembers",
    ),
    "cleanup.closed-session-refuses-calls": (
        CLAUDE_LIVE,
        "test_retry_is_reported_and_a_closed_session_refuses_calls",
    ),
    "control.parallel-sessions-do-not-mix": (
        CLAUDE_ATTEMPTS,
        "test_concurrent_attempts_have_separate_sessions_and_traces",
    ),
}
"""Checks that another test makes with the same program, and which. `scripts/soak` makes them here as well."""


def names_without(shown: Collection[str]) -> list[str]:
    return NAMES if SOAK else [name for name in NAMES if name not in shown]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow agents that need seconds of processor time to start the time that this takes on a busy machine."""
    monkeypatch.setattr(context.RuntimeCheckContext, "timeout", 150.0)


def verdict(report: RuntimeReport) -> None:
    [result] = report.results
    if result.outcome == "failed":
        pytest.fail(result.detail, pytrace=False)
    if result.outcome == "not_applicable":
        assert result.detail, "a check that does not apply must have a reason"
    if result.outcome == "not_checked":
        pytest.skip(result.detail)


@pytest.mark.parametrize("shown", [SHOWN_BY_CODEX, SHOWN_BY_CLAUDE])
def test_checks_made_elsewhere_exist(shown: Mapping[str, tuple[str, str]]) -> None:
    assert set(shown) <= set(NAMES)
    for file, test in shown.values():
        assert f"def {test}(" in (Path(__file__).parents[2] / file).read_text(), test


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("check", NAMES)
@pytest.mark.parametrize("strategy", ["scripted", "process", "nop", "oracle"])
def test_runtime_conforms_in_a_box(strategy: str, check: str) -> None:
    verdict(run_conformance(strategy, provider="bubblewrap", only=[check]))


@pytest.mark.needs("bubblewrap", "unprivileged-user")
@pytest.mark.parametrize("strategy", ["scripted", "process"])
def test_as_an_ordinary_user(strategy: str, ordinary_user: OrdinaryUser) -> None:
    done = subprocess.run(
        [ordinary_user.python, "-m", "proofbox", "runtime", "check", strategy, "--provider", "bubblewrap", "--json"],
        capture_output=True,
        text=True,
        cwd="/",
        env=dict(ordinary_user.env),
        **ordinary_user.identity,
    )
    said = json.loads(done.stdout)
    assert said["ok"], [result for result in said["results"] if result["outcome"] == "failed"]
    assert said["passed"] >= 20


@pytest.mark.needs("bubblewrap", "codex")
@pytest.mark.parametrize("check", names_without(SHOWN_BY_CODEX))
def test_codex_conforms_in_a_box(check: str) -> None:
    verdict(run_conformance("codex_app_server", provider="bubblewrap", only=[check]))


@pytest.mark.needs("bubblewrap", "claude")
@pytest.mark.parametrize("check", names_without(SHOWN_BY_CLAUDE))
def test_claude_conforms_in_a_box(check: str) -> None:
    verdict(run_conformance("claude_code", provider="bubblewrap", only=[check]))


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("check", NAMES)
def test_acp_conforms_in_a_box_with_a_small_agent(check: str) -> None:
    verdict(run_conformance("other_acp", provider="bubblewrap", only=[check], registry=acp_with(fake_settings)))


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("patient")
@pytest.mark.needs("bubblewrap", "opencode")
@pytest.mark.parametrize("check", NAMES if SOAK else ["turns.unknown-settings-are-refused"])
def test_opencode_conforms_in_a_box(check: str) -> None:
    """It takes the longest to start, so a sample of the tests starts it only in test_acp_live.py."""
    verdict(run_conformance("acp", provider="bubblewrap", only=[check]))


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("patient")
@pytest.mark.needs("bubblewrap", "claude", "claude-agent-acp")
@pytest.mark.parametrize("check", NAMES if SOAK else ["turns.tool-calls-are-counted-once"])
def test_claude_agent_acp_conforms_in_a_box(check: str) -> None:
    verdict(run_conformance("other_acp", provider="bubblewrap", only=[check], registry=acp_with(claude_settings)))


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("patient")
@pytest.mark.needs("bubblewrap", "codex", "codex-acp")
@pytest.mark.parametrize("check", NAMES if SOAK else ["turns.failed-turn-is-reported-as-failed"])
def test_codex_acp_conforms_in_a_box(check: str) -> None:
    verdict(run_conformance("other_acp", provider="bubblewrap", only=[check], registry=acp_with(codex_settings)))


NOT_BY_GEMINI = (
    "turns.tool-calls-are-counted-once",  # it reports no exit codes
    "control.interrupt-kills-the-command-and-ends-the-turn",  # it can't load its sessions, so the thread can't continue
    "threads.resumed-thread-keeps-its-history",
    "threads.forked-thread-has-the-history-up-to-its-turn",
)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("patient")
@pytest.mark.needs("bubblewrap", "gemini")
@pytest.mark.parametrize(
    "check", [name for name in NAMES if name not in NOT_BY_GEMINI] if SOAK else ["turns.token-usage-is-reported"]
)
def test_gemini_conforms_in_a_box_as_far_as_it_can(check: str) -> None:
    verdict(run_conformance("other_acp", provider="bubblewrap", only=[check], registry=acp_with(gemini_settings)))


def test_unknown_checks_and_runtimes_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown check"):
        run_conformance("scripted", only=["turns.flying"])
    with pytest.raises(StrategyUnsupported):
        run_conformance("nowhere")


# Tests of the suite itself: runtimes with one fault each, and the check that must detect it.


class Deaf(ScriptedSession):
    async def _kill(self, turn: Turn) -> None:
        """Leaves the command running."""


class Optimist(ScriptedSession):
    async def _run_turn(self, turn: Turn, prompt: str) -> None:
        with contextlib.suppress(AgentError):
            await super()._run_turn(turn, prompt)


class Stutterer(ScriptedSession):
    async def publish(self, event: Event) -> None:
        await super().publish(event)
        if isinstance(event, ToolCall):
            await super().publish(event)


class Forgetful(ScriptedSession):
    async def fork_thread(self, thread: str, last_turn: str | None = None) -> str:
        del last_turn
        return await super().fork_thread(thread)


class Talker(ScriptedSession):
    async def steer_turn(self, thread: str, turn: str, text: str) -> None:
        del text
        await super().steer_turn(thread, turn, "nothing")


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (Deaf, "control.interrupt-kills-the-command-and-ends-the-turn"),
        (Optimist, "turns.failed-turn-is-reported-as-failed"),
        (Stutterer, "turns.tool-calls-are-counted-once"),
        (Forgetful, "threads.forked-thread-has-the-history-up-to-its-turn"),
        (Talker, "control.steering-reaches-the-agent"),
    ],
)
def test_the_suite_finds_a_fault(fault: type[ScriptedSession], check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "ScriptedSession", fault)
    monkeypatch.setattr(context.RuntimeCheckContext, "timeout", 1.0)
    monkeypatch.setattr(hosted_session, "CLOSE_TIMEOUT", 1.0)
    [result] = run_conformance("scripted", provider="bubblewrap", only=[check]).results
    assert result.outcome == "failed", "the suite did not detect the fault"


def test_unavailable_runtime_can_t_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def absent(self: object, settings: object) -> RuntimeProbe:
        return RuntimeProbe(strategy="scripted", available=False, reason="not installed", fix_hints=("install it",))

    monkeypatch.setattr(runtime.ScriptedRuntime, "probe", absent)
    with pytest.raises(StrategyUnavailable, match="not installed"):
        run_conformance("scripted")


@pytest.mark.needs("bubblewrap")
def test_unclaimed_capability_must_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    less = msgspec.structs.replace(runtime.ScriptedRuntime.capabilities, supports_thread_fork=False)
    monkeypatch.setattr(runtime.ScriptedRuntime, "capabilities", less)
    report = run_conformance(
        "scripted", provider="bubblewrap", only=["threads.forked-thread-has-the-history-up-to-its-turn"]
    )
    assert report.results[0].outcome == "failed"
    assert "did not refuse" in report.results[0].detail


def test_runtime_without_a_rig_can_t_be_checked() -> None:
    class Other(runtime.ScriptedRuntime):
        id = "other"

    with pytest.raises(UsageError, match="no rig"):
        run_conformance("other", registry=Registry({"other": Other}))
