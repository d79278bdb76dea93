"""Tests of trials: steps with their snapshots, failures, timeouts, secrets and forks."""

from __future__ import annotations

import json
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
from proofbox.agents.trials import record
from proofbox.agents.trials.fork import fork_trial
from proofbox.agents.trials.record import bounded, copy_home
from proofbox.agents.trials.result import Trial, TrialRequest
from proofbox.agents.trials.trial import run_trial
from proofbox.config import settings
from proofbox.core.canonical import canonical_bytes
from proofbox.core.chain import verify_chain
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import (
    CorruptError,
    EnvPolicyRefused,
    NotFoundError,
    ProofboxError,
    StrategyUnavailable,
    StrategyUnsupported,
    UsageError,
    WorkspacePathRefused,
)
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


def request(project: Path, *steps: dict[str, Any], **more: Any) -> TrialRequest:
    said = {"strategies": "scripted", "flags": {"script": {"step": list(steps)}}, "provider": "bubblewrap"}
    return TrialRequest(**{"prompt": "the prompt", "workspace": project, **said, **more})


def attempt(wanted: TrialRequest, **more: Any) -> Trial:
    async def run() -> Trial:
        return await run_trial(wanted, **more)

    return anyio.run(run)


def fork(source: Path, step: int, wanted: TrialRequest) -> Trial:
    async def run() -> Trial:
        return await fork_trial(source, step, wanted)

    return anyio.run(run)


def content(workspace: Path, snapshot: str, dest: Path) -> dict[str, str]:
    with Workspace.open(workspace, track=False) as opened:
        opened.fork(snapshot, dest).close()
    return {path.name: path.read_text() for path in dest.iterdir()}


def test_every_step_has_the_files_before_and_after_it(project: Path, tmp_path: Path) -> None:
    trial = attempt(request(project, WRITE, RUN, {"say": "done"}, out=tmp_path / "out"))
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


