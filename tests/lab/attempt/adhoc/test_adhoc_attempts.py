"""Tests of attempts made by hand: steps with their snapshots, failures, timeouts and secrets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from pacing import SOON, in_time

from proofbox.agents import steps
from proofbox.agents.registry import Registry
from proofbox.agents.runtimes.scripted.runtime import ScriptedRuntime
from proofbox.agents.steps import reach_of
from proofbox.config import settings
from proofbox.core.canonical import canonical_bytes
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import (
    AttemptUnknown,
    BundleInProgress,
    EnvPolicyRefused,
    ProofboxError,
    StrategyUnavailable,
    StrategyUnsupported,
    UsageError,
)
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.attempt import artifacts, trace
from proofbox.lab.attempt.adhoc.fork import fork_attempt
from proofbox.lab.attempt.adhoc.home import attempts_dir
from proofbox.lab.attempt.adhoc.request import AttemptRun
from proofbox.lab.attempt.adhoc.run import run_attempt, run_attempt_async
from proofbox.lab.attempt.cleaning import bounded
from proofbox.lab.reports.explain import explain
from proofbox.lab.reports.stored_attempts import find_attempt
from proofbox.lab.reports.validation import validate
from proofbox.sandbox.conformance.context import command_line, processes_with
from proofbox.sandbox.contract import Mount
from proofbox.workspace.workspace import Workspace

pytestmark = pytest.mark.needs("bubblewrap")

WRITE: dict[str, Any] = {"tool": "write_file", "args": {"path": "a.txt", "content": "one\n"}}
RUN: dict[str, Any] = {"tool": "run_command", "args": {"command": "echo two >> a.txt; cat a.txt"}}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


def attempt(project: Path, *steps: dict[str, Any], prompt: str = "the prompt", **options: Any) -> AttemptRun:
    given: dict[str, Any] = {
        "strategies": "scripted",
        "settings": {"script": {"step": list(steps)}},
        "provider": "bubblewrap",
    }
    return run_attempt(prompt, project, **{**given, **options})


def content(workspace: Path, snapshot: str, dest: Path) -> dict[str, str]:
    with Workspace.open(workspace, track=False) as opened:
        opened.fork(snapshot, dest).close()
    return {path.name: path.read_text() for path in dest.iterdir()}


def test_every_step_has_the_files_before_and_after_it(project: Path, tmp_path: Path) -> None:
    trial = attempt(project, WRITE, RUN, {"say": "done"}, out=tmp_path / "out")
    assert (trial.status, trial.error, trial.final_message) == ("completed", None, "done")
    assert [(call.tool, call.exit_code) for call in trial.tool_calls] == [("write_file", None), ("command", 0)]
    assert [(step.n, step.kind, step.ends_turn, step.changed) for step in trial.steps] == [
        (1, "tool_call", False, 1),
        (2, "tool_call", True, 1),
    ]
    assert trial.steps[0].snapshot_before == trial.snapshot_before
    assert trial.steps[0].snapshot_after == trial.steps[1].snapshot_before
    assert trial.steps[1].snapshot_after == trial.snapshot_after
    assert content(project, trial.steps[0].snapshot_after, tmp_path / "one") == {"a.txt": "one\n"}
    assert content(project, trial.snapshot_after, tmp_path / "two") == {"a.txt": "one\ntwo\n"}
    with Workspace.open(project, track=False) as workspace:
        assert workspace.head is not None
        assert (workspace.head.id, workspace.head.method) == (trial.snapshot_after, "sealed")
    assert [(each.strategy, each.used) for each in trial.chain] == [("scripted", True)]
    assert trial.session["sandboxed"] is True


def test_bundle_is_that_of_a_suites_attempt(project: Path, tmp_path: Path) -> None:
    made = attempt(project, WRITE, RUN, {"say": "done"}, out=tmp_path / "out")
    assert Path(made.bundle) == tmp_path / "out"
    bundle = load_bundle(tmp_path / "out")
    assert bundle.index.status == "ok"
    assert set(artifacts.EXPECTED) <= set(bundle.artifacts)
    assert validate(bundle, strict=True) == []
    assert verify(tmp_path / "out").ok
    events = [entry["event"] for entry in bundle.read_log("events.jsonl")]
    assert [each for each in events if each != "item_started"] == [
        *("thread_started", "turn_started", "tool_call", "tool_call", "message", "turn_ended")
    ]
    steps = [entry["step"] for entry in bundle.read_log("steps.jsonl") if "step" in entry]
    assert [step["snapshot_after"] for step in steps] == [step.snapshot_after for step in made.steps]
    found = find_attempt(str(tmp_path / "out"), tmp_path)
    lines = list(explain(found.attempt, found.bundle))
    assert any("echo two >> a.txt" in line for line in lines)
    assert found.attempt.result is not None
    assert (found.attempt.result.claimed, found.attempt.result.reason) == ("success", "completed")


def test_bundle_is_kept_in_the_state_directory_by_default(project: Path) -> None:
    made = attempt(project, WRITE, {"say": "done"})
    assert Path(made.bundle) == attempts_dir() / made.attempt_id
    assert find_attempt(made.attempt_id[:-2], project).attempt.id == made.attempt_id
    assert validate(load_bundle(made.bundle), strict=True) == []
    with pytest.raises(AttemptUnknown, match="no attempt"):
        find_attempt("attempt-unknown", project)


def test_turn_without_actions_has_one_step(project: Path) -> None:
    [step] = attempt(project, {"say": "nothing to do"}).steps
    assert (step.kind, step.ends_turn, step.snapshot_before) == ("turn", True, step.snapshot_after)


def test_changes_after_the_last_action_are_a_step(project: Path) -> None:
    daemon = (
        "(setsid sh -c 'while [ ! -e go ]; do sleep 0.01; done; echo late > new; mv new late.txt' >/dev/null 2>&1 &)"
    )

    async def until_late(_: float) -> None:
        (project / "go").touch()
        while not (project / "late.txt").exists():  # noqa: ASYNC110 (files are polled)
            await anyio.sleep(0.01)

    registry = Registry({"scripted": lambda: ScriptedRuntime(sleep=until_late)})
    start = {"tool": "run_command", "args": {"command": daemon}}
    trial = attempt(project, start, {"delay": 1}, {"say": "done"}, registry=registry)
    assert [step.kind for step in trial.steps] == ["tool_call", "turn"]
    assert [step.ends_turn for step in trial.steps] == [False, True]
    assert trial.steps[-1].changed == 2
    assert trial.steps[-1].snapshot_after == trial.snapshot_after


def test_failed_turn_is_a_failed_trial(project: Path, tmp_path: Path) -> None:
    trial = attempt(project, WRITE, {"fault": "rate_limit", "retry_after": 9}, out=tmp_path / "out")
    assert trial.status == "failed"
    assert trial.error is not None
    assert (trial.error.code, trial.error.retryable, trial.error.details) == (
        "RUNTIME_RATE_LIMIT",
        True,
        {"retry_after": 9},
    )
    assert len(trial.steps) == 1
    assert load_bundle(tmp_path / "out").index.status == "partial"


def test_timeout_kills_the_process_tree_of_the_turn(project: Path) -> None:
    command = {"tool": "run_command", "args": {"command": "(setsid sleep 301 &) ; sleep 301"}}
    began = 0.0

    def run(limit: float) -> AttemptRun:
        nonlocal began
        began = time.monotonic() + limit
        return attempt(project, WRITE, command, timeout=limit)

    trial = in_time(run, lambda trial: len(trial.tool_calls) == 2)
    assert time.monotonic() - began < SOON
    assert trial.error is not None
    assert (trial.status, trial.error.code) == ("failed", "RUNTIME_TIMEOUT")
    assert [call.status for call in trial.tool_calls] == ["completed", "abandoned"]
    assert trial.steps[-1].snapshot_after == trial.snapshot_after


def test_stalled_turn_fails_with_its_code(project: Path) -> None:
    trial = attempt(project, {"fault": "stall"}, stall_timeout=0.3, timeout=120)
    assert trial.error is not None
    assert (trial.status, trial.error.code) == ("failed", "RUNTIME_STALL")


def test_cancelled_trial_writes_its_record_and_ends_the_agent(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = {"step": [WRITE, {"tool": "run_command", "args": {"command": "sleep 302"}}]}

    async def run() -> None:
        with anyio.move_on_after(120) as scope:

            async def hear(event: Any) -> None:
                if type(event).__name__ == "ToolCall":
                    scope.cancel()

            settings = {"script": script}
            await run_attempt_async("x", project, settings=settings, provider="bubblewrap", out=out, on_event=hear)

    anyio.run(run)
    bundle = load_bundle(out)
    assert bundle.index.status == "ok"
    assert bundle.read_json("attempt.json")["reason"] == "interrupted"
    assert any("step" in entry for entry in bundle.read_log("steps.jsonl"))
    assert validate(bundle, strict=True) == []


def test_trial_is_not_completed_if_the_final_snapshot_fails(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Workspace.snapshot

    def snapshot(self: Workspace, message: str = "", *, sealed: bool = False, **more: Any) -> Any:
        if sealed:
            raise OSError(28, "No space left on device")
        return take(self, message, **more)

    monkeypatch.setattr(Workspace, "snapshot", snapshot)
    trial = attempt(project, WRITE, {"say": "done"}, out=tmp_path / "out")
    assert trial.error is not None
    assert (trial.status, trial.snapshot_after) == ("failed", "")
    assert "No space left" in trial.error.message
    assert load_bundle(tmp_path / "out").index.status == "partial"


def test_step_that_can_t_be_recorded_fails_the_turn(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Workspace.snapshot

    def snapshot(self: Workspace, message: str = "", **more: Any) -> Any:
        if message.startswith("after write_file"):
            raise OSError(28, "No space left on device")
        return take(self, message, **more)

    monkeypatch.setattr(Workspace, "snapshot", snapshot)
    trial = attempt(project, WRITE, RUN, {"say": "done"}, out=tmp_path / "out")
    assert trial.error is not None
    assert (trial.status, trial.error.code) == ("failed", "RUNTIME_LISTENER_FAILURE")
    assert [call.tool for call in trial.tool_calls] == ["write_file"]  # it was stopped there


def test_agent_that_floods_its_record_is_stopped(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MAX_EVENT_BYTES", 1 << 20)
    flood = 'while :; do echo \'{"type":"reasoning","text":"' + "x" * 4000 + "\"}'; done"
    settings = {"command": ["sh", "-c", flood], "output": "jsonl"}
    trial = attempt(project, strategies="process", settings=settings, out=tmp_path / "out")
    assert trial.error is not None
    assert (trial.status, trial.error.code) == ("failed", "RUNTIME_LISTENER_FAILURE")
    assert (tmp_path / "out/events.jsonl").stat().st_size < 4 << 20


def test_agent_that_exceeds_the_step_limit_is_stopped(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MAX_STEPS", 3)
    trial = attempt(project, *[{"claim": {"command": "true"}}] * 6, {"say": "done"})
    assert trial.error is not None
    assert (trial.error.code, len(trial.steps)) == ("RUNTIME_LISTENER_FAILURE", 3)


def test_prompt_must_be_valid_text(project: Path) -> None:
    with pytest.raises(UsageError, match="not valid UTF-8"):
        attempt(project, {"say": "x"}, prompt="\udcff")


def test_command_with_reach_beyond_the_workspace_is_an_effect(project: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    boxed = attempt(tmp_path / "other", WRITE, RUN)
    assert [step.effect for step in boxed.steps] == ["", ""]
    trial = attempt(project, WRITE, RUN, provider="off")
    assert [bool(step.effect) for step in trial.steps] == [False, True]
    with Workspace.open(project, track=False) as workspace:
        [entry] = list(workspace.effects.entries())
        assert (entry.id, entry.target, entry.reach) == (
            trial.steps[1].effect,
            RUN["args"]["command"],
            ("host", "network"),
        )
        back = workspace.rollback(trial.snapshot_before)
        assert len(back.irreversible_effects) == 1
        assert workspace.verify().sound


@pytest.mark.parametrize(
    ("facts", "mounts", "reach"),
    [
        ({"sandboxed": True, "network": "none"}, [], ()),
        ({"sandboxed": True, "policy": {"network": "none"}}, ["/a:/b", "/a:/b:ro"], ()),
        ({"sandboxed": True, "network": "none"}, ["/a:/b:rw"], ("mounts",)),
        ({"sandboxed": True, "network": "allow"}, [Mount(Path("/a"), "/b", writable=True)], ("network", "mounts")),
        ({"sandboxed": True}, [], ("network",)),
        ({}, [], ("host", "network")),
        ({"sandboxed": True, "isolation": "none"}, [], ("host", "network")),
    ],
)
def test_unknown_isolation_counts_as_open(facts: Any, mounts: Any, reach: tuple[str, ...]) -> None:
    assert reach_of(facts, mounts) == reach


def test_no_secret_reaches_the_record(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "correct-horse-battery-staple"
    monkeypatch.setenv("MY_API_TOKEN", secret)
    out = tmp_path / "out"
    trial = attempt(
        project,
        {"tool": "run_command", "args": {"command": f"echo {secret}; env"}},
        {"claim": {"command": f"curl -H 'Authorization: Bearer {secret}'"}},
        {"garbage": f"key={secret}"},
        {"say": f"the token is {secret} and sk-proj-abcdefghijklmnop1234"},
        out=out,
    )
    assert trial.status == "completed"
    assert "MY_API_TOKEN" in load_bundle(out).read_json(artifacts.ATTEMPT)["environment"]["withheld"]
    kept = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert secret.encode() not in kept
    assert b"abcdefghijklmnop1234" not in kept
    assert secret not in repr(trial)


def test_refused_variables_fail_before_the_start(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_not_really_one_123456")
    with pytest.raises(EnvPolicyRefused):
        attempt(project, {"say": "x"}, env=("GITHUB_TOKEN",), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (project / ".proofbox").mkdir()
    (project / settings.PROJECT_FILE).write_text('env = ["GITHUB_TOKEN"]\n')
    settings.trust(project)
    with pytest.raises(EnvPolicyRefused):
        attempt(project, {"say": "x"})
    trial = attempt(project, {"say": "x"}, grants=("GITHUB_TOKEN",))
    assert load_bundle(trial.bundle).read_json(artifacts.ATTEMPT)["environment"]["granted"] == ["GITHUB_TOKEN"]


def test_project_settings_apply_once_trusted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".proofbox").mkdir()
    config_text = 'strategies = ["process!", "scripted"]\n[runtimes.process]\ncommand = ["echo", "from the file"]\n'
    (project / settings.PROJECT_FILE).write_text(config_text)
    settings.trust(project)
    trial = run_attempt("x", project, provider="bubblewrap")
    assert (trial.strategy, trial.final_message) == ("process", "from the file\n")
    monkeypatch.setenv("PROOFBOX_STRATEGIES", "scripted")
    assert run_attempt("x", project, provider="bubblewrap").strategy == "process"
    with pytest.raises(StrategyUnsupported) as raised:
        run_attempt("x", project, strategies="nowhere")
    assert raised.value.details["chain"][0]["strategy"] == "nowhere"


def test_the_next_strategy_is_used_and_the_record_says_why(project: Path) -> None:
    trial = attempt(project, {"say": "here"}, strategies="nowhere,process,scripted")
    assert trial.strategy == "scripted"
    assert [(each.strategy, each.code) for each in trial.chain] == [
        ("nowhere", "RUNTIME_STRATEGY_UNSUPPORTED"),
        ("process", "RUNTIME_STRATEGY_UNAVAILABLE"),
        ("scripted", ""),
    ]


def test_scripted_agent_without_a_script_is_refused(project: Path, tmp_path: Path) -> None:
    with pytest.raises(StrategyUnavailable, match="the scripted agent has no script") as refused:
        run_attempt("x", project, strategies="scripted", provider="bubblewrap", out=tmp_path / "out")
    assert refused.value.fix_hints == (
        "name its script: --script FILE",
        "use an agent: --strategies codex_app_server",
    )
    with pytest.raises(StrategyUnavailable) as refused:
        run_attempt("x", project, strategies="process,scripted", provider="bubblewrap", out=tmp_path / "out")
    assert refused.value.details["chain"][1]["reason"] == "the scripted agent has no script"
    assert not (tmp_path / "out").exists()


def test_trial_that_did_not_start_leaves_no_record(project: Path, tmp_path: Path) -> None:
    with pytest.raises(StrategyUnavailable):
        run_attempt("x", project, strategies="process", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ProofboxError):
        attempt(tmp_path / "absent", {"say": "x"})


def test_record_states_that_there_was_no_box(project: Path) -> None:
    trial = attempt(project, {"say": "x"}, provider="off")
    assert trial.session["sandboxed"] is False
    trial = attempt(project, RUN, provider=None, sandboxed=False)
    assert (trial.session["sandboxed"], trial.session["isolation"]) == (False, "none")


def test_box_contains_no_secret(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search the environments, arguments and descriptors of all processes that a command can see."""
    secret = "tr0ub4dor-and-3-more-words"
    monkeypatch.setenv("SOME_API_KEY", secret)
    look = "for p in /proc/[0-9]*; do cat $p/environ $p/cmdline; ls -l $p/fd; done 2>/dev/null | tr '\\0' '\\n'; env"
    script = {"tool": "run_command", "args": {"command": f"({look}) > seen.txt; grep -c = seen.txt"}}
    process: dict[str, Any] = {"strategies": "process", "settings": {"command": ["sh", "-c", f"({look}) > seen.txt"]}}
    for options in ({}, process):
        assert attempt(project, script, **options).status == "completed"
        seen = (project / "seen.txt").read_text(errors="replace")
        assert "PATH=" in seen
        assert secret not in seen
        assert "SOME_API_KEY" not in seen


