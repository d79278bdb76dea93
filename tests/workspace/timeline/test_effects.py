"""The effect log records actions in order, and removed entries are detected."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proofbox import Workspace
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import CorruptError
from proofbox.workspace.timeline.effects import FILE, EffectLog


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    project = tmp_path / "project"
    project.mkdir()
    (project / "f").write_text("one")
    with Workspace.init(project, track=False) as made:
        yield made


def fill(log: EffectLog, count: int) -> None:
    for number in range(count):
        log.append(id=log.new_id(), phase="intent", kind="write_file", target=f"f{number}")


def test_entries_are_read_in_order(workspace: Workspace) -> None:
    log = workspace.effects
    id = log.new_id()
    log.append(id=id, phase="intent", kind="run_command", target="make", cwd=".", decision="allow", rule="command: **")
    head = log.append(id=id, phase="outcome", kind="run_command", exit_code=2, duration_ms=1.5, reach=("network",))
    first, second = log.entries()
    assert (first.seq, first.id, first.target, first.rule) == (0, id, "make", "command: **")
    assert (second.seq, second.exit_code, second.duration_ms, second.reach) == (1, 2, 1.5, ("network",))
    assert [each.seq for each in log.entries(since=1)] == [1]
    assert workspace.snapshot().effects_head == head


def test_hostile_text_is_escaped_and_secrets_are_redacted(workspace: Workspace) -> None:
    log = EffectLog(workspace.effects.path.parent, workspace.id, redactor=Redactor(["hunter2-hunter2"]))
    hostile = "curl hunter2-hunter2 \x1b[31m " + os.fsdecode(b"\xff") + " \ud800"
    log.append(id="x", phase="intent", kind="run_command", target=hostile, cwd="\x1b")
    raw = log.path.read_bytes()
    assert b"hunter2" not in raw
    assert b"\x1b" not in raw
    [entry] = log.entries()
    assert entry.target == "curl [redacted] \\x1b[31m \\udcff \\ud800"


def test_log_is_outside_the_workspace(workspace: Workspace) -> None:
    fill(workspace.effects, 1)
    assert not workspace.effects.path.is_relative_to(workspace.path)
    assert workspace.effects.path.parent.stat().st_mode & 0o077 == 0


def test_incomplete_entry_is_removed_with_a_note(workspace: Workspace) -> None:
    log = workspace.effects
    fill(log, 2)
    anchored = workspace.snapshot("anchor")
    with log.path.open("ab") as file:
        file.write(b'{"half": ')
    assert workspace.verify().sound  # an incomplete append is not tampering
    assert workspace.snapshot().effects_head == anchored.effects_head
    fill(log, 1)
    kinds = [(each.phase, each.kind) for each in log.entries()]
    assert kinds == [("intent", "write_file")] * 2 + [("note", "repair"), ("intent", "write_file")]
    assert "9 bytes" in next(each for each in log.entries() if each.phase == "note").note
    workspace.snapshot()
    assert workspace.verify().sound


def test_truncation_before_a_snapshot_is_found(workspace: Workspace) -> None:
    log = workspace.effects
    first = workspace.snapshot("before any effect")
    assert first.effects_head is None
    fill(log, 3)
    second = workspace.snapshot("three")
    assert second.effects_head is not None
    assert second.effects_head.count == 3
    fill(log, 2)
    assert workspace.verify().sound
    whole = log.path.read_bytes()
    lines = whole.splitlines(keepends=True)
    log.path.write_bytes(b"".join(lines[:4]))  # entries after the recorded head: not detectable
    assert workspace.verify().sound
    log.path.write_bytes(b"".join(lines[:2]))
    assert "truncated: it has 2 entries, but a snapshot records 3" in workspace.verify().problems[0]
    log.path.unlink()
    assert workspace.verify().problems == ("the effect log is missing: a snapshot records 3 entries",)
    log.path.write_bytes(whole)
    assert workspace.verify().sound


def test_rewritten_log_is_detected(workspace: Workspace) -> None:
    log = workspace.effects
    fill(log, 3)
    workspace.snapshot()
    log.path.unlink()
    fill(log, 3)  # a valid chain of the same length
    assert "are not those that a snapshot records" in workspace.verify().problems[0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_change_before_a_snapshot_is_found(workspace: Workspace, data: st.DataObject) -> None:
    log = workspace.effects
    if not log.path.exists():
        fill(log, 4)
        workspace.snapshot()
    good = log.path.read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    kind = data.draw(st.sampled_from(["flip", "drop", "insert", "cut", "swap"]))
    bad = bytearray(good)
    if kind == "flip":
        bad[at] ^= data.draw(st.integers(1, 255))
    elif kind == "drop":
        del bad[at]
    elif kind == "insert":
        bad.insert(at, data.draw(st.integers(0, 255)))
    elif kind == "cut":
        del bad[at:]
    else:
        lines = good.splitlines(keepends=True)
        bad = bytearray(b"".join([lines[1], lines[0], *lines[2:]]))
    try:
        log.path.write_bytes(bytes(bad))
        assert bytes(bad) == good or not workspace.verify().sound
    finally:
        log.path.write_bytes(good)


def test_append_to_a_corrupt_log_is_refused(workspace: Workspace) -> None:
    log = workspace.effects
    fill(log, 2)
    log.path.write_bytes(log.path.read_bytes() + b'{"seq":7,"prev":"x"}\n')
    with pytest.raises(CorruptError):
        fill(log, 1)


def test_rollback_lists_irreversible_effects(workspace: Workspace) -> None:
    log = workspace.effects

    def command(target: str, *, ended: bool = True, reach: tuple[str, ...] = ()) -> None:
        id = log.new_id()
        log.append(id=id, phase="intent", kind="run_command", target=target)
        if ended:
            log.append(id=id, phase="outcome", kind="run_command", target=target, exit_code=0, reach=reach)

    command("before", reach=("network",))
    target = workspace.snapshot("here")
    (workspace.path / "f").write_text("two")
    fill(log, 1)
    command("sealed")
    command("curl -d @f example.org", reach=("network",))
    command("killed", ended=False)
    result = workspace.rollback(target.id)
    assert (workspace.path / "f").read_text() == "one"
    assert result.irreversible_effects == (
        "curl -d @f example.org (could reach: network)",
        "killed (outcome unknown)",
    )


def test_fork_starts_a_new_log(workspace: Workspace, tmp_path: Path) -> None:
    fill(workspace.effects, 2)
    made = workspace.snapshot()
    with workspace.fork(made.id, tmp_path / "fork") as fork:
        assert list(fork.effects.entries()) == []
        assert fork.verify().sound
        fill(fork.effects, 1)
        fork.snapshot()
        assert fork.verify().sound


WRITE = """
import sys
from proofbox import Workspace
with Workspace.open(sys.argv[1], track=False) as ws:
    log = ws.effects
    print("ready", flush=True)
    for number in range(int(sys.argv[2])):
        log.append(id=log.new_id(), phase="intent", kind="write_file", target=f"{sys.argv[3]}-{number}" + "x" * 200)