def test_the_record_is_chained_and_anchored(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    trial = attempt(request(project, WRITE, {"say": "done"}, out=out))
    for name, end in trial.anchors.items():
        report = verify_chain(out / f"{name}.jsonl", f"{trial.trial}/{name}", end.head, expected_count=end.count)
        assert report.ok, report.findings
    told = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert [line["event"]["event"] for line in told] == [
        "thread_started",
        "turn_started",
        "item_started",
        "tool_call",
        "message",
        "turn_ended",
    ]
    written = json.loads((out / "trial.json").read_text())
    assert written["schema_version"] == "proofbox.trial_record/1"
    assert written["steps"][0]["snapshot_after"] == trial.steps[0].snapshot_after


def test_turn_without_actions_has_one_step(project: Path) -> None:
    [step] = attempt(request(project, {"say": "nothing to do"})).steps
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
    trial = attempt(request(project, start, {"delay": 1}, {"say": "done"}), registry=registry)
    assert [step.kind for step in trial.steps] == ["tool_call", "turn"]
    assert [step.ends_turn for step in trial.steps] == [False, True]
    assert trial.steps[-1].changed == 2
    assert trial.steps[-1].snapshot_after == trial.snapshot_after


def test_failed_turn_is_a_failed_trial(project: Path, tmp_path: Path) -> None:
    trial = attempt(request(project, WRITE, {"fault": "rate_limit", "retry_after": 9}, out=tmp_path / "out"))
    assert trial.status == "failed"
    assert trial.error is not None
    assert (trial.error.code, trial.error.retryable, trial.error.details) == (
        "RUNTIME_RATE_LIMIT",
        True,
        {"retry_after": 9},
    )
    assert len(trial.steps) == 1
    assert (tmp_path / "out/trial.json").is_file()


def test_timeout_kills_the_process_tree_of_the_turn(project: Path) -> None:
    command = {"tool": "run_command", "args": {"command": "(setsid sleep 301 &) ; sleep 301"}}
    began = 0.0

    def run(limit: float) -> Trial:
        nonlocal began
        began = time.monotonic() + limit
        return attempt(request(project, WRITE, command, timeout=limit))

    trial = in_time(run, lambda trial: len(trial.tool_calls) == 2)
    assert time.monotonic() - began < SOON
    assert trial.error is not None
    assert (trial.status, trial.error.code) == ("failed", "RUNTIME_TIMEOUT")
    assert [call.status for call in trial.tool_calls] == ["completed", "abandoned"]
    assert trial.steps[-1].snapshot_after == trial.snapshot_after


def test_stalled_turn_fails_with_its_code(project: Path) -> None:
    trial = attempt(request(project, {"fault": "stall"}, stall_timeout=0.3, timeout=120))
    assert trial.error is not None
    assert (trial.status, trial.error.code) == ("failed", "RUNTIME_STALL")


def test_cancelled_trial_writes_its_record_and_ends_the_agent(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    wanted = request(project, WRITE, {"tool": "run_command", "args": {"command": "sleep 302"}}, out=out)

    async def run() -> None:
        with anyio.move_on_after(120) as scope:

            async def hear(event: Any) -> None:
                if type(event).__name__ == "ToolCall":
                    scope.cancel()

            await run_trial(wanted, on_event=hear)

    anyio.run(run)
    written = json.loads((out / "trial.json").read_text())
    assert (written["status"], written["error"]["code"]) == ("interrupted", "RUNTIME_INTERRUPTED")
    assert written["steps"]


def test_trial_is_not_completed_if_the_final_snapshot_fails(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Workspace.snapshot

    def snapshot(self: Workspace, message: str = "", *, sealed: bool = False, **more: Any) -> Any:
        if sealed:
            raise OSError(28, "No space left on device")
        return take(self, message, **more)

    monkeypatch.setattr(Workspace, "snapshot", snapshot)
    trial = attempt(request(project, WRITE, {"say": "done"}, out=tmp_path / "out"))
    assert trial.error is not None
    assert (trial.status, trial.snapshot_after) == ("failed", "")
    assert "No space left" in trial.error.message
    assert (tmp_path / "out/trial.json").is_file()


def test_step_that_can_t_be_recorded_fails_the_turn(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Workspace.snapshot

    def snapshot(self: Workspace, message: str = "", **more: Any) -> Any:
        if message.startswith("after write_file"):
            raise OSError(28, "No space left on device")
        return take(self, message, **more)

    monkeypatch.setattr(Workspace, "snapshot", snapshot)
    trial = attempt(request(project, WRITE, RUN, {"say": "done"}, out=tmp_path / "out"))
    assert trial.error is not None
    assert (trial.status, trial.error.code) == ("failed", "RUNTIME_LISTENER_FAILURE")
    assert [call.tool for call in trial.tool_calls] == ["write_file"]  # it was stopped there


def test_agent_that_floods_its_record_is_stopped(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "LARGEST_CHAIN", 1 << 20)
    flood = 'while :; do echo \'{"type":"reasoning","text":"' + "x" * 4000 + "\"}'; done"
    flags = {"command": ["sh", "-c", flood], "output": "jsonl"}
    wanted = TrialRequest(
        prompt="x", workspace=project, strategies="process", provider="bubblewrap", flags=flags, out=tmp_path / "out"
    )
    trial = attempt(wanted)
    assert trial.error is not None
    assert (trial.status, trial.error.code) == ("failed", "RUNTIME_LISTENER_FAILURE")
    assert (tmp_path / "out/events.jsonl").stat().st_size < 4 << 20


def test_agent_that_exceeds_the_step_limit_is_stopped(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MOST_STEPS", 3)
    trial = attempt(request(project, *[{"claim": {"command": "true"}}] * 6, {"say": "done"}))
    assert trial.error is not None
    assert (trial.error.code, len(trial.steps)) == ("RUNTIME_LISTENER_FAILURE", 3)


def test_prompt_must_be_valid_text(project: Path) -> None:
    with pytest.raises(UsageError, match="not valid UTF-8"):
        attempt(request(project, {"say": "x"}, prompt="\udcff"))


def test_command_with_reach_beyond_the_workspace_is_an_effect(project: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    boxed = attempt(request(tmp_path / "other", WRITE, RUN))
    assert [step.effect for step in boxed.steps] == ["", ""]
    trial = attempt(request(project, WRITE, RUN, provider="off"))
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
        request(
            project,
            {"tool": "run_command", "args": {"command": f"echo {secret}; env"}},
            {"claim": {"command": f"curl -H 'Authorization: Bearer {secret}'"}},
            {"garbage": f"key={secret}"},
            {"say": f"the token is {secret} and sk-proj-abcdefghijklmnop1234"},
            out=out,
        )
    )
    assert trial.status == "completed"
    assert "MY_API_TOKEN" in trial.environment.withheld
    kept = b"".join(path.read_bytes() for path in out.glob("*.json*"))
    assert secret.encode() not in kept
    assert b"abcdefghijklmnop1234" not in kept
    assert secret not in repr(trial)


def test_refused_variables_fail_before_the_start(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_not_really_one_123456")
    with pytest.raises(EnvPolicyRefused):
        attempt(request(project, {"say": "x"}, env=("GITHUB_TOKEN",), out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (project / ".proofbox").mkdir()
    (project / settings.PROJECT_FILE).write_text('env = ["GITHUB_TOKEN"]\n')
    settings.trust(project)
    with pytest.raises(EnvPolicyRefused):
        attempt(request(project, {"say": "x"}))
    trial = attempt(request(project, {"say": "x"}, grants=("GITHUB_TOKEN",)))
    assert trial.environment.granted == ("GITHUB_TOKEN",)


def test_project_settings_apply_once_trusted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".proofbox").mkdir()
    said = 'strategies = ["process!", "scripted"]\n[runtimes.process]\ncommand = ["echo", "from the file"]\n'
    (project / settings.PROJECT_FILE).write_text(said)
    settings.trust(project)
    wanted = TrialRequest(prompt="x", workspace=project, provider="bubblewrap")
    trial = attempt(wanted)
    assert (trial.strategy, trial.chain_origin, trial.final_message) == ("process", "config", "from the file\n")
    monkeypatch.setenv("PROOFBOX_STRATEGIES", "scripted")
    assert attempt(wanted).strategy == "process"
    with pytest.raises(StrategyUnsupported) as raised:
        attempt(TrialRequest(prompt="x", workspace=project, strategies="nowhere"))
    assert raised.value.details["chain"][0]["strategy"] == "nowhere"


def test_the_next_strategy_is_used_and_the_record_says_why(project: Path) -> None:
    trial = attempt(request(project, {"say": "here"}, strategies="nowhere,process,scripted"))
    assert trial.strategy == "scripted"
    assert [(each.strategy, each.code) for each in trial.chain] == [
        ("nowhere", "RUNTIME_STRATEGY_UNSUPPORTED"),
        ("process", "RUNTIME_STRATEGY_UNAVAILABLE"),
        ("scripted", ""),
    ]


def test_trial_that_did_not_start_leaves_no_record(project: Path, tmp_path: Path) -> None:
    with pytest.raises(StrategyUnavailable):
        attempt(TrialRequest(prompt="x", workspace=project, strategies="process", out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    with pytest.raises(ProofboxError):
        attempt(request(tmp_path / "absent", {"say": "x"}))


def test_record_states_that_there_was_no_box(project: Path) -> None:
    trial = attempt(request(project, {"say": "x"}, provider="off"))
    assert trial.session["sandboxed"] is False
    trial = attempt(request(project, RUN, provider=None, sandboxed=False))
    assert (trial.session["sandboxed"], trial.session["isolation"]) == (False, "none")


def test_box_contains_no_secret(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search the environments, arguments and descriptors of all processes that a command can see."""
    secret = "tr0ub4dor-and-3-more-words"
    monkeypatch.setenv("SOME_API_KEY", secret)
    look = "for p in /proc/[0-9]*; do cat $p/environ $p/cmdline; ls -l $p/fd; done 2>/dev/null | tr '\\0' '\\n'; env"
    script = {"tool": "run_command", "args": {"command": f"({look}) > seen.txt; grep -c = seen.txt"}}
    for wanted in (
        request(project, script),
        TrialRequest(
            prompt="x",
            workspace=project,
            strategies="process",
            provider="bubblewrap",
            flags={"command": ["sh", "-c", f"({look}) > seen.txt"]},
        ),
    ):
        assert attempt(wanted).status == "completed"
        seen = (project / "seen.txt").read_text(errors="replace")
        assert "PATH=" in seen
        assert secret not in seen
        assert "SOME_API_KEY" not in seen


@pytest.mark.parametrize("strategy", ["scripted", "process"])
def test_lost_box_ends_the_turn_with_its_cause(project: Path, strategy: str) -> None:
    """Kill the box agent from outside, like the kernel when memory runs out."""
    mark = f"up-{strategy}"
    command = f"echo > {mark}; sleep 305"
    flags: dict[str, Any] = {"command": ["sh", "-c", command]}
    if strategy == "scripted":
        flags = {"script": {"step": [{"tool": "run_command", "args": {"command": command}}]}}
    wanted = TrialRequest(
        prompt="x", workspace=project, strategies=strategy, provider="bubblewrap", flags=flags, timeout=120
    )

    async def kill() -> None:
        while not (project / mark).exists():  # noqa: ASYNC110 (files are polled)
            await anyio.sleep(0.02)
        agents = [pid for pid in processes_with(str(project)) if "boxagent" in command_line(pid).split(" ")[0]]
        assert agents
        for pid in agents:
            with suppress(ProcessLookupError):  # already killed with the previous process
                os.kill(pid, signal.SIGKILL)

    async def run() -> Trial:
        trials = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill)
            trials.append(await run_trial(wanted))
        return trials[0]

    trial = anyio.run(run)
    assert trial.error is not None
    # A program that is killed before its first message counts as failed to start.
    assert trial.error.details.get("cause") in ("SANDBOX_LOST", "SANDBOX_START_FAILED")
    assert trial.status == "failed"


def test_record_must_not_overlap_the_workspace(project: Path, tmp_path: Path) -> None:
    for out in (project / "out", tmp_path):
        with pytest.raises(UsageError, match="overlap"):
            attempt(request(project, {"say": "x"}, out=out))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    with pytest.raises(UsageError, match="not empty"):
        attempt(request(project, {"say": "x"}, out=tmp_path / "full"))
    with pytest.raises(UsageError, match="prompt"):
        attempt(request(project, {"say": "x"}, prompt=""))


# Forks.

TURNS = {
    "turn": [
        {"step": [WRITE, RUN, {"say": "first"}]},
        {"step": [{"tool": "run_command", "args": {"command": "echo @{turn} >> a.txt"}}, {"say": "@{history}"}]},
        {"step": [{"say": "@{history}"}]},
    ]
}


def test_fork_at_the_end_of_a_turn_is_exact(project: Path, tmp_path: Path) -> None:
    first = attempt(request(project, flags={"script": TURNS}, out=tmp_path / "t1", prompt="one"))
    (project / "a.txt").write_text("changed since\n")
    wanted = TrialRequest(prompt="two", workspace=tmp_path / "fork", out=tmp_path / "t2")
    second = fork(tmp_path / "t1", 2, wanted)
    assert second.fork is not None
    assert (second.fork.exact, second.fork.base_turn) == (True, first.turn_id)
    assert second.final_message == "one\ntwo"
    assert second.snapshot_before == first.snapshot_after
    assert (tmp_path / "fork/a.txt").read_text() == "one\ntwo\n2\n"
    assert (project / "a.txt").read_text() == "changed since\n"
    # A fork of the fork, and a fork of its beginning.
    third = fork(tmp_path / "t2", 1, TrialRequest(prompt="three", workspace=tmp_path / "fork3", out=tmp_path / "t3"))
    assert third.final_message == "one\ntwo\nthree"
    again = fork(tmp_path / "t2", 0, TrialRequest(prompt="other", workspace=tmp_path / "fork4"))
    assert again.final_message == "one\nother"
    assert again.fork is not None
    assert again.fork.exact


def test_fork_within_a_turn_has_the_thread_before_it(project: Path, tmp_path: Path) -> None:
    attempt(request(project, flags={"script": TURNS}, out=tmp_path / "t1", prompt="one"))
    second = fork(tmp_path / "t1", 1, TrialRequest(prompt="two", workspace=tmp_path / "fork", out=tmp_path / "t2"))
    assert second.fork is not None
    assert (second.fork.exact, second.fork.base_thread) == (False, "")
    assert "within a turn" in second.fork.why
    assert second.final_message == "first"  # the first turn of the thread, repeated
    assert content(tmp_path / "fork", second.snapshot_before, tmp_path / "look") == {"a.txt": "one\n"}


def test_invalid_forks_are_refused(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "t1"
    attempt(request(project, WRITE, {"say": "x"}, out=out))
    wanted = TrialRequest(prompt="two", workspace=tmp_path / "fork")
    with pytest.raises(NotFoundError, match="no step 7"):
        fork(out, 7, wanted)
    with pytest.raises(NotFoundError):
        fork(tmp_path, 1, wanted)
    with pytest.raises(WorkspacePathRefused):
        fork(out, 1, TrialRequest(prompt="two", workspace=project))
    steps = (out / "steps.jsonl").read_bytes()
    (out / "steps.jsonl").write_bytes(steps.replace(b'"exit_code":null', b'"exit_code":1234'))
    with pytest.raises(CorruptError):
        fork(out, 1, wanted)
    (out / "trial.json").unlink()
    os.mkfifo(out / "trial.json")
    with pytest.raises(CorruptError, match="regular file"):
        fork(out, 1, wanted)
    assert not (tmp_path / "fork").exists()


def test_home_is_copied_without_pipes_and_links(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "deep").mkdir(parents=True)
    (home / "deep/file").write_text("kept")
    os.mkfifo(home / "deep/pipe")
    (home / "link").symlink_to("/etc/passwd")
    (home / "away").symlink_to("/etc")
    copy_home(home, tmp_path / "copy")
    assert (tmp_path / "copy/deep/file").read_text() == "kept"
    assert not (tmp_path / "copy/deep/pipe").exists()
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["deep"]


def test_home_that_is_too_deep_is_refused(deep_path: Path) -> None:
    home = deep_path / "home"
    home.mkdir()
    fd = os.open(home, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("a", dir_fd=fd)
        below = os.open("a", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    with pytest.raises(UsageError, match="deeper than 200 levels"):
        copy_home(home, deep_path / "copy")


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
        import anyio
        from proofbox.agents.trials.result import TrialRequest
        from proofbox.agents.trials.trial import run_trial
        script = {"step": [{"tool": "run_command", "args": {"command": "echo up > up; sleep 303 # " + sys.argv[1]}}]}
        anyio.run(run_trial, TrialRequest(prompt="x", workspace=Path(sys.argv[1]), out=Path(sys.argv[2]),
                                          strategies="scripted", provider="bubblewrap", flags={"script": script}))
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
    with pytest.raises(NotFoundError):
        fork(tmp_path / "out", 1, TrialRequest(prompt="x", workspace=tmp_path / "fork"))
