"""The layers around an environment check, record, snapshot, roll back and nudge, in order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proofbox import Workspace
from proofbox.errors import (
    CapabilityDenied,
    CheckFailed,
    FileAbsent,
    PatchRefused,
    PathRefused,
    ProofboxError,
    ToolNudged,
    ToolPathRefused,
)
from proofbox.workspace.capabilities.capabilities import Capabilities
from proofbox.workspace.capabilities.grants import parse
from proofbox.workspace.timeline.effects import Effect
from proofbox.workspace.tools.conformance import CHECKS, ToolFixture, run_conformance
from proofbox.workspace.tools.contract import ToolEnvironment
from proofbox.workspace.tools.environments.host import HostEnvironment
from proofbox.workspace.tools.environments.layers import Below, Layer, Layered, ToolInvocation
from proofbox.workspace.tools.environments.memory import MemoryEnvironment
from proofbox.workspace.tools.environments.middleware import EffectRecording, Nudge, SnapshotOnWrite, workspace_layers
from proofbox.workspace.tools.results import ToolResult
from proofbox.workspace.tools.tree import Guard

RULES = """
[fs]
read = ["**", "!secret"]
write = ["src/**"]
delete = ["src/**"]
[commands]
allow = ["sh -c *", "!sh -c *rm*"]
[env]
write = ["OK"]
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "src/a").write_text("one\n")
    (project / "secret").write_text("hidden")
    (project / "link").symlink_to("secret")
    with Workspace.init(project) as made:
        yield made


@pytest.fixture
def host(workspace: Workspace) -> Iterator[HostEnvironment]:
    with HostEnvironment(workspace.path) as env:
        yield env


def layers(
    env: ToolEnvironment, workspace: Workspace, capabilities: Capabilities | None = None, **options: Any
) -> list[Layer]:
    history = SnapshotOnWrite(workspace)
    return workspace_layers(env, history, EffectRecording(workspace.effects, history.head), capabilities, **options)


def log(workspace: Workspace) -> list[Effect]:
    return list(workspace.effects.entries())


def test_call_passes_through_every_layer(workspace: Workspace, host: HostEnvironment) -> None:
    env = Layered(host, layers(host, workspace, Capabilities(parse(RULES))))
    assert isinstance(env, ToolEnvironment)
    env.write_file("src/b", "two")
    done = env.run_command("echo hi; exit 3", env={"OK": "1"})
    intent, outcome, second, ended = log(workspace)
    assert (intent.phase, intent.kind, intent.target, intent.decision) == ("intent", "write_file", "src/b", "allow")
    assert intent.rule == "fs.write: src/**"
    assert outcome.id == intent.id
    head, *_, first = reversed(workspace.history())
    assert first.message == "before the first change"
    assert (intent.snapshot_before, outcome.snapshot_before) == ("", first.id)
    assert second.snapshot_before == outcome.snapshot_after != ""
    assert (ended.exit_code, ended.stdout_sha256, ended.duration_ms) == (3, done.stdout_sha256, done.duration_ms)
    assert ended.reach == ("host", "network")
    assert second.target == "echo hi; exit 3"
    assert ended.snapshot_after == head.id
    assert head.effects_head is not None
    assert workspace.verify().sound


def test_denied_calls_are_recorded_and_not_executed(workspace: Workspace, host: HostEnvironment) -> None:
    env = Layered(host, layers(host, workspace, Capabilities(parse(RULES))))
    patch = "--- /dev/null\n+++ b/top\n@@ -0,0 +1 @@\n+x\n"
    for attempt, rule in (
        (lambda: env.read_file("secret"), "fs.read: !secret"),
        (lambda: env.read_file("src/../secret"), "fs.read: !secret"),
        (lambda: env.write_file("top", "x"), "fs.write: nothing allows it"),
        (lambda: env.remove_file("secret"), "fs.delete: nothing allows it"),
        (lambda: env.edit_file("secret", "h", "x"), "fs.read: !secret"),
        (lambda: env.apply_patch(patch), "fs.write: nothing allows it"),
        (lambda: env.run_command("rm x"), "command: !sh -c *rm*"),
        (lambda: env.run_command(["true"]), "command: nothing allows it"),
        (lambda: env.run_command("true", env={"LD_PRELOAD": "x"}), "env.write: nothing allows it"),
    ):
        with pytest.raises(CapabilityDenied):
            attempt()
        [*_, entry] = log(workspace)
        assert (entry.phase, entry.decision, entry.rule) == ("denied", "deny", rule)
    assert sorted(path.name for path in workspace.path.iterdir()) == ["link", "secret", "src"]
    with pytest.raises(FileAbsent):
        env.read_file("..x")  # an ordinary name