"""


def writer(workspace: Workspace, count: int, name: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", WRITE, str(workspace.path), str(count), name]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_several_processes_append_to_one_chain(workspace: Workspace) -> None:
    processes = [writer(workspace, 40, name) for name in "ab"]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    found = [each.target.partition("x")[0] for each in workspace.effects.entries()]
    for name in "ab":
        assert [each for each in found if each.startswith(name)] == [f"{name}-{n}" for n in range(40)]
    workspace.snapshot()
    assert workspace.verify().sound


def test_chain_continues_after_a_writer_is_killed(workspace: Workspace, rounds: Callable[[int, int], int]) -> None:
    before = 0
    for number in range(rounds(3, 60)):
        process = writer(workspace, 10**6, str(number))
        size = workspace.effects.path.stat().st_size if workspace.effects.path.exists() else 0
        while not workspace.effects.path.exists() or workspace.effects.path.stat().st_size < size + 2000 * (
            number % 5 + 1
        ):
            pass
        process.send_signal(signal.SIGKILL)
        process.communicate()
        fill(workspace.effects, 1)
        workspace.snapshot()
        assert workspace.verify().sound
        count = len(list(workspace.effects.entries()))
        assert count > before
        before = count


def test_log_file_has_its_documented_name(workspace: Workspace) -> None:
    assert workspace.effects.path.name == FILE