@pytest.mark.parametrize("strategy", ["scripted", "process"])
def test_lost_box_ends_the_turn_with_its_cause(project: Path, strategy: str) -> None:
    """Kill the box agent from outside, like the kernel when memory runs out."""
    mark = f"up-{strategy}"
    command = f"echo > {mark}; sleep 305"
    settings: dict[str, Any] = {"command": ["sh", "-c", command]}
    if strategy == "scripted":
        settings = {"script": {"step": [{"tool": "run_command", "args": {"command": command}}]}}
    options: Any = {"strategies": strategy, "provider": "bubblewrap", "settings": settings, "timeout": 120}

    async def kill() -> None:
        while not (project / mark).exists():  # noqa: ASYNC110 (files are polled)
            await anyio.sleep(0.02)
        agents = [pid for pid in processes_with(str(project)) if "boxagent" in command_line(pid).split(" ")[0]]
        assert agents
        for pid in agents:
            with suppress(ProcessLookupError):  # already killed with the previous process
                os.kill(pid, signal.SIGKILL)

    async def run() -> AttemptRun:
        made = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill)
            made.append(await run_attempt_async("x", project, **options))
        return made[0]

    trial = anyio.run(run)
    assert trial.error is not None
    # A program that is killed before its first message counts as failed to start.
    assert trial.error.details.get("cause") in ("SANDBOX_LOST", "SANDBOX_START_FAILED")
    assert trial.status == "failed"