ESCAPING_PATCH = "--- /dev/null\n+++ b/../top\n@@ -0,0 +1 @@\n+x\n"


@pytest.mark.parametrize(
    ("tool", "arguments", "target", "code"),
    [
        ("read_file", {"path": "../x"}, "../x", "WORKSPACE_TOOL_PATH_REFUSED"),
        ("read_file", {"path": "src/../../x"}, "src/../../x", "WORKSPACE_TOOL_PATH_REFUSED"),
        ("read_file", {"path": "/etc/passwd"}, "/etc/passwd", "WORKSPACE_TOOL_PATH_REFUSED"),
        ("read_file", {"path": "a\0b"}, "a\\x00b", "WORKSPACE_TOOL_PATH_REFUSED"),
        ("read_file", {"path": "\ud800"}, "\\ud800", "WORKSPACE_TOOL_PATH_REFUSED"),
        ("write_file", {"path": "../x", "content": "x"}, "../x", "WORKSPACE_TOOL_PATH_REFUSED"),
        ("edit_file", {"path": "../x", "old": "a", "new": "b"}, "../x", "WORKSPACE_TOOL_PATH_REFUSED"),
        ("remove_file", {"path": ".."}, "..", "WORKSPACE_TOOL_PATH_REFUSED"),
        ("list_directory", {"path": ".."}, "..", "WORKSPACE_TOOL_PATH_REFUSED"),
        ("list_files_recursive", {"path": ".."}, "..", "WORKSPACE_TOOL_PATH_REFUSED"),
        ("search_text", {"pattern": "x", "path": ".."}, "..: x", "WORKSPACE_TOOL_PATH_REFUSED"),
        ("apply_patch", {"patch": ESCAPING_PATCH}, "../top", "WORKSPACE_TOOL_PATH_REFUSED"),
        ("apply_patch", {"patch": "none"}, "", "WORKSPACE_PATCH_REFUSED"),
        ("run_command", {"command": ["sh", "-c", "echo"], "cwd": ".."}, "sh -c echo", "SANDBOX_PATH_REFUSED"),
    ],
)
@pytest.mark.parametrize("checked", [True, False])
def test_refused_paths_are_recorded_with_their_code(
    workspace: Workspace,
    host: HostEnvironment,
    tool: str,
    arguments: dict[str, Any],
    target: str,
    code: str,
    checked: bool,
) -> None:
    env = Layered(host, layers(host, workspace, Capabilities(parse(RULES)) if checked else None))
    with pytest.raises((ToolPathRefused, PatchRefused, PathRefused)) as refused:
        getattr(env, tool)(**arguments)
    [*_, entry] = log(workspace)
    assert (entry.kind, entry.target, entry.error) == (tool, target, code)
    assert entry.error == refused.value.code
    if checked and tool != "run_command":
        assert (entry.phase, entry.decision, entry.rule) == ("denied", "deny", "")


def test_failures_are_recorded_with_their_code(workspace: Workspace, host: HostEnvironment) -> None:
    env = Layered(host, layers(host, workspace))
    with pytest.raises(FileAbsent):
        env.read_file("none")
    intent, outcome = log(workspace)
    assert (intent.decision, outcome.error) == ("", "WORKSPACE_FILE_ABSENT")


def test_call_is_not_made_if_its_intent_cannot_be_recorded(workspace: Workspace, host: HostEnvironment) -> None:
    env = Layered(host, layers(host, workspace))
    env.write_file("src/b", "x")
    workspace.effects.path.write_bytes(workspace.effects.path.read_bytes() + b'{"not":"an entry"}\n')
    with pytest.raises(ProofboxError):
        env.write_file("src/c", "x")
    assert not (workspace.path / "src/c").exists()


def test_rollback_to_any_step(workspace: Workspace, host: HostEnvironment) -> None:
    env = Layered(host, layers(host, workspace))
    env.write_file("src/a", "two\n")
    env.edit_file("src/a", "two", "three")
    env.run_command("echo four > src/a; mkdir d")
    steps = [entry.snapshot_after for entry in log(workspace) if entry.phase == "outcome"]
    listed = []
    for step, text in zip(steps, ("two\n", "three\n", "four\n"), strict=True):
        listed.append(workspace.rollback(step).irreversible_effects)
        assert (workspace.path / "src/a").read_text() == text
    command = ("echo four > src/a; mkdir d (could reach: host, network)",)
    assert listed == [command, command, ()]  # the last snapshot is the state after the command


