"""Control groups: the files written in each hierarchy, and the policies refused without control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from raw_agent import cgroup

from proofbox.errors import PolicyRefused
from proofbox.sandbox.contract import Policy
from proofbox.sandbox.host import cgroups
from proofbox.sandbox.host.cgroups import CgroupTree, Group
from proofbox.sandbox.providers.off import Off

NOBODY_HAS = 4_194_305  # above the largest possible pid


@pytest.fixture
def unified(tmp_path: Path) -> Path:
    """A directory that imitates a mounted cgroup2 hierarchy."""
    mount = tmp_path / "unified"
    (mount / "proofbox").mkdir(parents=True)
    (mount / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (mount / "cgroup.subtree_control").write_text("")
    for name in ("cgroup.subtree_control", "cgroup.kill"):
        (mount / "proofbox" / name).write_text("")
    return mount


def look(monkeypatch: pytest.MonkeyPatch, *mounts: tuple[str, Path, list[str]]) -> CgroupTree:
    monkeypatch.setattr(cgroups, "_cgroup_mounts", lambda: list(mounts))
    monkeypatch.setattr("atexit.register", lambda *_: None)
    found: CgroupTree = cgroups.tree.__wrapped__()
    return found


def v1_mounts(tmp_path: Path) -> list[tuple[str, Path, list[str]]]:
    mounts = [("cgroup", tmp_path / names, ["rw", *names.split(",")]) for names in ("memory", "cpu,cpuacct", "pids")]
    for _, mount, _ in mounts:
        mount.mkdir()
    return mounts


def test_v2_is_found_with_its_controllers(unified: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = look(monkeypatch, ("cgroup2", unified, ["rw"]))
    assert tree.unified == unified / "proofbox"
    assert tree.can_kill
    assert all(tree.can_limit(name) for name in ("memory", "cpu", "pids"))
    assert (unified / "proofbox" / "cgroup.subtree_control").read_text() == "+pids"


def test_v2_limits_are_written(unified: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = look(monkeypatch, ("cgroup2", unified, ["rw"]))
    group = Group(tree, "box", Policy(memory_mb=64, cpus=1.5, pids=10), owner=None)
    place = unified / "proofbox" / f"box.{os.getpid()}"
    assert group.unified == group.memory == place
    wanted = {"memory.max": str(64 << 20), "memory.swap.max": "0", "cpu.max": "150000 100000", "pids.max": "10"}
    assert {file.name: file.read_text() for file in place.iterdir()} == wanted
    assert group.launch_options(7) == ["--cgroup", "7"]


def test_v1_limits_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = look(monkeypatch, *v1_mounts(tmp_path))
    assert not tree.can_kill
    group = Group(tree, "box", Policy(memory_mb=64, cpus=0.25, pids=10), owner=None)
    name = f"proofbox/box.{os.getpid()}"
    found = {
        f"{directory}/{file.name}": file.read_text()
        for directory in ("memory", "cpu,cpuacct", "pids")
        for file in (tmp_path / directory / name).iterdir()
    }
    assert found == {
        "memory/memory.limit_in_bytes": str(64 << 20),
        "memory/memory.memsw.limit_in_bytes": str(64 << 20),
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/cpu.cfs_quota_us": "25000",
        "pids/pids.max": "10",
    }
    assert group.memory == tmp_path / "memory" / name
    joined = group.launch_options(None)
    assert sorted(joined[1::2]) == sorted(
        str(tmp_path / d / name / "cgroup.procs") for d in ("memory", "cpu,cpuacct", "pids")
    )


def test_hybrid_machine_uses_v1_limits_and_v2_kill(
    tmp_path: Path, unified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (unified / "cgroup.controllers").write_text("\n")
    tree = look(monkeypatch, *v1_mounts(tmp_path), ("cgroup2", unified, ["rw"]))
    assert tree.can_kill
    assert tree.unified_controllers == frozenset()
    assert all(tree.can_limit(name) for name in ("memory", "cpu", "pids"))
    group = Group(tree, "box", Policy(memory_mb=64), owner=None)
    assert group.memory == tmp_path / "memory" / "proofbox" / f"box.{os.getpid()}"
    assert list((unified / "proofbox" / f"box.{os.getpid()}").iterdir()) == []
    options = group.launch_options(5)
    assert options == ["--cgroup", "5", "--join", str(group.memory / "cgroup.procs")]


def test_only_limited_resources_get_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = look(monkeypatch, *v1_mounts(tmp_path))
    Group(tree, "box", Policy(pids=10), owner=None)
    assert not (tmp_path / "memory" / "proofbox" / f"box.{os.getpid()}").exists()
    monkeypatch.setattr(cgroups, "tree", lambda: tree)
    assert cgroups.group("box2", Policy(), owner=None) is None


def test_limit_without_control_groups_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = look(monkeypatch)
    assert not tree.can_kill
    assert tree.reason
    monkeypatch.setattr(cgroups, "tree", lambda: tree)
    enforced = Off().enforcement()
    assert (enforced.memory, enforced.cpus, enforced.pids) == (False, False, False)
    assert enforced.kill_tree == "best-effort"
    for name in ("memory", "cpu", "pids", "kill tree"):
        assert tree.reason in enforced.gaps[name]
    from proofbox import Sandboxes

    with pytest.raises(PolicyRefused) as caught:
        Sandboxes().exec(["true"], provider="off", memory=64, pids=10)
    assert set(caught.value.details["refused"]) == {"memory", "pids"}
    assert cgroups.group("box", Policy(), owner=None) is None


def test_commands_run_and_are_killed_without_control_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tree = look(monkeypatch)
    monkeypatch.setattr(cgroups, "tree", lambda: tree)
    from proofbox import Sandboxes

    with Sandboxes(project_root=tmp_path) as boxes:
        result = boxes.exec(["sh", "-c", "sleep 60 & sleep 60"], provider="off", timeout=0.2)
        assert result.timed_out
        assert not result.survivors


def test_v2_of_an_old_kernel_has_no_kill(unified: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (unified / "proofbox" / "cgroup.kill").unlink()
    tree = look(monkeypatch, ("cgroup2", unified, ["rw"]))
    assert not tree.can_kill
    assert "5.14" in tree.reason


@pytest.mark.parametrize("policy", [Policy(cpus=0.01), Policy(cpus=64)])
def test_cpu_quota_is_within_kernel_limits(unified: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy) -> None:
    tree = look(monkeypatch, ("cgroup2", unified, ["rw"]))
    group = Group(tree, "box", policy, owner=None)
    assert group.unified is not None
    quota, period = (group.unified / "cpu.max").read_text().split()
    assert int(quota) >= 1000
    assert int(quota) / int(period) == policy.cpus


def test_sweep_removes_only_empty_groups_of_dead_processes(unified: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = unified / "proofbox"
    (home / f"dead.{NOBODY_HAS}" / "c0").mkdir(parents=True)
    (home / f"busy.{NOBODY_HAS}" / "processes").mkdir(parents=True)  # makes rmdir fail
    (home / f"alive.{os.getpid()}").mkdir()
    (home / "not-ours").mkdir()
    look(monkeypatch, ("cgroup2", unified, ["rw"]))
    left = {child.name for child in home.iterdir() if child.is_dir()}
    assert left == {f"busy.{NOBODY_HAS}", f"alive.{os.getpid()}", "not-ours"}


TIDY = """
import os, sys
while True:
    try:
        os.rmdir(sys.argv[1])
    except OSError:
        pass