def test_record_must_not_overlap_the_workspace(project: Path, tmp_path: Path) -> None:
    for out in (project / "out", tmp_path):
        with pytest.raises(UsageError, match="overlap"):
            attempt(project, {"say": "x"}, out=out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    with pytest.raises(UsageError, match="not empty"):
        attempt(project, {"say": "x"}, out=tmp_path / "full")
    with pytest.raises(UsageError, match="prompt"):
        attempt(project, {"say": "x"}, prompt="")


@pytest.mark.parametrize(
    "value", ["\ud800", "x" * 200_000, 2**70, float("nan"), {"\ud800": [1.5, None, {"a": True}]}, [[[]]] * 3]
)
def test_any_value_can_be_recorded(value: Any) -> None:
    canonical_bytes(bounded({"value": value}, Redactor()))


def test_killing_the_supervisor_leaves_no_agent(project: Path, tmp_path: Path) -> None:
    """After kill -9 of the supervisor, the box ends with its stream, and the record stays incomplete."""
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        import proofbox
        script = {"step": [{"tool": "run_command", "args": {"command": "echo up > up; sleep 303 # " + sys.argv[1]}}]}
        proofbox.run_attempt("x", sys.argv[1], out=Path(sys.argv[2]), strategies="scripted", provider="bubblewrap",
                             settings={"script": script})
        """
    )
    (tmp_path / "tmp").mkdir()  # a killed process can't clean up
    argv = [sys.executable, "-c", program, str(project), str(tmp_path / "out")]
    child = subprocess.Popen(argv, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")})
    end = time.monotonic() + 60
    while not (project / "up").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert (project / "up").exists()
    child.send_signal(signal.SIGKILL)
    child.wait()

    def left() -> list[bytes]:
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found.append(entry.read_bytes())
            except OSError:
                continue
        return [line for line in found if b"sleep 303" in line and str(project).encode() in line]

    end = time.monotonic() + 60
    while left() and time.monotonic() < end:
        time.sleep(0.02)
    assert not left()
    with pytest.raises(BundleInProgress):
        fork_attempt(tmp_path / "out", 1, tmp_path / "fork")