def test_failed_check_rolls_back_to_the_last_good_state(workspace: Workspace, host: HostEnvironment) -> None:
    env = Layered(host, layers(host, workspace, check="! grep -q bad src/*", nudge=False))
    env.write_file("src/a", "good\n")
    with pytest.raises(CheckFailed) as caught:
        env.write_file("src/b", "bad\n")
    assert caught.value.details["exit_code"] == 1
    with pytest.raises(CheckFailed):
        env.run_command("echo bad > src/c; rm src/a")
    assert (workspace.path / "src/a").read_text() == "good\n"
    assert sorted(path.name for path in (workspace.path / "src").iterdir()) == ["a"]
    env.write_file("src/d", "fine\n")
    kinds = [(entry.kind, entry.phase) for entry in log(workspace)]
    assert kinds.count(("rollback", "outcome")) == 2
    assert kinds.count(("run_command", "intent")) == 4 + 1  # each check is recorded as well
    assert workspace.verify().sound


def test_reads_take_no_snapshot(workspace: Workspace, host: HostEnvironment) -> None:
    env = Layered(host, layers(host, workspace))
    env.read_file("src/a")
    env.list_directory()
    assert workspace.history() == []


def test_nudge_stops_repeated_calls() -> None:
    memory = MemoryEnvironment({"a": "x", "b": "y"})
    env = Layered(memory, [Nudge()])
    for _ in range(2):  # the count restarts after a nudge
        for _ in range(3):
            env.read_file("a")
        with pytest.raises(ToolNudged, match="the same call"):
            env.read_file("a")
    env.write_file("c", "x")
    for number in range(10):
        env.read_file("ab"[number % 2])
    with pytest.raises(ToolNudged, match="10 reads"):
        env.list_directory()
    for number in range(10):
        env.read_file("ab"[number % 2])
        if number == 5:
            env.write_file("c", "y")
    env.read_file("a")


def test_custom_layers_wrap_calls(workspace: Workspace) -> None:
    seen: list[str] = []

    def outer(call: ToolInvocation, below: Below) -> ToolResult:
        seen.append(f"outer {call.tool}")
        return below(call)

    def inner(call: ToolInvocation, below: Below) -> ToolResult:
        seen.append(f"inner {call.target}")
        return below(call)

    env = Layered(MemoryEnvironment({"a": "needle"}), [outer, inner])
    assert env.search_text("needle").matches[0].path == "a"
    assert seen == ["outer search_text", "inner .: needle"]


def test_layered_environment_passes_the_conformance_suite(tmp_path: Path) -> None:
    from contextlib import contextmanager

    @contextmanager
    def make(guard: Guard) -> Iterator[ToolFixture]:
        memory = MemoryEnvironment(guard=guard)
        yield ToolFixture(Layered(memory, workspace_layers(memory, nudge=False)))

    assert [result for result in run_conformance(make) if result.outcome == "failed"] == []
    assert len(CHECKS) > 15


def test_calls_with_non_utf8_names_are_snapshotted(
    workspace: Workspace, host: HostEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hunter2-hunter2-hunter2")
    env = Layered(host, layers(host, workspace))
    name = os.fsdecode(b"n\xff\x1b")
    env.write_file(name, "x")
    env.run_command(["true", os.fsdecode(b"\xff")])
    env.run_command(["true", "hunter2-hunter2-hunter2"])
    env.apply_patch("--- /dev/null\n+++ b/m\udcff\n@@ -0,0 +1 @@\n+x\n")
    messages = [each.message for each in workspace.history()]
    assert messages[1] == "write_file n\\udcff\\x1b"
    assert not any("hunter2" in message for message in messages)
    assert [msgspec.json.encode(each) for each in log(workspace)]


def test_threads_can_share_an_environment(workspace: Workspace, host: HostEnvironment) -> None:
    env = Layered(host, layers(host, workspace, nudge=False))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: env.write_file(f"src/{n}", "x") and env.run_command(f"echo {n} >> src/all"), range(12)))
    assert len(list((workspace.path / "src").iterdir())) == 14
    entries = log(workspace)
    assert len({each.id for each in entries}) == 24
    assert workspace.verify().sound
    assert workspace.status().changes == ()