"""


@pytest.mark.needs("root")
def test_group_is_created_while_others_remove_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client that considers itself the last removes the common directory, at any moment."""
    with cgroup() as mount, subprocess.Popen([sys.executable, "-S", "-c", TIDY, str(mount / "proofbox")]) as other:
        try:
            for number in range(300):
                found = look(monkeypatch, ("cgroup2", mount, ["rw"]))
                assert found.can_kill, found.reason
                Group(found, f"test-{number}", Policy(), owner=None).remove()
        finally:
            other.kill()


def test_oom_kills_are_read_from_either_hierarchy(tmp_path: Path) -> None:
    assert cgroups.oom_kills(None) == 0
    assert cgroups.oom_kills(tmp_path) == 0
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert cgroups.oom_kills(tmp_path) == 3
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 2\noom 5\noom_kill 4\n")
    assert cgroups.oom_kills(tmp_path) == 4


@pytest.mark.needs("root")
def test_process_limit_is_enforced(tmp_path: Path) -> None:
    from proofbox import Sandboxes

    if not cgroups.tree().can_limit("pids"):
        pytest.skip("no pids controller here")
    with Sandboxes(project_root=tmp_path) as boxes, boxes.start_session(provider="off", pids=12) as session:
        result = session.exec(["sh", "-c", "for i in $(seq 40); do sleep 60 & done; echo all"], timeout=60)
        assert "all" not in result.stdout
        assert result.exit_code != 0
        assert "fork" in result.stderr
