"""Workspaces that are mounted over another one: the same snapshots as those of a copy, and nothing left behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proofbox import Workspace
from proofbox.errors import WorkspaceChanging, WorkspaceReplaced
from proofbox.workspace.scanning.stack import enter_private_mounts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")

PATHS = ("a", "a/one", "a/two", "a/below", "a/below/three", "b", "b/four", "five", "new", "a/new", "b/new/deep", "link")
EDITS = ("write", "append", "delete", "rename", "chmod", "symlink", "hardlink", "mkdir", "truncate")
Edit = tuple[str, str, str]
EDIT = st.tuples(st.sampled_from(EDITS), st.sampled_from(PATHS), st.sampled_from(PATHS))


def in_private_mounts(work: Callable[[], None]) -> None:
    """Run `work` in a child process with its own mount namespace."""

    def child() -> None:
        enter_private_mounts()
        work()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0, "its traceback is above"


def make(root: Path) -> Workspace:
    (root / "a/below").mkdir(parents=True)
    (root / "b").mkdir(mode=0o750)
    for name in ("a/one", "a/two", "a/below/three", "b/four", "five"):
        (root / name).write_text(f"this is {name}")
    (root / "link").symlink_to("a")
    workspace = Workspace.init(root, track=False)
    workspace.snapshot("as given")
    workspace.settle()
    return workspace


def apply(root: Path, edit: Edit) -> None:
    """Make an edit, if it is possible; it fails in the same way in a copy."""
    what, first, second = edit
    path, other = root / first, root / second
    with contextlib.suppress(OSError):
        if what in ("write", "append"):
            with path.open("w" if what == "write" else "a") as file:
                file.write(second)
        elif what == "truncate":
            os.truncate(path, 3)
        elif what == "delete":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        elif what == "rename":
            path.rename(other)
        elif what == "chmod":
            path.chmod(0o700)
        elif what == "symlink":
            path.symlink_to(second)
        elif what == "hardlink":
            other.hardlink_to(path)
        elif what == "mkdir":
            path.mkdir(parents=True)


REPLACED: dict[str, list[Edit]] = {
    "directory by a file": [("delete", "a", ""), ("write", "a", "text")],
    "directory by a link": [("delete", "a", ""), ("symlink", "a", "b")],
    "directory by a new one": [("delete", "a/below", ""), ("mkdir", "a/below", "")],
    "directory by another one": [("delete", "a", ""), ("rename", "b", "a")],
    "file by a directory": [("delete", "five", ""), ("mkdir", "five", "")],
}


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "tracked"])
@pytest.mark.parametrize("edits", REPLACED.values(), ids=REPLACED)
def test_snapshot_of_a_mounted_fork_sees_that_an_entry_was_replaced(
    tmp_path: Path, edits: list[Edit], sealed: bool
) -> None:
    """The replaced directories have a directory with the same name and other files."""

    def compare() -> None:
        origin = make(tmp_path / "origin")
        (origin.path / "b/below").mkdir()
        (origin.path / "b/below/three").write_text("another one")
        given = origin.snapshot("with two directories of one name")
        origin.settle()
        with origin.fork_over(given.id, tmp_path / "mounted", tmp_path / "layers") as mounted:
            for edit in edits:
                apply(mounted.path, edit)
            found = mounted.snapshot("replaced", sealed=sealed).id
            shutil.copytree(mounted.path, tmp_path / "copied", symlinks=True)
        with Workspace.init(tmp_path / "copied", track=False) as copied:
            assert copied.snapshot("copied").id == found != given.id

    in_private_mounts(compare)


def test_mounted_fork_has_the_same_snapshots_as_a_copy(tmp_path: Path) -> None:
    def compare() -> None:
        origin, number = make(tmp_path / "origin"), count()

        @settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(EDIT, max_size=8), st.lists(EDIT, max_size=4), st.booleans())
        def same(before: list[Edit], after: list[Edit], by_notifications: bool) -> None:
            place = tmp_path / str(next(number))
            place.mkdir()
            copied = origin.fork("HEAD", place / "copied", track=True)
            mounted = origin.fork_over("HEAD", place / "mounted", place / "layers")
            found = []
            for each in (copied, mounted):
                trees = []
                for edits in (before, after):
                    for edit in edits:
                        apply(each.path, edit)
                    if by_notifications:
                        trees.append(each.snapshot("by notifications").id)
                sealed = each.snapshot("sealed", sealed=True)
                changes = each.diff(each.history()[0].id, sealed.id)
                if each is mounted:
                    exported = each.export_over(sealed.id, place / "exported", place / "exported.layers")
                else:
                    each.export(sealed.id, place / "exported")
                with Workspace.init(place / "exported", track=False) as written:
                    trees.append(written.snapshot("exported").id)
                written.forget()
                if each is mounted:
                    exported.give()
                    exported.close()
                else:
                    shutil.rmtree(place / "exported")
                found.append((trees, sealed.id, sealed.skipped, sealed.changed, changes))
                each.forget()
            assert found[0] == found[1]
            shutil.rmtree(place)

        same()
        origin.forget()

    in_private_mounts(compare)


@pytest.mark.parametrize("how", ["content", "restored", "added", "mode"])
def test_change_of_the_lower_directory_is_found(tmp_path: Path, how: str) -> None:
    def check() -> None:
        origin = make(tmp_path / "origin")
        fork = origin.fork_over("HEAD", tmp_path / "fork", tmp_path / "layers")
        assert fork.lower is not None
        fork.lower.require_unchanged()
        (fork.path / "five").write_text("changes of the fork do not change the lower directory")
        fork.lower.require_unchanged()
        victim = origin.path / "a/below/three"
        if how == "added":
            (origin.path / "a/planted").write_text("x")
        elif how == "mode":
            victim.chmod(0o777)
        else:
            times, content = victim.stat(), victim.read_text()
            victim.write_text("x" * len(content))
            if how == "restored":
                victim.write_text(content)
            os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
        with pytest.raises(WorkspaceChanging, match="has changed"):
            fork.lower.require_unchanged()
        fork.forget()
        origin.forget()

    in_private_mounts(check)


def test_a_killed_process_leaves_no_mount_and_the_host_sees_none(tmp_path: Path) -> None:
    ready, told = os.pipe()

    def child() -> None:
        enter_private_mounts()
        fork = make(tmp_path / "origin").fork_over("HEAD", tmp_path / "fork", tmp_path / "layers")
        assert (fork.path / "five").exists()
        os.write(told, b"x")
        signal.pause()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    os.close(told)
    try:
        assert os.read(ready, 1) == b"x"
        assert not list((tmp_path / "fork").iterdir())
        with pytest.raises(WorkspaceReplaced):
            Workspace.open(tmp_path / "fork")
    finally:
        os.close(ready)
        process.kill()
        process.join()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    shutil.rmtree(tmp_path / "fork")
    assert (tmp_path / "origin/five").read_text() == "this is five"


def test_without_private_mounts_nothing_is_mounted(tmp_path: Path) -> None:
    origin = make(tmp_path / "origin")
    with pytest.raises(OSError, match="private mount namespace"):
        origin.fork_over("HEAD", tmp_path / "fork", tmp_path / "layers")
    assert not (tmp_path / "fork").exists()
    origin.forget()
